"""The speculation map of a run: by load and K, the acceptance length above which it pays.

Made of variants with ``synthetic_acceptance``, the variant with the draft as it is, and the
variant without speculation, all three otherwise identical.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from whet.core.counters import ACCEPTED, DRAFTS
from whet.core.load_point import LoadPoint
from whet.core.records import CellSummary, Difference, Estimate, Speculation, Variant
from whet.core.records.engine import SYNTHETIC_LENGTH
from whet.core.records.evidence import SUFFICIENT
from whet.core.records.speculation_map import (
    AcceptanceLevel,
    Pays,
    SpeculationMap,
    SpeculationPoint,
)
from whet.core.run import Run
from whet.decision.speculation_fit import Measured, fit_speculation
from whet.flow.run.conclude.results import RunSummary
from whet.levers.counters import counter_change

_SYNTHETIC_KEYS = ("rejection_sample_method", SYNTHETIC_LENGTH)


@dataclass
class _Group:
    """Variants that differ in their acceptance alone."""

    speculation: Speculation
    plain: str | None
    levels: list[str] = field(default_factory=list)
    real: str | None = None


def speculation_map(run: Run, summary: RunSummary) -> SpeculationMap | None:
    """Return the map, or None for a run without synthetic acceptance."""
    groups = [group for group in _groups(run).values() if group.levels]
    if not groups:
        return None
    counted = {
        (cell.variant, cell.batch_size): cell
        for cell in summary.cells
        if _refusal(summary, cell) is None
    }
    points = [
        point
        for size in sorted({cell.batch_size for cell in summary.cells})
        for group in groups
        if (point := _point(run, summary, group, size, counted)) is not None
    ]
    return SpeculationMap(points=tuple(points), left_out=_left_out(summary, groups))


def _groups(run: Run) -> Mapping[Variant, _Group]:
    plain = {
        replace(item.variant, name=""): name
        for name, item in run.engines.items()
        if item.variant.speculation is None
    }
    groups: dict[Variant, _Group] = {}
    for name, item in run.engines.items():
        speculation = item.variant.speculation
        if speculation is None:
            continue
        options = tuple(pair for pair in speculation.options if pair[0] not in _SYNTHETIC_KEYS)
        shared = replace(speculation, options=options)
        key = replace(item.variant, name="", speculation=shared)
        base = plain.get(replace(key, speculation=None))
        group = groups.setdefault(key, _Group(speculation=shared, plain=base))
        if speculation.synthetic_length is None:
            group.real = name
        else:
            group.levels.append(name)
    return groups


def _refusal(summary: RunSummary, cell: CellSummary) -> str | None:
    """Return why a cell does not count, or None."""
    if cell.status != "complete" or cell.tps_mean is None:
        return cell.failure or "it was not measured"
    for verdict in summary.verdicts:
        applies = verdict.batch_size in (None, cell.batch_size)
        if verdict.variant == cell.variant and applies and verdict.outcome not in SUFFICIENT:
            return f"{verdict.claim.kind} {verdict.outcome}: {verdict.observed}"
    return None


def _left_out(summary: RunSummary, groups: list[_Group]) -> tuple[str, ...]:
    """One sentence per variant and reason, its loads together."""
    names = {name for group in groups for name in (group.plain, group.real, *group.levels)}
    sizes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for cell in summary.cells:
        reason = _refusal(summary, cell) if cell.variant in names else None
        if reason is not None:
            sizes[cell.variant, reason].append(str(cell.batch_size))
    missing = (
        f"{', '.join(group.levels)}: no variant is the same without speculation; add it"
        for group in groups
        if group.plain is None
    )
    return (*missing, *(f"{name} at {', '.join(at)}: {why}" for (name, why), at in sizes.items()))


def _point(
    run: Run,
    summary: RunSummary,
    group: _Group,
    size: LoadPoint,
    counted: Mapping[tuple[str, LoadPoint], CellSummary],
) -> SpeculationPoint | None:
    """Return None where the plain cell or every simulated level lacks figures or evidence."""
    plain = counted.get((group.plain or "", size))
    if plain is None or plain.tps_mean is None:
        return None
    names = [name for name in (group.real, *group.levels) if name and (name, size) in counted]
    levels = [_level(run, counted[name, size]) for name in names]
    if all(item.synthetic is None for item in levels):
        return None
    real = next((item for item in levels if item.synthetic is None), None)
    direct = None
    if real is not None:
        pair = ((plain.variant, size), (real.variant, size))
        direct = summary.throughput.difference(*pair, family=len(run.loads))
    k = group.speculation.num_tokens
    fit = fit_speculation(
        plain.tps_mean,
        [Measured(length=item.acceptance_length, tps=item.tps) for item in levels],
        k=k,
        real=real.acceptance_length if real else None,
    )
    return SpeculationPoint(
        plain=plain.variant,
        batch_size=size,
        k=k,
        plain_tps=plain.tps_mean,
        levels=tuple(levels),
        l_star=fit.l_star,
        reachable=fit.reachable,
        fixed_share=fit.fixed_share,
        spread=fit.spread,
        real=real.acceptance_length if real else None,
        change=None if direct is None else direct.ratio,
        pays=_pays(direct),
        headroom=fit.headroom,
    )


def _pays(change: Difference | None) -> Pays:
    if change is None or not change.different:
        return "undecided"
    return "yes" if change.ratio.value > 1 else "no"


def _level(run: Run, cell: CellSummary) -> AcceptanceLevel:
    trials = run.trials_of(cell.variant, cell.batch_size)
    drafts, accepted = (counter_change(name, trials).delta for name in (DRAFTS, ACCEPTED))
    speculation = run.engines[cell.variant].variant.speculation
    assert drafts
    assert accepted is not None
    assert speculation is not None
    assert cell.tps_mean is not None
    return AcceptanceLevel(
        variant=cell.variant,
        synthetic=speculation.synthetic_length,
        acceptance_length=length_estimate(accepted, drafts, speculation.num_tokens),
        tps=cell.tps_mean,
    )


def length_estimate(accepted: float, drafts: float, k: int) -> Estimate:
    """Return 1 + ``accepted`` ÷ ``drafts`` with a 95% interval, from counters alone.

    What one step of K accepts is within 0 … K, so with mean m its variance is at most m·(K − m)
    (Bhatia & Davis 2000); steps are taken as independent.
    """
    mean = accepted / drafts
    arm = 1.96 * math.sqrt(max(mean * (k - mean), 0.0) / drafts)
    return Estimate(
        value=1 + mean,
        low=max(1.0, 1 + mean - arm),
        high=min(k + 1.0, 1 + mean + arm),
        samples=round(drafts),
    )
