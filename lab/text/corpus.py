"""The corpus: chats of many desks, one drawn from each (split, seed, index)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lab.text.dialogue import Document, Exchange
from lab.text.dice import Dice, Split
from lab.text.extraction import extraction
from lab.text.letters import letter
from lab.text.orders import correction
from lab.text.questions import catalogue_question, policy_question, routing
from lab.text.shop import draw_shop
from lab.text.sums import arithmetic
from lab.text.system import SystemPrompt, long_system, no_system, short_system

Maker = Callable[[Dice, Split, SystemPrompt], Exchange]

_MIX: tuple[tuple[str, float], ...] = (
    ("json", 0.2),
    ("sum", 0.2),
    ("letter", 0.12),
    ("fact", 0.3),
    ("policy", 0.1),
    ("route", 0.13),
    ("order", 0.05),
)


LONGEST_CHARS = {"none": 900, "short": 1100, "medium": 2300, "long": 4300}
"""Where a chat stops growing: about 300, 400, 900 and 1500 tokens."""

POLICIES_TOLD = {"medium": (2, 4), "long": (9, 13)}


def documents(seed: int, count: int, split: Split) -> Iterator[Document]:
    """``count`` chats. The same seed and split give the same chats everywhere.

    Held-out chats use names, products, order numbers, companies and operands that no training chat
    holds, whatever its seed.
    """
    for index in range(count):
        yield document(Dice(split, seed, index), split)


def document(dice: Dice, split: Split) -> Document:
    """One chat: no system prompt or one of three sizes, and one or more exchanges under it."""
    size = dice.weighted((("none", 0.08), ("short", 0.32), ("medium", 0.25), ("long", 0.35)))
    system = draw_system(dice, split, size)
    exchanges: list[Exchange] = []
    chars = len(system.text)
    for _ in range(dice.between(1, 14 if system.catalogue else 5)):
        exchanges.append(draw_exchange(dice, split, system))
        chars += sum(len(message.content) for message in exchanges[-1].messages())
        if chars > LONGEST_CHARS[size]:
            break
    return Document(system=system.text or None, exchanges=tuple(exchanges))


def draw_system(dice: Dice, split: Split, size: str) -> SystemPrompt:
    """A system prompt of a fresh shop; ``size`` is none, short, medium or long."""
    products = {"medium": (2, 4), "long": (7, 10)}.get(size, (0, 0))
    shop = draw_shop(dice, split, products=dice.between(*products))
    if size in POLICIES_TOLD:
        return long_system(dice, shop, dice.between(*POLICIES_TOLD[size]))
    return short_system(dice, shop) if size == "short" else no_system(shop)


def draw_exchange(dice: Dice, split: Split, system: SystemPrompt) -> Exchange:
    """An exchange that the system prompt allows."""
    kind = dice.weighted(_MIX)
    if kind == "fact" and system.catalogue:
        return catalogue_question(dice, split, system)
    if kind == "route" and system.routes:
        return routing(dice, split, system)
    if kind in ("policy", "fact") and system.policies:
        return policy_question(dice, system)
    makers: dict[str, Maker] = {"sum": arithmetic, "letter": letter, "order": correction}
    return makers.get(kind, extraction)(dice, split, system)
