"""The speculation map of a run: by load and K, the acceptance length above which it pays.

Made of variants with ``synthetic_acceptance``, the variant with the draft as it is, and the
variant without speculation, all three otherwise identical.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product

from whet.core.records.engine import SYNTHETIC_LENGTH, ResolvedEngine, Variant
from whet.core.records.speculation_map import AcceptanceLevel, SpeculationMap, SpeculationPoint
from whet.core.records.summary import CellSummary, Estimate
from whet.core.run import Run
from whet.decision.eligible import unproved
from whet.flow.run.conclude.results import RunSummary

_SYNTHETIC_KEYS = ("rejection_sample_method", SYNTHETIC_LENGTH)
_LEAST_SPAN = 1.15
"""Between levels that are closer, noise decides where the speeds cross."""


def speculation_map(run: Run, summary: RunSummary) -> SpeculationMap | None:
    """Return the map, or None for a run without synthetic acceptance."""
    groups = _groups(run.engines)
    if not groups:
        return None
    plains = speculation_pairs(run.engines)
    counted = {
        (cell.variant, cell.load): cell
        for cell in summary.cells
        if cell.status == "complete" and unproved(cell, summary.verdicts) is None
    }
    points = []
    for size, group in product(sorted({size for _, size in counted}), groups):
        cells = [counted[name, size] for name in group if (name, size) in counted]
        plain = counted.get((plains.get(group[0], ""), size))
        if plain is not None and cells:
            points.append(_point(run, summary, plain, cells))
    return SpeculationMap(
        points=tuple(point for point in points if any(each.synthetic for each in point.levels)),
        left_out=tuple(
            f"{', '.join(group)}: no variant is the same without speculation; add it"
            for group in groups
            if group[0] not in plains
        ),
    )


def speculation_pairs(engines: Mapping[str, ResolvedEngine]) -> dict[str, str]:
    """The variant that differs in speculation alone, by the variant with speculation."""
    named = {replace(item.variant, name=""): name for name, item in engines.items()}
    plains = {
        name: named.get(replace(item.variant, name="", speculation=None))
        for name, item in engines.items()
        if item.variant.speculation is not None
    }
    return {name: plain for name, plain in plains.items() if plain is not None}


def _groups(engines: Mapping[str, ResolvedEngine]) -> list[list[str]]:
    """Variants that differ in their acceptance alone, one of them simulated."""
    groups: dict[Variant, list[str]] = defaultdict(list)
    simulated = set()
    for name, item in engines.items():
        if (speculation := item.variant.speculation) is None:
            continue
        options = tuple(pair for pair in speculation.options if pair[0] not in _SYNTHETIC_KEYS)
        key = replace(item.variant, name="", speculation=replace(speculation, options=options))
        groups[key].append(name)
        if speculation.synthetic_length is not None:
            simulated.add(key)
    return [names for key, names in groups.items() if key in simulated]


def _point(
    run: Run, summary: RunSummary, plain: CellSummary, cells: Sequence[CellSummary]
) -> SpeculationPoint:
    size, k, levels = plain.load, 0, []
    for cell in cells:
        pair = ((plain.variant, size), (cell.variant, size))
        change = summary.tables["tps_mean"].difference(*pair, family=len(run.loads))
        speculation = run.engines[cell.variant].variant.speculation
        if speculation is None or change is None or cell.acceptance_length is None:
            continue
        k = speculation.num_tokens
        levels.append(
            AcceptanceLevel(
                variant=cell.variant,
                synthetic=speculation.synthetic_length,
                acceptance_length=cell.acceptance_length,
                change=change.ratio,
            )
        )
    levels.sort(key=lambda level: level.acceptance_length)
    return SpeculationPoint(
        plain=plain.variant,
        load=size,
        k=k,
        levels=tuple(levels),
        l_star=break_even_length(levels),
    )


def break_even_length(levels: Sequence[AcceptanceLevel]) -> Estimate | None:
    """Return the acceptance length at which ``levels`` are as fast as the plain server.

    A step of drafting and verifying costs the same whatever is accepted, so the seconds per token
    are linear in 1 ÷ length (Leviathan et al. 2023, section 3.3, and a constant for the prompts).
    They are interpolated between the levels on either side; the interval is between the crossings
    of the ends of the levels' own 95% intervals, and none where all lengths are within 15%. None
    where the levels do not enclose it.
    """
    changes = [level.change for level in levels]
    ends = ([it.value for it in changes], [it.high for it in changes], [it.low for it in changes])
    value, low, high = (_crossing(levels, ratios) for ratios in ends)
    if value is None:
        return None
    close = levels[-1].acceptance_length < _LEAST_SPAN * levels[0].acceptance_length
    if close or low is None or high is None:
        low = high = None
    return Estimate(value=value, low=low, high=high, samples=min(it.samples for it in changes))


def _crossing(levels: Sequence[AcceptanceLevel], ratios: Sequence[float | None]) -> float | None:
    inverse = [(1 / level.acceptance_length, r) for level, r in zip(levels, ratios, strict=True)]
    for (short, slow), (long, fast) in pairwise(inverse):
        if slow is not None and fast is not None and slow < 1 <= fast:
            return 1 / (short + (long - short) * (1 / slow - 1) / (1 / slow - 1 / fast))
    return None
