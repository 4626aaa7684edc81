"""Each lever's effect in the context of others: ratios of two variants that differ in it alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from whet.core.flags import drop_kv_sizing
from whet.core.load import Load
from whet.core.records.decision import LeverEffect, LeverEffects
from whet.core.records.summary import Difference, Estimate
from whet.metrics import METRICS
from whet.metrics.pooled import Cell, StartTable

_Set = frozenset[str]


def lever_effects(
    tables: Sequence[StartTable],
    diffs: Mapping[str, frozenset[str]],
    *,
    baseline: str,
    counted: Collection[Cell],
) -> LeverEffects:
    """Every effect at every concurrency, on the metric of each table.

    ``diffs`` maps each variant, ``baseline`` included, to the labels by which it differs from
    ``baseline``; ``counted`` are the cells that may be compared.
    """
    levers, sets = find_levers(diffs)
    by_set: dict[_Set, str] = {}
    for name in sorted(sets, key=lambda name: name != baseline):
        by_set.setdefault(sets[name], name)
    effects = [
        effect
        for table in tables
        for size in table.blocks
        for effect in _effects(table, size, by_set, levers)
        if {(effect.reference, size), (effect.candidate, size)} <= set(counted)
    ]
    return LeverEffects(baseline=baseline, levers=levers, effects=tuple(effects))


def find_levers(
    diffs: Mapping[str, frozenset[str]],
) -> tuple[tuple[str, ...], dict[str, frozenset[str]]]:
    """Return the levers in the order of the variants, and each variant's set of levers.

    Labels that always occur together, such as a recipe's weights and its KV cache, are merged into
    one lever (``weights=x + kv_cache_dtype=fp8``): no cell separates them. The size of the KV pool
    counts as a lever only if two variants differ by nothing else.
    """
    bare = {name: drop_kv_sizing(labels) for name, labels in diffs.items()}
    if len(set(bare.values())) == len(set(diffs.values())):
        diffs = bare
    support: dict[str, list[str]] = {}
    for name, labels in diffs.items():
        for part in sorted(labels, key=lambda part: (not part.startswith("weights="), part)):
            support.setdefault(part, []).append(name)
    together: dict[tuple[str, ...], list[str]] = {}
    for part, names in support.items():
        together.setdefault(tuple(names), []).append(part)
    joined = {" + ".join(parts): names for names, parts in together.items()}
    sets = {
        variant: frozenset(lever for lever, names in joined.items() if variant in names)
        for variant in diffs
    }
    return tuple(joined), sets


def _effects(
    table: StartTable, size: Load, by_set: Mapping[_Set, str], levers: Sequence[str]
) -> Iterator[LeverEffect]:
    for with_it, candidate in by_set.items():
        for lever in sorted(with_it, key=levers.index):
            reference = by_set.get(with_it - {lever})
            if reference is None:
                continue
            change = table.difference((reference, size), (candidate, size), family=0)
            if change is not None:
                yield LeverEffect(
                    lever=lever,
                    context=tuple(sorted(with_it - {lever}, key=levers.index)),
                    load=size,
                    metric=table.metric,
                    reference=reference,
                    candidate=candidate,
                    ratio=better_above_1(change),
                )


def better_above_1(change: Difference) -> Estimate:
    """The ratio of a difference, inverted for a metric where less is better."""
    if METRICS[change.metric].better == "higher":
        return change.ratio
    return change.ratio.mapped(lambda ratio: 1 / ratio, falling=True)
