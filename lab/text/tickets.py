"""Customer tickets in free wording, and the facts that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lab.text.dice import Dice, Split, owned
from lab.text.shop import ISSUES, draw_product
from lab.text.system import SystemPrompt
from lab.text.words import CITIES, FIRST_NAMES, LAST_NAMES, MAIL_HOSTS, NUMBER_WORDS

ISSUE_LINES: Mapping[str, tuple[str, ...]] = {
    "damaged": (
        "The {p} arrived with a deep crack.",
        "When I opened the box, the {p} was in pieces.",
        "Sadly the {p} has a dent and does not work.",
        "The {p} is broken on one side.",
        "Something must have hit the parcel, the {p} is bent.",
    ),
    "late": (
        "The {p} should have been here last week.",
        "I am still waiting for the {p}.",
        "Tracking for the {p} has not moved in days.",
        "The parcel with the {p} has not shown up.",
        "Nobody can tell me where the {p} is.",
    ),
    "wrong_item": (
        "Instead of the {p} I got something else.",
        "The box did not hold the {p} but another article.",
        "You sent me the wrong model of the {p}.",
        "I unpacked a stranger's article, not the {p}.",
        "The {p} I received is not the one I chose.",
    ),
    "missing_part": (
        "The screws for the {p} were not in the box.",
        "One part of the {p} is missing.",
        "The {p} came without its manual and cable.",
        "I cannot build the {p}, a piece is not there.",
        "The {p} is incomplete.",
    ),
    "invoice": (
        "The bill for the {p} shows the wrong amount.",
        "I need a corrected invoice for the {p}.",
        "You charged me twice for the {p}.",
        "My accountant asks for the invoice of the {p}.",
        "The tax on the bill for the {p} is wrong.",
    ),
    "cancel": (
        "I no longer need the {p}.",
        "Please stop the order of the {p}.",
        "I would like to call off the {p}.",
        "Do not send the {p}, I changed my mind.",
        "The {p} can be taken off my list, I found one elsewhere.",
    ),
    "address_change": (
        "The {p} must go to another address.",
        "I have moved, please send the {p} to my new home.",
        "The street on the label of the {p} is out of date.",
        "Can the {p} be delivered to my office instead?",
        "I typed the wrong street when I ordered the {p}.",
    ),
    "refund_status": (
        "I sent the {p} back and have not seen my money.",
        "When will I be paid back for the {p}?",
        "The {p} went back to you long ago, the amount is still open.",
        "My account shows nothing for the returned {p}.",
        "You confirmed the return of the {p}, but no money came.",
    ),
}
WISHES: Mapping[str, tuple[str, ...]] = {
    "refund": (
        "I want my money back.",
        "Please refund me.",
        "I would rather have the amount returned.",
    ),
    "replacement": (
        "Please send a new one.",
        "I would like a replacement.",
        "Can I get another one?",
    ),
    "call_back": ("Please call me.", "I would like to talk to somebody.", "Could you ring me?"),
    "information": (
        "Please tell me what happens next.",
        "Let me know how this goes on.",
        "Keep me posted.",
    ),
}
PRIORITIES: Mapping[str, tuple[str, ...]] = {
    "high": (
        "I need it by Friday.",
        "This is the third time I write.",
        "It is a birthday present for tomorrow.",
        "If nothing happens today I will call a lawyer.",
        "We open our cafe on Monday and depend on it.",
    ),
    "low": (
        "There is no hurry.",
        "Take your time.",
        "It can wait until next month.",
        "No rush at all.",
    ),
}
PAST_ORDERS = (
    "My earlier order {o} went fine.",
    "With order {o} everything was all right.",
    "This is not about {o}, which came on time.",
)
ORDER_LINES = (
    "My order is {o}.",
    "Order number {o}.",
    "It is about order {o}.",
    "The order has the number {o}.",
    "You will find it under {o}.",
)
BOUGHT_LINES = (
    "I ordered {i}.",
    "I bought {i} from you.",
    "My parcel should hold {i}.",
    "The order was {i}.",
)
NAME_LINES = ("My name is {n}.", "I am {n}.", "{n} here.", "This is {n}.")
CITY_LINES = (
    "I live in {c}.",
    "I write from {c}.",
    "The parcel goes to {c}.",
    "Delivery is to {c}.",
)
MAIL_LINES = ("My mail is {m}.", "You can write to {m}.", "Reach me at {m}.")
HELLOS = ("Hello,", "Hi,", "Good morning,", "Dear team,", "")
BYES = ("Thanks, {n}", "Regards, {n}", "Best wishes, {n}", "{n}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A product and how many of it."""

    product: str
    qty: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """A ticket's wording and what it says; ``None`` where it says nothing.

    ``subject`` is the product that the complaint is about.
    """

    text: str
    name: str
    email: str | None
    city: str | None
    order_id: str
    items: tuple[Item, ...]
    subject: str
    issue: str
    priority: str
    wish: str | None


def draw_name(dice: Dice, split: Split) -> str:
    """A full name of the split."""
    return owned(split, lambda: f"{dice.pick(FIRST_NAMES)} {dice.pick(LAST_NAMES)}")


def draw_order_id(dice: Dice, split: Split) -> str:
    """An order number of the split, such as ``R-48213``."""
    return owned(split, lambda: f"{dice.pick('ABKMRT')}-{dice.between(10000, 99999)}")


def draw_items(dice: Dice, split: Split, system: SystemPrompt, count: int) -> tuple[Item, ...]:
    """Different products, from the prompt's catalogue in three cases of five."""
    names: list[str] = []
    while len(names) < count:
        listed = system.catalogue and dice.chance(0.6)
        product = dice.pick(system.catalogue) if listed else draw_product(dice, split)
        if product.name not in names:
            names.append(product.name)
    return tuple(Item(product=name, qty=_quantity(dice)) for name in names)


def spell_item(dice: Dice, item: Item) -> str:
    """``Item(product="Alder kettle", qty=2)`` as "two Alder kettles", or with a digit."""
    if item.qty == 1:
        return f"{dice.pick(('one', 'a single', '1'))} {item.product}"
    words = [str(item.qty), f"{item.qty}"]
    if item.qty < len(NUMBER_WORDS):
        words.append(NUMBER_WORDS[item.qty])
    if item.qty == 2:
        words.append("a pair of")
    if item.qty == 12:
        words.append("a dozen")
    return f"{dice.pick(words)} {item.product}s"


def spell_items(dice: Dice, items: Sequence[Item]) -> str:
    """Items as an English list."""
    spelled = [spell_item(dice, item) for item in items]
    return spelled[0] if len(spelled) == 1 else ", ".join(spelled[:-1]) + " and " + spelled[-1]


def draw_ticket(dice: Dice, split: Split, system: SystemPrompt) -> Ticket:
    """A ticket whose names, order number and products belong to the split."""
    name = draw_name(dice, split)
    items = draw_items(dice, split, system, dice.weighted(((1, 0.45), (2, 0.35), (3, 0.2))))
    priority = dice.weighted((("normal", 0.5), ("high", 0.3), ("low", 0.2)))
    facts = Ticket(
        text="",
        name=name,
        email=_mail(dice, name) if dice.chance(0.4) else None,
        city=dice.pick(CITIES) if dice.chance(0.45) else None,
        order_id=draw_order_id(dice, split),
        items=items,
        subject=dice.pick(items).product,
        issue=dice.pick(ISSUES),
        priority=priority,
        wish=dice.pick(tuple(WISHES)) if dice.chance(0.55) else None,
    )
    return replace(facts, text=_write(dice, split, facts))


def _quantity(dice: Dice) -> int:
    return 1 if dice.chance(0.35) else dice.between(2, 12)


def _mail(dice: Dice, name: str) -> str:
    first, last = name.lower().split()
    local = dice.pick(
        (f"{first}.{last}", f"{first[0]}.{last}", f"{last}{dice.between(1, 99)}", f"{first}_{last}")
    )
    return f"{local}@{dice.pick(MAIL_HOSTS)}"


def _write(dice: Dice, split: Split, facts: Ticket) -> str:
    middle = [
        dice.pick(ORDER_LINES).format(o=facts.order_id),
        dice.pick(BOUGHT_LINES).format(i=spell_items(dice, facts.items)),
        dice.pick(ISSUE_LINES[facts.issue]).format(p=facts.subject),
    ]
    if facts.city:
        middle.append(dice.pick(CITY_LINES).format(c=facts.city))
    if facts.email:
        middle.append(dice.pick(MAIL_LINES).format(m=facts.email))
    if facts.priority in PRIORITIES:
        middle.append(dice.pick(PRIORITIES[facts.priority]))
    if dice.chance(0.25):
        middle.append(dice.pick(PAST_ORDERS).format(o=draw_order_id(dice, split)))
    middle = dice.shuffled(middle)
    if facts.wish:
        middle.append(dice.pick(WISHES[facts.wish]))
    if dice.chance(0.5):
        lines = [dice.pick(HELLOS), dice.pick(NAME_LINES).format(n=facts.name), *middle]
    else:
        lines = [dice.pick(HELLOS), *middle, dice.pick(BYES).format(n=facts.name)]
    return " ".join(line for line in lines if line)
