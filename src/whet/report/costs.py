"""What each lever drags along, as lines for every form of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.records import LeverCost
from whet.report.text import one_line
from whet.report.view import RunView

COST_HEADS: Final = ("config", "against", "what came along", "in the engine's words", "batch size")
COSTS_NOTE: Final = (
    "What a configuration has that its nearest relation, with fewer levers pulled, has not. "
    "It is part of the lever's price, and the figures above contain it."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CostLine:
    """One cost of a variant; ``sizes`` is empty where it holds for the whole server.

    ``detail`` has everything that was said of it, in the order of the batch sizes.
    """

    variant: str
    reference: str
    what: str
    detail: str
    sizes: str


def cost_lines(view: RunView) -> tuple[CostLine, ...]:
    """The same cost at several batch sizes is one line; none where the run stored no costs."""
    found: dict[tuple[str, str, str], list[LeverCost]] = {}
    for cost in view.costs:
        found.setdefault((cost.variant, cost.reference, cost.what), []).append(cost)
    return tuple(
        _line(sorted(costs, key=lambda cost: cost.batch_size or 0)) for costs in found.values()
    )


def _line(costs: Sequence[LeverCost]) -> CostLine:
    sizes = {cost.batch_size: None for cost in costs}
    details = dict.fromkeys(one_line(cost.detail) for cost in costs)
    return CostLine(
        variant=costs[0].variant,
        reference=costs[0].reference,
        what=costs[0].what,
        detail="; ".join(details),
        sizes="" if None in sizes else ", ".join(map(str, sizes)),
    )


def cost_sentences(view: RunView) -> tuple[str, ...]:
    """A sentence a pair: ``awq+spec over awq comes with asynchronous scheduling off, …``."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in cost_lines(view):
        at = f" at {line.sizes}" if line.sizes else ""
        found.setdefault((line.variant, line.reference), []).append(f"{line.what}{at}")
    return tuple(
        f"{variant} over {reference} comes with {', '.join(words)}"
        for (variant, reference), words in found.items()
    )
