"""A shop as the desk knows it: its agent, policies, routing table and catalogue."""

from __future__ import annotations

from dataclasses import dataclass

from lab.text.dice import Dice, Split, owned
from lab.text.words import (
    AGENTS,
    CITIES,
    COLOURS,
    COMPANY_HEADS,
    COMPANY_TAILS,
    DESKS,
    PRODUCT_KINDS,
    PRODUCT_LINES,
    SECTORS,
)

TONES = ("formal", "warm", "brief")
ISSUES = (
    "damaged",
    "late",
    "wrong_item",
    "missing_part",
    "invoice",
    "cancel",
    "address_change",
    "refund_status",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One catalogue entry. Money is in euro cents, weight in grams."""

    name: str
    code: str
    price_cents: int
    warranty_months: int
    weight_grams: int
    colour: str
    stock: int
    ships_days: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Shop:
    """One support desk. ``routing`` maps an issue to the desk that takes it."""

    company: str
    sector: str
    agent: str
    tone: str
    quotes_reference: bool
    voucher_percent: int | None
    policies: dict[str, str]
    routing: dict[str, str]
    catalogue: tuple[Product, ...]


def money(cents: int) -> str:
    """``1495`` as ``14.95``."""
    return f"{cents // 100}.{cents % 100:02d}"


def draw_price(dice: Dice) -> int:
    """A retail price in cents, mostly below 100 euro."""
    euros = dice.between(2, 99) if dice.chance(0.7) else dice.between(100, 480)
    return euros * 100 + dice.pick((0, 50, 90, 95, 99, dice.below(100)))


def draw_product(dice: Dice, split: Split) -> Product:
    """A product whose name and code belong to ``split``."""
    line, kind = owned(
        split,
        lambda: (dice.pick(PRODUCT_LINES), dice.pick(PRODUCT_KINDS)),
        " ".join,
    )
    return Product(
        name=f"{line} {kind}",
        code=f"{line[0]}{kind[0].upper()}-{dice.between(100, 999)}",
        price_cents=draw_price(dice),
        warranty_months=dice.pick((6, 12, 18, 24, 30, 36, 48, 60)),
        weight_grams=dice.between(2, 190) * 100,
        colour=dice.pick(COLOURS),
        stock=dice.between(2, 240),
        ships_days=dice.between(1, 14),
    )


def draw_catalogue(dice: Dice, split: Split, count: int) -> tuple[Product, ...]:
    """``count`` products with different names and codes."""
    found: dict[str, Product] = {}
    codes: set[str] = set()
    while len(found) < count:
        product = draw_product(dice, split)
        if product.name not in found and product.code not in codes:
            found[product.name] = product
            codes.add(product.code)
    return tuple(found.values())


def draw_policies(dice: Dice) -> dict[str, str]:
    """Every policy of a shop, as the value that a question about it expects."""
    opens = dice.between(6, 11)
    return {
        "refund_time": f"{dice.between(3, 21)} days",
        "return_window": f"{dice.pick((10, 14, 20, 21, 28, 30, 45, 60, 90))} days",
        "shipping_fee": f"{money(dice.between(2, 12) * 100 + dice.pick((0, 50, 90, 95)))} EUR",
        "free_shipping": f"{dice.between(3, 30) * 10} EUR",
        "opening_hours": f"{opens}:00 to {dice.between(opens + 6, 22)}:00",
        "phone": f"0{dice.between(200, 899)} {dice.between(10000, 99999)}",
        "escalation": dice.pick(AGENTS),
        "pickup_city": dice.pick(CITIES),
        "express_time": f"{dice.between(12, 72)} hours",
        "gift_wrap": f"{money(dice.between(1, 6) * 100 + dice.pick((0, 50, 80)))} EUR",
        "loyalty": f"{dice.between(2, 40)} points",
        "invoice_copies": f"{dice.between(2, 12)} years",
        "claim_limit": f"{dice.between(2, 14)} days",
        "order_limit": f"{dice.between(4, 60)} items",
    }


def draw_shop(dice: Dice, split: Split, *, products: int) -> Shop:
    """A shop with everything filled in; the system prompt decides what of it is told."""
    head, tail = owned(
        split,
        lambda: (dice.pick(COMPANY_HEADS), dice.pick(COMPANY_TAILS)),
        " ".join,
    )
    desks = dice.sample(DESKS, len(ISSUES))
    return Shop(
        company=f"{head} {tail}",
        sector=dice.pick(SECTORS),
        agent=dice.pick(AGENTS),
        tone=dice.pick(TONES),
        quotes_reference=dice.chance(0.5),
        voucher_percent=dice.between(1, 8) * 5 if dice.chance(0.5) else None,
        policies=draw_policies(dice),
        routing=dict(zip(ISSUES, desks, strict=True)),
        catalogue=draw_catalogue(dice, split, products),
    )
