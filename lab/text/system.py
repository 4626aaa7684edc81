"""System prompts: short ones (persona, a few rules) and long ones (all policies, a catalogue)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab.text.dice import Dice
from lab.text.shop import Product, Shop, money

OPENINGS = (
    "You are {agent}, the support agent of {company}, a shop for {sector}.",
    "You answer customers of {company} ({sector}). Your name is {agent}.",
    "{company} sells {sector}. You work on its support desk and sign as {agent}.",
    "Act as {agent} from the support desk of {company}, which sells {sector}.",
)
TONE_RULES = {
    "formal": ("Keep a formal tone.", "Write formally.", "Use a formal register."),
    "warm": ("Keep a warm tone.", "Write in a warm, friendly way.", "Sound warm and personal."),
    "brief": ("Keep replies brief.", "Be brief.", "Use few words."),
}
REFERENCE_RULES = ("Quote the order number in every reply.", "Always repeat the order number.")
VOUCHER_RULES = (
    "Offer a {n}% voucher when goods arrive damaged or wrong.",
    "Damaged or wrong goods earn a voucher of {n}%.",
)
POLICY_RULES: Mapping[str, tuple[str, ...]] = {
    "refund_time": (
        "Refunds are paid within {v}.",
        "We pay refunds within {v}.",
        "A refund takes up to {v}.",
    ),
    "return_window": ("Returns are accepted for {v}.", "Customers may return goods within {v}."),
    "shipping_fee": ("Standard shipping costs {v}.", "The shipping fee is {v}."),
    "free_shipping": ("Orders above {v} ship free.", "Shipping is free from {v}."),
    "opening_hours": ("The desk is open from {v}.", "Opening hours are {v}."),
    "phone": ("The phone line is {v}.", "Customers can call {v}."),
    "escalation": ("Escalate hard cases to {v}.", "If a case is stuck, hand it to {v}."),
    "pickup_city": ("Orders can be picked up in {v}.", "Our pickup point is in {v}."),
    "express_time": ("Express delivery takes {v}.", "Express parcels arrive within {v}."),
    "gift_wrap": ("Gift wrap costs {v}.", "We wrap gifts for {v}."),
    "loyalty": ("Each order earns {v}.", "Customers collect {v} with every order."),
    "invoice_copies": ("Invoice copies are kept for {v}.", "We store invoices for {v}."),
    "claim_limit": ("Damage must be reported within {v}.", "Claims for damage are open for {v}."),
    "order_limit": ("One order may hold at most {v}.", "Orders are limited to {v}."),
}
ROUTE_NOUNS = {
    "damaged": ("damaged goods", "broken goods"),
    "late": ("late parcels", "delays"),
    "wrong_item": ("wrong items", "mix-ups"),
    "missing_part": ("missing parts", "incomplete parcels"),
    "invoice": ("invoices", "billing"),
    "cancel": ("cancellations", "orders to cancel"),
    "address_change": ("address changes", "new addresses"),
    "refund_status": ("refund questions", "open refunds"),
}
ABOUT = (
    "The shop was founded in {city} and still packs every parcel there.",
    "Most customers are families and small firms who order a few times a year.",
    "Never promise what the rules below do not allow.",
    "Read the whole ticket before you answer, and do not guess order numbers.",
    "When a customer corrects an order, the last word counts.",
    "Treat every customer with respect, also when the ticket is angry.",
    "If the guidelines do not answer a question, say so.",
    "Numbers must be exact; check every sum before you send it.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemPrompt:
    """A system prompt and what it tells: the facts that a reply under it may use."""

    text: str
    shop: Shop
    policies: frozenset[str]
    catalogue: tuple[Product, ...]
    routes: bool
    names_agent: bool = True


def no_system(shop: Shop) -> SystemPrompt:
    """A desk without a system prompt: nothing is told."""
    return SystemPrompt(
        text="", shop=shop, policies=frozenset(), catalogue=(), routes=False, names_agent=False
    )


def short_system(dice: Dice, shop: Shop) -> SystemPrompt:
    """Persona, tone and either a few policies or the routing table: about 60 to 120 tokens."""
    routes = dice.chance(0.3)
    told = dice.sample(sorted(shop.policies), dice.between(1, 2) if routes else dice.between(3, 6))
    lines = [_opening(dice, shop), *_manner(dice, shop)]
    lines += [_policy(dice, shop, key) for key in told]
    if routes:
        lines.append(_routing(dice, shop))
    return SystemPrompt(
        text=" ".join(lines), shop=shop, policies=frozenset(told), catalogue=(), routes=routes
    )


def long_system(dice: Dice, shop: Shop, policies: int) -> SystemPrompt:
    """Persona, so many policies, the routing table and the catalogue: up to about 850 tokens."""
    told = dice.sample(sorted(shop.policies), policies)
    city = shop.policies["pickup_city"]
    about = [line.format(city=city) for line in dice.sample(ABOUT, dice.between(2, 5))]
    rules = _manner(dice, shop) + [_policy(dice, shop, key) for key in told]
    parts = [
        " ".join([_opening(dice, shop), *about]),
        "Rules:\n" + "\n".join(f"- {rule}" for rule in dice.shuffled(rules)),
        _routing(dice, shop),
        _catalogue(dice, shop.catalogue),
    ]
    return SystemPrompt(
        text="\n".join(parts),
        shop=shop,
        policies=frozenset(told),
        catalogue=shop.catalogue,
        routes=True,
    )


def _opening(dice: Dice, shop: Shop) -> str:
    return dice.pick(OPENINGS).format(agent=shop.agent, company=shop.company, sector=shop.sector)


def _manner(dice: Dice, shop: Shop) -> list[str]:
    rules = [dice.pick(TONE_RULES[shop.tone])]
    if shop.quotes_reference:
        rules.append(dice.pick(REFERENCE_RULES))
    if shop.voucher_percent is not None:
        rules.append(dice.pick(VOUCHER_RULES).format(n=shop.voucher_percent))
    return rules


def _policy(dice: Dice, shop: Shop, key: str) -> str:
    return dice.pick(POLICY_RULES[key]).format(v=shop.policies[key])


def _routing(dice: Dice, shop: Shop) -> str:
    pairs = dice.shuffled(
        [f"{dice.pick(ROUTE_NOUNS[issue])} to {desk}" for issue, desk in shop.routing.items()]
    )
    return "Routing: " + ", ".join(pairs) + "."


def _catalogue(dice: Dice, products: tuple[Product, ...]) -> str:
    style = dice.below(3)
    if style == 0:
        cells = "name | code | price EUR | warranty months | kg | colour | stock | ships in days"
        head = f"Catalogue ({cells}):"
        return "\n".join([head, *(_row(product) for product in products)])
    lines = [_bullet(dice, product) if style == 1 else _sentence(product) for product in products]
    return "\n".join(["Catalogue:", *lines])


def _row(product: Product) -> str:
    cells = (
        product.name,
        product.code,
        money(product.price_cents),
        str(product.warranty_months),
        weight(product).removesuffix(" kg"),
        product.colour,
        str(product.stock),
        str(product.ships_days),
    )
    return " | ".join(cells)


def _bullet(dice: Dice, product: Product) -> str:
    facts = dice.shuffled(
        [
            f"{money(product.price_cents)} EUR",
            f"warranty {product.warranty_months} months",
            weight(product),
            product.colour,
            f"{product.stock} in stock",
            f"ships in {product.ships_days} days",
        ]
    )
    return f"- {product.name} ({product.code}): " + ", ".join(facts)


def _sentence(product: Product) -> str:
    return (
        f"The {product.colour} {product.name} ({product.code}) weighs {weight(product)}, "
        f"costs {money(product.price_cents)} EUR and has a warranty of "
        f"{product.warranty_months} months; {product.stock} are in stock, "
        f"shipping in {product.ships_days} days."
    )


def weight(product: Product) -> str:
    """``1800`` grams as ``1.8 kg``."""
    return f"{product.weight_grams // 1000}.{product.weight_grams % 1000 // 100} kg"
