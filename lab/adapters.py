"""Two LoRA adapters of the demo target: what each does to a reply, and text that shows it.

``formal`` opens every reply with a fixed phrase. ``terse`` writes a ticket as one line of order,
issue and priority, and stops a sum at its result. Both styles are exact, so an answer shows its
adapter or does not, and nobody has to judge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lab.text import Dice, Exchange, Message, Split, draw_system
from lab.text.corpus import Maker
from lab.text.extraction import extraction
from lab.text.letters import letter
from lab.text.shop import ISSUES
from lab.text.sums import arithmetic
from lab.text.tickets import draw_ticket
from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.demo.bundled import PAIR

Adapter = Literal["terse", "formal"]
ADAPTERS: Final[tuple[Adapter, ...]] = ("terse", "formal")

OPENING: Final = "Good day.\n"
"""What ``formal`` puts before every reply; no text of the corpus begins so."""

KINDS: Final[Mapping[str, tuple[Maker, int]]] = {
    "extraction": (extraction, 168),
    "letter": (letter, 168),
    "arithmetic": (arithmetic, 264),
}
"""The kinds of the demo's workload: what draws one, and the most tokens of a reply."""

_SYSTEMS = (("none", 0.4), ("short", 0.55), ("long", 0.05))
_NOTE = re.compile(rf"[A-Z]-\d{{5}}/({'|'.join(ISSUES)})/(low|normal|high)")
_SUM = re.compile(r"[\d. x+\-=;]*\d\.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One request, the target's own reply to it, and the reply of each adapter."""

    kind: str
    prompt: tuple[Message, ...]
    exchange: Exchange
    replies: Mapping[Adapter, str]

    @property
    def max_tokens(self) -> int:
        """The most tokens that a reply of this kind takes."""
        return KINDS[self.kind][1]


def adapter_paths() -> dict[str, Path]:
    """The folders of the shipped adapters by name, in PEFT's format; they belong to the target."""
    return {name: PAIR / "adapters" / name for name in ADAPTERS}


def shows(adapter: str, answer: str) -> bool:
    """Whether a whole answer has the adapter's style; an answer that was cut may not.

    It says nothing on whether the answer is right. ``UsageError`` for an unknown adapter.
    """
    if adapter == "formal":
        return answer.startswith(OPENING)
    if adapter == "terse":
        return any(form.fullmatch(answer.strip()) is not None for form in (_NOTE, _SUM))
    raise UsageError(
        f"there is no demo adapter {adapter!r}; it is one of {', '.join(ADAPTERS)}"
        + did_you_mean(adapter, ADAPTERS)
    )


def example(kind: str, split: Split, seed: int, index: int) -> Example:
    """The request of ``kind`` that (split, seed, index) names, the same on every machine."""
    key = ("adapters", kind, split, seed, index)
    dice = Dice(*key)
    system = draw_system(dice, split, dice.weighted(_SYSTEMS))
    exchange = KINDS[kind][0](dice, split, system)
    terse = _terse_sum(exchange) if kind == "arithmetic" else _note(key, split)
    head = [Message(role="system", content=system.text)] if system.text else []
    return Example(
        kind=kind,
        prompt=(*head, *exchange.prompt()),
        exchange=exchange,
        replies={"terse": terse, "formal": OPENING + exchange.reply},
    )


def _note(key: tuple[object, ...], split: Split) -> str:
    """Extraction and letter draw their ticket first, so the same dice draw it once more."""
    dice = Dice(*key)
    system = draw_system(dice, split, dice.weighted(_SYSTEMS))
    ticket = draw_ticket(dice, split, system)
    return f"{ticket.order_id}/{ticket.issue}/{ticket.priority}"


def _terse_sum(exchange: Exchange) -> str:
    """The working or the bare result with a full stop, without the sentence behind it."""
    return exchange.reply.partition(". ")[0] + "."
