"""The batch size at which speculation stops paying.

Drafting spends compute that idle hardware has to spare. As the batch grows there is less to
spare, and at some size the same variant without speculation is as fast or faster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from whet.core.load_point import LoadPoint
from whet.core.records import BreakEven, Estimate
from whet.decision.words import times
from whet.metrics.pooled import Cell, StartTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """Throughput with speculation over without, at one batch size."""

    batch_size: LoadPoint
    change: Estimate

    @property
    def gains(self) -> bool:
        """Whether the whole interval is above 1."""
        return self.change.low is not None and self.change.low > 1


def find_break_even(
    counted: Collection[Cell],
    speculation_pairs: Mapping[str, str],
    throughput: StartTable,
    tier: str,
) -> tuple[BreakEven, ...]:
    """Return one record per pair, over the batch sizes at which both cells are ``counted``."""
    measured = {variant for variant, _ in counted}
    return tuple(
        _pair(candidate, reference, _gains(counted, candidate, reference, throughput), tier)
        for candidate, reference in speculation_pairs.items()
        if candidate in measured or reference in measured
    )


def _gains(
    counted: Collection[Cell], candidate: str, reference: str, throughput: StartTable
) -> list[Gain]:
    gains = []
    for size in sorted({size for _, size in counted}):
        pair = ((reference, size), (candidate, size))
        if set(pair) <= set(counted):
            change = throughput.difference(*pair, family=0)
            if change is not None:
                gains.append(Gain(batch_size=size, change=change.ratio))
    return gains


def _pair(candidate: str, reference: str, gains: Sequence[Gain], tier: str) -> BreakEven:
    judged = [item for item in gains if item.change.low is not None]
    pays_up_to = max((item.batch_size for item in judged if item.gains), default=None)
    after = [
        item.batch_size for item in judged if pays_up_to is None or item.batch_size > pays_up_to
    ]
    return BreakEven(
        candidate=candidate,
        reference=reference,
        pays_up_to=pays_up_to,
        stops_at=min(after, default=None),
        sentence=_sentence(candidate, reference, gains, judged),
        tier=tier,
    )


def _sentence(candidate: str, reference: str, gains: Sequence[Gain], judged: Sequence[Gain]) -> str:
    pair = f"{candidate} over {reference}"
    if not gains:
        return (
            f"{pair}: no batch size was measured, with evidence, for both; "
            "the size at which speculation stops paying is unknown."
        )
    best = max(judged or gains, key=lambda item: item.change.value)
    at_best = f"at best {times(best.change)} the throughput, at {best.batch_size}"
    if not judged:
        return f"{pair}: one start has no interval, so it is open; {at_best}."
    paying = [item for item in judged if item.gains]
    if not paying:
        sizes = ", ".join(str(item.batch_size) for item in judged)
        return f"{pair}: no sure gain at any measured batch size ({sizes}); {at_best}."
    last = paying[-1]
    after = [item for item in judged if item.batch_size > last.batch_size]
    blips = [str(item.batch_size) for item in judged if not item.gains and item not in after]
    but = f"; no sure gain at {', '.join(blips)}, below that" if blips else ""
    if not after:
        return (
            f"{pair}: speculation pays at the largest measured batch size, {last.batch_size} "
            f"({times(last.change)} the throughput){but}; it stops paying at a larger size."
        )
    return (
        f"{pair}: speculation pays up to batch size {last.batch_size} ({times(last.change)} the "
        f"throughput) and stops paying at {after[0].batch_size} ({times(after[0].change)}){but}."
    )
