"""What the paired trials of two servers decide, and what makes the two unlike in more than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from whet.core.records.against import ServerComparison, ServerVerdict
from whet.core.records.load import TrialRecord
from whet.core.records.summary import CellSummary, Difference, Estimate
from whet.metrics import UNPRICED, metrics_in, summarise
from whet.metrics.counted import prefix_hit_rate
from whet.metrics.metric import Metric
from whet.metrics.pooled import StartTable
from whet.metrics.usable import trial_problem

_UNLIKE_OUTPUT: Final = 0.01
_SHARED_CACHE: Final = 0.05


def compare_servers(
    a: Sequence[TrialRecord], b: Sequence[TrialRecord]
) -> tuple[ServerComparison, ...]:
    """Return each compared metric that both servers have, over the usable pairs.

    ``a`` and ``b`` hold the trials in the order of the pairs. The trials of a pair share their
    requests, so a pair is a round (``whet.metrics.pooled``), and each metric is tested alone.
    """
    pairs = usable_pairs(a, b)
    if not pairs:
        return ()
    sides = [[pair[which] for pair in pairs] for which in (0, 1)]
    cells = [summarise(trials, cell=UNPRICED) for trials in sides]
    compared = (_compared(metric, cells, sides) for metric in metrics_in("compare"))
    return tuple(item for item in compared if item is not None)


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


def _compared(
    metric: Metric, cells: Sequence[CellSummary], sides: Sequence[Sequence[TrialRecord]]
) -> ServerComparison | None:
    """Return one metric, or None where a side has no such figure."""
    one, two = (cell.figures[metric.name] for cell in cells)
    places = [(name, cells[0].load) for name in "AB"]
    figures = [
        {trial.trial: value for trial in trials for value in metric.start_figures([trial]).values()}
        for trials in sides
    ]
    if not isinstance(one, Estimate) or not isinstance(two, Estimate) or not all(figures):
        return None
    table = StartTable.of(metric.name, dict(zip(places, figures, strict=True)))
    change = table.difference(*places, family=1)
    if change is None:
        return None
    samples = min(one.samples, two.samples)
    return ServerComparison(
        metric=metric.name,
        a=one,
        b=two,
        ratio=replace(change.ratio, samples=samples, certified=one.certified and two.certified),
        verdict=_verdict(change, more_is_better=metric.better == "higher"),
    )


def _verdict(change: Difference, *, more_is_better: bool) -> ServerVerdict:
    if change.ratio.low is None:
        return "undecided"
    if not change.different:
        return "no difference"
    return "better" if (change.ratio.value > 1) == more_is_better else "worse"


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
