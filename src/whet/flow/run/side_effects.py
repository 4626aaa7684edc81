"""What each lever of a run drags along, told against a variant that lacks it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whet.core.flags import drop_kv_sizing
from whet.core.records import CellSummary, LeverCost
from whet.core.run import Run
from whet.flow.run.schedule import every_start
from whet.levers import labels, lever_diff
from whet.levers.side_effects import Observed, side_effects_of


def lever_costs(run: Run, cells: tuple[CellSummary, ...]) -> tuple[LeverCost, ...]:
    """The costs of every variant against its nearest reference.

    The reference is the measured variant whose levers, but for the size of its KV pool, are a part
    of its own and that differs in the fewest, the baseline or else the first of equals; a variant
    of which nothing is a part is held against the baseline.
    """
    seen = {item.variant: item for item in _observed(run, cells)}
    found: list[LeverCost] = []
    for name, mine in seen.items():
        reference = _nearest(run, name, list(seen))
        if reference is not None:
            own = lever_diff(run.engines[name].variant, run.engines[reference].variant)
            found += side_effects_of(mine, seen[reference], sorted(own))
    return tuple(found)


def _observed(run: Run, cells: tuple[CellSummary, ...]) -> Iterator[Observed]:
    for name in run.engines:
        starts = every_start(run.store, name)
        if starts:
            yield Observed(
                variant=name,
                facts=starts[0][0],
                trials=[item for item in run.notices if item.variant == name],
                cells=[cell for cell in cells if cell.variant == name],
            )


def _nearest(run: Run, name: str, seen: Sequence[str]) -> str | None:
    baseline = run.require_spec().baseline
    whole = {other: drop_kv_sizing(labels(run.engines[other].variant)) for other in seen}
    plain = f"weights={run.engines[baseline].variant.weights}"
    mine = whole[name] - {plain}
    parts = {
        other: len(mine - found)
        for other, found in whole.items()
        if other != name and (found - {plain}) < mine
    }
    if parts:
        return min(parts, key=lambda other: (parts[other], other != baseline))
    return baseline if baseline in seen and name != baseline else None
