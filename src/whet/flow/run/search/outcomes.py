"""What came of each configuration of a search, and what that says of its changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from whet.core.load import Load
from whet.core.records.search import Standing, Worth
from whet.flow.run.search.changes import Value
from whet.flow.run.search.values import changes, key_of, neighbours

ALIKE: Final = 1.02
"""Cost ratio of two single starts that is not taken for a difference: the fewer changes win."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One configuration that was tried.

    ``usd`` is the cost of its cheapest cell that meets the limits by its figures, in the unit that
    the decision ranks by; None where none does. ``load`` is that cell's, ``in_flight`` the requests
    in flight there, ``limit`` what limits it, ``accepted`` the share of drafts that were accepted.
    ``failed`` says why it has no figures, ``answers`` what the gate said. ``lowest_usd`` is the
    cheapest cell's whatever the limits, and ``missed`` the latencies there that miss one.
    """

    name: str
    value: Value
    move: str | None = None
    base: str | None = None
    usd: float | None = None
    load: Load | None = None
    in_flight: float = 1.0
    limit: str | None = None
    accepted: float | None = None
    lowest_usd: float | None = None
    missed: frozenset[str] = frozenset()
    failed: str | None = None
    answers: Literal["pass", "fail"] | None = None

    @property
    def counts(self) -> bool:
        """Whether it may be what the search ends with."""
        return self.usd is not None and self.answers != "fail"


def incumbent(history: Sequence[Outcome]) -> Outcome | None:
    """Return the configuration to go on from: the cheapest, of those alike the least changed.

    Weights that failed the gate by themselves fail with drafts, too.
    """
    wrong = {
        each.value.get("weights")
        for each in history
        if each.answers == "fail" and "speculation" not in each.value
    }
    counted = [
        each
        for each in history
        if each.counts and (each.answers == "pass" or each.value.get("weights") not in wrong)
    ]
    if not counted:
        return None
    cheapest = min(each.usd for each in counted if each.usd is not None)
    alike = [each for each in counted if each.usd is not None and each.usd <= cheapest * ALIKE]
    root = history[0].value
    return min(alike, key=lambda each: (len(changes(each.value, root)), each.usd))


def worths(best: Outcome, history: Sequence[Outcome]) -> tuple[Worth, ...]:
    """Return what each change of ``best`` is worth, from neighbours that were measured."""
    result = []
    for change, value in neighbours(best.value, history[0].value):
        without = find(value, history)
        name = None if without is None else without.name
        result.append(Worth(change=change, without=name, ratio=_ratio(without, best)))
    return tuple(result)


def _ratio(dearer: Outcome | None, cheaper: Outcome) -> float | None:
    """Cost of one ÷ cost of the other; None where one has none."""
    if dearer is None or dearer.usd is None or not cheaper.usd:
        return None
    return dearer.usd / cheaper.usd


def standing(outcome: Outcome, history: Sequence[Outcome]) -> tuple[Standing, float | None]:
    """Return what became of a configuration, and its base's cost ÷ its own."""
    base = next((each for each in history if each.name == outcome.base), None)
    ratio = _ratio(base, outcome)
    if outcome.failed is not None:
        return "failed", None
    if outcome.answers == "fail":
        return "wrong answers", ratio
    if outcome.usd is None:
        return "misses", None
    if outcome.base is None:
        return "start", None
    if ratio is None or ratio > ALIKE:
        return "adopted", ratio
    return ("not separated", ratio) if ratio >= 1 / ALIKE else ("worse", ratio)


def find(value: Value, history: Sequence[Outcome]) -> Outcome | None:
    """Return the outcome of a configuration; None where it was not tried."""
    wanted = key_of(value)
    return next((each for each in history if key_of(each.value) == wanted), None)
