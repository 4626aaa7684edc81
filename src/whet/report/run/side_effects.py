"""Side effects of each lever, relative to the closest variant without it."""

from __future__ import annotations

from whet.core.records.evidence import LeverCost
from whet.core.redact import one_line
from whet.core.run import Run
from whet.report.document import Paragraph, Section, table

ORDER = 70
_HEADS = ("config", "compared with", "side effect", "in the engine's words", "concurrency")


def build(run: Run) -> Section | None:
    """The same side effect at several concurrencies is one line."""
    effects: dict[tuple[str, str, str], list[LeverCost]] = {}
    for cost in run.costs:
        effects.setdefault((cost.variant, cost.reference, cost.what), []).append(cost)
    if not effects:
        return None
    words = (
        "What a configuration has that the closest variant without the lever does not have. It is "
        "part of the lever's price, and the figures above contain it."
    )
    return Section(
        id="side-effects",
        title="Side effects of levers",
        group="Speed",
        nodes=[
            Paragraph(text=words, tone="muted"),
            table("Side effects", _HEADS, map(_row, effects.values())),
        ],
    )


def _row(costs: list[LeverCost]) -> tuple[str, ...]:
    ordered = sorted(costs, key=lambda cost: cost.load.value if cost.load else 0)
    sizes = {cost.load: None for cost in ordered}
    details = dict.fromkeys(one_line(cost.detail) for cost in ordered)
    first = ordered[0]
    at = "all" if None in sizes else ", ".join(map(str, sizes))
    return first.variant, first.reference, first.what, "; ".join(details), at
