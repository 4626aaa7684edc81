"""Side effects of each lever of a run, against a variant that lacks it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whet.core.flags import drop_kv_sizing
from whet.core.records.evidence import LeverCost
from whet.core.records.summary import CellSummary
from whet.core.run import Run
from whet.core.starts import every_start
from whet.levers import labels, lever_diff
from whet.levers.side_effects import Observed, side_effects_of


def lever_costs(run: Run, cells: tuple[CellSummary, ...]) -> tuple[LeverCost, ...]:
    """Return the costs of every variant against its nearest reference.

    The reference is the measured variant with the largest proper subset of its levers, the size of
    the KV pool aside; among equals the baseline, then the first. A variant without such a reference
    is compared with the baseline.
    """
    observed = {item.variant: item for item in _observed(run, cells)}
    costs: list[LeverCost] = []
    for name, mine in observed.items():
        reference = _nearest(run, name, list(observed))
        if reference is not None:
            own = lever_diff(run.engines[name].variant, run.engines[reference].variant)
            costs += side_effects_of(mine, observed[reference], sorted(own))
    return tuple(costs)


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


def _nearest(run: Run, name: str, names: Sequence[str]) -> str | None:
    baseline = run.require_spec().baseline
    whole = {other: drop_kv_sizing(labels(run.engines[other].variant)) for other in names}
    plain = f"weights={run.engines[baseline].variant.weights_label}"
    mine = whole[name] - {plain}
    parts = {
        other: len(mine - levers)
        for other, levers in whole.items()
        if other != name and (levers - {plain}) < mine
    }
    if parts:
        return min(parts, key=lambda other: (parts[other], other != baseline))
    return baseline if baseline in names and name != baseline else None
