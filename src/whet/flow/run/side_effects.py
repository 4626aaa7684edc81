"""What each lever of a run drags along, told against a variant that lacks it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whet.core.flags import drop_kv_sizing
from whet.core.records import CellSummary, LeverCost, TrialNotices
from whet.flow.run.results import Kept
from whet.flow.run.schedule import every_start
from whet.levers import labels, lever_diff
from whet.levers.side_effects import Observed, side_effects_of


def lever_costs(kept: Kept, cells: tuple[CellSummary, ...]) -> tuple[LeverCost, ...]:
    """The costs of every variant against its nearest reference.

    The reference is the measured variant whose levers, but for the size of its KV pool, are a part
    of its own and that differs in the fewest, the baseline or else the first of equals; a variant
    of which nothing is a part is held against the baseline.
    """
    seen = {item.variant: item for item in _observed(kept, cells)}
    found: list[LeverCost] = []
    for name, mine in seen.items():
        reference = _nearest(kept, name, list(seen))
        if reference is not None:
            own = lever_diff(kept.resolved[name].variant, kept.resolved[reference].variant)
            found += side_effects_of(mine, seen[reference], sorted(own))
    return tuple(found)


def _observed(kept: Kept, cells: tuple[CellSummary, ...]) -> Iterator[Observed]:
    notices = list(kept.store.all("notices", TrialNotices))
    for name in kept.resolved:
        starts = every_start(kept.store, name)
        if starts:
            yield Observed(
                variant=name,
                facts=starts[0][0],
                trials=[item for item in notices if item.variant == name],
                cells=[cell for cell in cells if cell.variant == name],
            )


def _nearest(kept: Kept, name: str, seen: Sequence[str]) -> str | None:
    baseline = kept.spec.baseline
    whole = {other: drop_kv_sizing(labels(kept.resolved[other].variant)) for other in seen}
    plain = f"weights={kept.resolved[baseline].variant.weights}"
    mine = whole[name] - {plain}
    parts = {
        other: len(mine - found)
        for other, found in whole.items()
        if other != name and (found - {plain}) < mine
    }
    if parts:
        return min(parts, key=lambda other: (parts[other], other != baseline))
    return baseline if baseline in seen and name != baseline else None
