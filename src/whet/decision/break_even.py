"""The concurrency at which speculation stops paying.

Drafting spends compute that idle hardware has to spare. As the batch grows there is less to
spare, and at some size the same variant without speculation is as fast or faster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from whet.core.load import Load
from whet.core.records.decision import BreakEven
from whet.core.records.summary import Estimate
from whet.decision.words import times
from whet.metrics.pooled import Cell, StartTable

Changes = Mapping[Load, Estimate]
"""Throughput with speculation over without, by concurrency, smallest first."""


def find_break_even(
    counted: Collection[Cell],
    speculation_pairs: Mapping[str, str],
    throughput: StartTable,
    tier: str,
) -> tuple[BreakEven, ...]:
    """Return one record per pair, over the concurrencies at which both cells are ``counted``."""
    measured = {variant for variant, _ in counted}
    result = []
    for candidate, reference in speculation_pairs.items():
        if candidate not in measured and reference not in measured:
            continue
        changes = {}
        for size in sorted({size for _, size in counted}):
            pair = ((reference, size), (candidate, size))
            if set(pair) <= set(counted) and (it := throughput.difference(*pair, family=0)):
                changes[size] = it.ratio
        judged = {size: change for size, change in changes.items() if change.low is not None}
        pays_up_to = max((size for size in judged if _gains(judged[size])), default=None)
        after = [size for size in judged if pays_up_to is None or size > pays_up_to]
        result.append(
            BreakEven(
                candidate=candidate,
                reference=reference,
                pays_up_to=pays_up_to,
                stops_at=min(after, default=None),
                sentence=f"{candidate} over {reference}: {_words(changes, judged)}.",
                tier=tier,
            )
        )
    return tuple(result)


def _gains(change: Estimate) -> bool:
    return change.low is not None and change.low > 1


def _words(changes: Changes, judged: Changes) -> str:
    if not changes:
        return (
            "no concurrency was measured, with evidence, for both; "
            "the size at which speculation stops paying is unknown"
        )
    best, change = max((judged or changes).items(), key=lambda item: item[1].value)
    at_best = f"at best {times(change)} the throughput, at {best}"
    if not judged:
        return f"one start has no interval, so it is open; {at_best}"
    paying = [size for size in judged if _gains(judged[size])]
    if not paying:
        sizes = ", ".join(map(str, judged))
        return f"no sure gain at any measured concurrency ({sizes}); {at_best}"
    last = paying[-1]
    after = [size for size in judged if size > last]
    blips = [str(size) for size in judged if size < last and size not in paying]
    but = f"; no sure gain at {', '.join(blips)}, below that" if blips else ""
    if not after:
        return (
            f"speculation pays at the largest measured concurrency, {last} "
            f"({times(judged[last])} the throughput){but}; it stops paying at a larger size"
        )
    return (
        f"speculation pays up to concurrency {last} ({times(judged[last])} the throughput) "
        f"and stops paying at {after[0]} ({times(judged[after[0]])}){but}"
    )
