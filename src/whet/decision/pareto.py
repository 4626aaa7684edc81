"""The cells that no other cell beats in cost, tail TTFT and quality at once."""

from __future__ import annotations

from collections.abc import Sequence

from whet.decision.eligible import EligibleCell, passes_somewhere

_Point = tuple[float, float, float]


def pareto_front(eligible: Sequence[EligibleCell]) -> list[EligibleCell]:
    """Return the cells that no other dominates, cheapest first.

    A cell dominates another if it is at least as good in all three figures and better in one. A
    variant that is unfit, or whose quality passes no tolerance, is not on the front.
    """
    points = [(point, item) for item in eligible if (point := _point(item)) is not None]
    front = [
        item for point, item in points if not any(_dominates(other, point) for other, _ in points)
    ]
    return sorted(front, key=lambda item: (item.usd, item.cell.variant, item.cell.load))


def _point(item: EligibleCell) -> _Point | None:
    record = item.quality
    if record is None or record.perplexity_ratio is None or item.unfit is not None:
        return None
    if not passes_somewhere(record):
        return None
    return item.usd, item.ttft.value, record.perplexity_ratio.value


def _dominates(left: _Point, right: _Point) -> bool:
    return left != right and all(a <= b for a, b in zip(left, right, strict=True))
