"""What a long system prompt answers: facts of the catalogue, policies, comparisons, desks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lab.text.dialogue import Exchange
from lab.text.dice import Dice, Split
from lab.text.shop import Product, draw_product, money
from lab.text.system import SystemPrompt, weight
from lab.text.tickets import draw_ticket

NOT_LISTED = "not listed"
NOT_SAID = "The guidelines do not say."

HINTS = ("", " Just the value, please.", " Answer in a word or two.", " Short answer, please.", "")
POLICY_QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "refund_time": ("How long does a refund take?", "When will a refund be paid?"),
    "return_window": ("How long can I return goods?", "What is the return window?"),
    "shipping_fee": ("What does standard shipping cost?", "How much is shipping?"),
    "free_shipping": ("From which amount is shipping free?", "What must I spend to ship free?"),
    "opening_hours": ("When is the desk open?", "What are the opening hours?"),
    "phone": ("Which number can I call?", "What is the phone line?"),
    "escalation": ("Who takes hard cases?", "Who handles a case that is stuck?"),
    "pickup_city": ("Where can I pick up an order?", "Which city has the pickup point?"),
    "express_time": ("How long does express delivery take?", "How fast is express?"),
    "gift_wrap": ("What does gift wrap cost?", "How much is it to wrap a gift?"),
    "loyalty": ("How many points does an order earn?", "What do I collect with an order?"),
    "invoice_copies": ("How long are invoice copies kept?", "For how long do you store invoices?"),
    "claim_limit": ("Until when must damage be reported?", "How long can I claim damage?"),
    "order_limit": ("How much may one order hold?", "What is the limit of one order?"),
}
ROUTE_REQUESTS = (
    "Which desk takes this ticket?",
    "Route this ticket.",
    "Name the desk for this ticket.",
    "Who should get this ticket?",
)
_ATTRIBUTES: tuple[tuple[Callable[[Product], str], tuple[str, ...]], ...] = (
    (
        lambda product: f"{money(product.price_cents)} EUR",
        ("What does the {p} cost?", "How much is the {p}?", "What is the price of the {p}?"),
    ),
    (
        lambda product: f"{product.warranty_months} months",
        ("How long is the warranty of the {p}?", "What warranty does the {p} have?"),
    ),
    (weight, ("How heavy is the {p}?", "What does the {p} weigh?")),
    (
        lambda product: product.colour,
        ("In which colour does the {p} come?", "What colour is the {p}?"),
    ),
    (
        lambda product: str(product.stock),
        ("How many of the {p} are in stock?", "What stock is left of the {p}?"),
    ),
    (
        lambda product: f"{product.ships_days} days",
        ("When does the {p} ship?", "How many days until the {p} ships?"),
    ),
    (lambda product: product.code, ("What is the code of the {p}?", "Which code has the {p}?")),
)
_COMPARISONS: tuple[tuple[Callable[[Product], int], bool, tuple[str, ...]], ...] = (
    (lambda product: product.price_cents, False, ("Which is cheaper, the {a} or the {b}?",)),
    (lambda product: product.price_cents, True, ("Which costs more, the {a} or the {b}?",)),
    (lambda product: product.weight_grams, True, ("Which is heavier, the {a} or the {b}?",)),
    (
        lambda product: product.warranty_months,
        True,
        ("Which has the longer warranty, the {a} or the {b}?",),
    ),
    (lambda product: product.ships_days, False, ("Which ships sooner, the {a} or the {b}?",)),
)


def catalogue_question(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """A question about one or two products of the prompt's catalogue."""
    kind = dice.below(20)
    if kind == 0:
        return _unlisted(dice, split, system)
    if kind < 5:
        return _comparison(dice, system)
    product = dice.pick(system.catalogue)
    if kind < 8:
        question = dice.pick(("Which product has the code {c}?", "What is {c}?")).format(
            c=product.code
        )
        return _recall(question, product.name)
    read, questions = dice.pick(_ATTRIBUTES)
    label = product.code if dice.chance(0.25) and read(product) != product.code else product.name
    return _recall(dice.pick(questions).format(p=label) + dice.pick(HINTS), read(product))


def policy_question(dice: Dice, system: SystemPrompt) -> Exchange:
    """A question about a policy; one in ten asks for one that the prompt does not tell."""
    told = sorted(system.policies)
    untold = sorted(set(POLICY_QUESTIONS) - system.policies)
    key = dice.pick(untold) if untold and (not told or dice.chance(0.1)) else dice.pick(told)
    answer = system.shop.policies[key] if key in system.policies else NOT_SAID
    return _recall(dice.pick(POLICY_QUESTIONS[key]) + dice.pick(HINTS), answer)


def routing(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """A ticket whose issue decides the desk; the reply is the desk's name."""
    ticket = draw_ticket(dice, split, system)
    desk = system.shop.routing[ticket.issue]
    body = f"{dice.pick(ROUTE_REQUESTS)}\nTicket: {ticket.text}"
    return Exchange(task="routing", user=body, reply=desk, scorer="exact", expected=desk)


def _unlisted(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    names = {product.name for product in system.catalogue}
    stranger = draw_product(dice, split)
    while stranger.name in names:
        stranger = draw_product(dice, split)
    _, questions = dice.pick(_ATTRIBUTES)
    return _recall(dice.pick(questions).format(p=stranger.name), NOT_LISTED)


def _comparison(dice: Dice, system: SystemPrompt) -> Exchange:
    while True:
        read, highest, questions = dice.pick(_COMPARISONS)
        first, second = dice.sample(system.catalogue, 2)
        if read(first) != read(second):
            break
    winner = max(first, second, key=read) if highest else min(first, second, key=read)
    question = dice.pick(questions).format(a=first.name, b=second.name)
    return _recall(question, winner.name)


def _recall(question: str, answer: str) -> Exchange:
    return Exchange(task="recall", user=question, reply=answer, scorer="exact", expected=answer)
