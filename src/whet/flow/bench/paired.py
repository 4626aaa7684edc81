"""What the paired trials of two servers decide, and what makes the two unlike in more than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

from whet.core.records import CellSummary, Comparison, TrialRecord
from whet.core.records.against import ServerComparison, ServerVerdict
from whet.metrics import CellContext, compare, noise_floors, summarise
from whet.metrics.counted import prefix_hit_rate
from whet.metrics.steady_trial import steadiness
from whet.metrics.usable import trial_problem

COMPARED: Final = (
    "tps_mean",
    "rps_mean",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "tpot_p50_ms",
    "e2e_p50_ms",
)
"""Of ``whet.metrics.METRICS``."""

_RATES: Final = ("tps_mean", "rps_mean")
_UNLIKE_OUTPUT: Final = 0.01
_SHARED_CACHE: Final = 0.05
_CELL: Final = CellContext(price_usd_per_hour=0.0, memory_kind="device")


def compare_servers(
    a: Sequence[TrialRecord], b: Sequence[TrialRecord]
) -> tuple[ServerComparison, ...]:
    """Each of ``COMPARED`` that both servers have, over the usable pairs.

    ``a`` and ``b`` hold the trials in the order of the pairs. Latencies are those of each trial's
    steady part. Rates have every timed request: a cut drops the requests in flight at it, whose
    tokens the rest of a short trial lacks. The floor is A/A: how far a server's
    figure differs between its trials of even and of odd number, equal settings all; the larger of
    the two servers'. Even trials of ``a`` came before their partner and odd ones after it, so it
    also holds what the order does.
    """
    pairs = usable_pairs(a, b)
    if not pairs:
        return ()
    whole = [[pair[which] for pair in pairs] for which in (0, 1)]
    rates = [_figures(trials) for trials in whole]
    latencies = [_figures([_steady(trial) for trial in trials]) for trials in whole]
    comparisons = [_compared(name, *(rates if name in _RATES else latencies)) for name in COMPARED]
    return tuple(item for item in comparisons if item is not None)


def usable_pairs(
    a: Sequence[TrialRecord], b: Sequence[TrialRecord]
) -> list[tuple[TrialRecord, TrialRecord]]:
    """The pairs that can carry a figure on both sides."""
    return [
        (one, two)
        for one, two in zip(a, b, strict=False)
        if trial_problem(one) is None and trial_problem(two) is None
    ]


def warnings_of(a: Sequence[TrialRecord], b: Sequence[TrialRecord]) -> tuple[str, ...]:
    """What makes the two sides unlike in more than the server, and which pairs are left out."""
    pairs = usable_pairs(a, b)
    sentences = [
        *_left_out(a, b),
        _unlike_prompts(pairs),
        _unlike_answers(pairs),
        _shared_cache(pairs),
    ]
    return tuple(sentence for sentence in sentences if sentence is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Figures:
    """One server's trials, and what they come to: all, and those of even and of odd number."""

    trials: Sequence[TrialRecord]
    cell: CellSummary
    halves: tuple[CellSummary | None, CellSummary | None]

    def drift(self, metric: str) -> float | None:
        """The relative difference between the halves; None where one has no such figure."""
        even, odd = self.halves
        if even is None or odd is None:
            return None
        return noise_floors([even], [odd], metric=metric).get(even.batch_size)


def _figures(trials: Sequence[TrialRecord]) -> _Figures:
    def half(parity: int) -> CellSummary | None:
        some = [trial for trial in trials if trial.trial % 2 == parity]
        return summarise(some, cell=_CELL) if some else None

    return _Figures(trials=trials, cell=summarise(trials, cell=_CELL), halves=(half(0), half(1)))


def _compared(metric: str, a: _Figures, b: _Figures) -> ServerComparison | None:
    """One metric, or None where a side has no such figure."""
    one, two = getattr(a.cell, metric), getattr(b.cell, metric)
    if one is None or two is None or not (one.value > 0 and two.value > 0):
        return None
    drifts = a.drift(metric), b.drift(metric)
    floor = None if drifts[0] is None or drifts[1] is None else max(drifts[0], drifts[1])
    comparison = compare(a.trials, b.trials, metric=metric, noise_floor=floor or 0.0)
    return ServerComparison(
        metric=metric,
        a=one,
        b=two,
        ratio=comparison.ratio,
        noise_floor=floor,
        verdict="undecided" if floor is None else _verdict(comparison),
    )


def _verdict(comparison: Comparison) -> ServerVerdict:
    return next(
        (word for word in get_args(ServerVerdict) if word == comparison.verdict), "undecided"
    )


def _steady(trial: TrialRecord) -> TrialRecord:
    """The steady part, or the whole trial where that part alone can carry no figure."""
    part = steadiness(trial).trial
    return part if trial_problem(part) is None else trial


def _left_out(a: Sequence[TrialRecord], b: Sequence[TrialRecord]) -> list[str]:
    sentences = []
    for one, two in zip(a, b, strict=False):
        problems = [
            f"{letter}, {problem}"
            for letter, trial in (("A", one), ("B", two))
            if trial.status != "interrupted" and (problem := trial_problem(trial)) is not None
        ]
        if problems:
            sentences.append(f"run {one.trial + 1} of both is left out ({'; '.join(problems)})")
    return sentences


def _answered_by_both(
    pairs: Sequence[tuple[TrialRecord, TrialRecord]], count: str
) -> tuple[int, int]:
    """The sums of a count over the requests that both servers answered and counted."""
    sums = [0, 0]
    for one, two in pairs:
        others = {event.index: event for event in two.requests}
        for event in one.requests:
            partner = others.get(event.index)
            if partner is None or event.error is not None or partner.error is not None:
                continue
            counts = getattr(event, count), getattr(partner, count)
            if None not in counts:
                sums = [sums[0] + counts[0], sums[1] + counts[1]]
    return sums[0], sums[1]


def _unlike_prompts(pairs: Sequence[tuple[TrialRecord, TrialRecord]]) -> str | None:
    """Later turns of a conversation hold a server's own answers, so these are not held together."""
    plain = [pair for pair in pairs if pair[0].loop != "conversations"]
    a, b = _answered_by_both(plain, "prompt_tokens")
    if a == b:
        return None
    return (
        f"the servers count the same prompts differently (A {a}, B {b} tokens): they do not read "
        "them with one tokenizer or chat template"
    )


def _unlike_answers(pairs: Sequence[tuple[TrialRecord, TrialRecord]]) -> str | None:
    a, b = _answered_by_both(pairs, "output_tokens")
    if not a or abs(b / a - 1) <= _UNLIKE_OUTPUT:
        return None
    return (
        f"the answers to the same requests differ in length (A {a}, B {b} tokens): requests/s and "
        "E2E are those of unlike work"
    )


def _shared_cache(pairs: Sequence[tuple[TrialRecord, TrialRecord]]) -> str | None:
    """Two fronts of one server, or one cache behind both, answer the second trial of a pair."""
    ordered = [(two, one) if one.trial % 2 else (one, two) for one, two in pairs]
    before = prefix_hit_rate([first for first, _ in ordered])
    after = prefix_hit_rate([second for _, second in ordered])
    if before is None or after is None or after - before <= _SHARED_CACHE:
        return None
    return (
        f"the second trial of a pair found {after:.0%} of its prompts in the prefix cache, the "
        f"first {before:.0%}: the servers seem to share a cache, so their figures are not their own"
    )
