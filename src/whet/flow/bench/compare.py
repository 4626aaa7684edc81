"""Two servers that are up at once under one load: interleaved trials, and what they decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import tokenizer_difference
from whet.client.endpoint import Endpoint
from whet.core.bench_options import CompareOptions
from whet.core.errors import EngineLostError, Interrupted, MeasurementError, UsageError, WhetError
from whet.core.protocols import Observer
from whet.core.records.against import ServerComparison, ServersCompared, ServerVerdict
from whet.core.records.load import TrialRecord, WorkloadFacts
from whet.core.records.summary import CellSummary, Estimate
from whet.flow.bench.run import BenchResult, reach, report_trial, require_figures, run_once
from whet.flow.model_entry import model_entry, tokenizer_here
from whet.load import TrialInterrupted, TrialLost
from whet.load.sources.request import BenchRequest, Target
from whet.metrics import UNPRICED, metrics_in, summarise
from whet.metrics.counted import prefix_hit_rate
from whet.metrics.metric import Metric
from whet.metrics.pooled import StartTable
from whet.metrics.usable import trial_problem

_USUAL_RUNS: Final = 4
_SHARED_CACHE: Final = 0.05
_COUNTS: Final = {
    "prompt_tokens": (
        0.0,
        "the servers count the same prompts differently",
        "they do not read them with one tokenizer or chat template",
    ),
    "output_tokens": (
        0.01,
        "the answers to the same requests differ in length",
        "requests/s and E2E are those of unlike work",
    ),
}
"""Counts that should be alike: by how much they may differ, and what it means if they do not."""

Pair = tuple[TrialRecord, TrialRecord]


@dataclass(frozen=True, kw_only=True, slots=True)
class AgainstResult:
    """Both servers' runs, and what they decide. ``error`` is what ended them early.

    ``urls`` hold no password; the names of both are in ``compared``.
    """

    urls: tuple[str, str]
    runs: tuple[BenchResult, BenchResult]
    compared: ServersCompared
    error: WhetError | None = None


def bench_against(
    request: BenchRequest, other: CompareOptions, observer: Observer
) -> AgainstResult:
    """Send ``num_runs`` trials (4 unless given) to each server in the order A B B A A B B A ….

    The n-th trials of both are a pair with the same prompts and arrival times; every pair has its
    own. The order lets a linear drift of the machine fall on both alike. A stop, and a server that
    stops answering, is the result's ``error``.

    Raises ``UsageError`` for an odd number of trials, for twice the same model of one server and
    for tokenizers that differ; as ``reach`` does.
    """
    runs = request.load.num_runs or _USUAL_RUNS
    request = replace(request, load=replace(request.load, num_runs=runs))
    if runs % 2:
        raise UsageError(
            f"--num-runs must be an even number, 2 or more, for the order A B B A (got {runs})"
        )
    assert other.against is not None, "the command has checked --against"
    urls = (request.url, other.against)
    targets = _reach_both(request, other.against, other.against_model, observer)
    trials: tuple[list[TrialRecord], list[TrialRecord]] = ([], [])
    facts: WorkloadFacts | None = None
    error: WhetError | None = None
    try:
        for place in range(2 * runs):
            number, which = place // 2, (0, 1, 1, 0)[place % 4]
            what = f"{request.requests} requests to {'AB'[which]}"
            observer.stage("send", f"{what}, run {number + 1} of {runs}")
            there = replace(request, url=urls[which])
            trial, facts = run_once(there, targets[which], number)
            trials[which].append(trial)
            report_trial(trial, observer)
    except (TrialInterrupted, TrialLost) as stop:
        trials[which].append(stop.record)
        error = stop
    except (Interrupted, KeyboardInterrupt):
        error = Interrupted("stopped on request")
    except EngineLostError as lost:
        error = lost
    return _result(request, urls, targets, trials, facts, error)


def _result(
    request: BenchRequest,
    urls: tuple[str, str],
    targets: tuple[Target, Target],
    trials: tuple[Sequence[TrialRecord], Sequence[TrialRecord]],
    facts: WorkloadFacts | None,
    error: WhetError | None,
) -> AgainstResult:
    a, b = (Endpoint.parse(url).url for url in urls)
    one, two = (target.model for target in targets)
    runs_a, runs_b = (
        BenchResult(
            request=request,
            model=target.model,
            tokenizer=target.tokenizer.name,
            facts=facts,
            trials=tuple(sent),
            interrupted=isinstance(error, Interrupted),
        )
        for target, sent in zip(targets, trials, strict=True)
    )
    compared = ServersCompared(
        a=f"{a} ({one})" if one != two else a,
        b=f"{b} ({two})" if one != two else b,
        pairs=len(usable_pairs(*trials)),
        comparisons=compare_servers(*trials),
        warnings=tuple(warnings_of(*trials)),
    )
    return AgainstResult(urls=(a, b), runs=(runs_a, runs_b), compared=compared, error=error)


def require_comparison(result: AgainstResult) -> None:
    """Raise ``MeasurementError`` where a side cannot be believed or nothing could be decided."""
    compared = result.compared
    for name, runs in zip((compared.a, compared.b), result.runs, strict=True):
        try:
            require_figures(runs)
        except MeasurementError as error:
            raise MeasurementError(f"{name}: {error}") from error
    if compared.pairs < 2:
        few = "no run is" if not compared.comparisons else "too few runs are"
        raise MeasurementError(f"{few} usable on both servers: {'; '.join(compared.warnings)}")


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
    return tuple(filter(None, compared))


def usable_pairs(a: Sequence[TrialRecord], b: Sequence[TrialRecord]) -> list[Pair]:
    """The pairs that can carry a figure on both sides."""
    return [pair for pair in zip(a, b, strict=False) if not any(map(trial_problem, pair))]


def warnings_of(a: Sequence[TrialRecord], b: Sequence[TrialRecord]) -> Iterator[str]:
    """What makes the two sides unlike in more than the server, and which pairs are left out."""
    for pair in zip(a, b, strict=False):
        problems = [
            f"{letter}, {problem}"
            for letter, trial in zip("AB", pair, strict=True)
            if trial.status != "interrupted" and (problem := trial_problem(trial)) is not None
        ]
        if problems:
            yield f"run {pair[0].trial + 1} of both is left out ({'; '.join(problems)})"
    pairs = usable_pairs(a, b)
    for count, (tolerance, what, meaning) in _COUNTS.items():
        one, two = _answered_by_both(pairs, count)
        if one and abs(two / one - 1) > tolerance:
            yield f"{what} (A {one}, B {two} tokens): {meaning}"
    yield from _shared_cache(pairs)


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
    ratio = replace(change.ratio, samples=samples, enough=one.enough and two.enough)
    verdict: ServerVerdict = "undecided" if ratio.low is None else "no difference"
    if change.different:
        verdict = "better" if (ratio.value > 1) == (metric.better == "higher") else "worse"
    return ServerComparison(metric=metric.name, a=one, b=two, ratio=ratio, verdict=verdict)


def _answered_by_both(pairs: Sequence[Pair], count: str) -> tuple[int, int]:
    """The sums of a count over the requests that both servers answered and counted."""
    both = [
        counts
        for a, b in pairs
        for one, two in zip(a.requests, b.requests, strict=False)
        if one.error is None and two.error is None
        if None not in (counts := (getattr(one, count), getattr(two, count)))
    ]
    return sum(one for one, _ in both), sum(two for _, two in both)


def _shared_cache(pairs: Sequence[Pair]) -> Iterator[str]:
    """Two fronts of one server, or one cache behind both, answer the second trial of a pair."""
    ordered = [(two, one) if one.trial % 2 else (one, two) for one, two in pairs]
    before = prefix_hit_rate([first for first, _ in ordered])
    after = prefix_hit_rate([second for _, second in ordered])
    if before is not None and after is not None and after - before > _SHARED_CACHE:
        yield (
            f"the second trial of a pair found {after:.0%} of its prompts in the prefix cache, the "
            f"first {before:.0%}: the servers seem to share a cache"
        )


def _reach_both(
    request: BenchRequest, url: str, model: str | None, observer: Observer
) -> tuple[Target, Target]:
    """Both servers, with one tokenizer: that of the first."""
    first = reach(request, observer)
    observer.stage("reach", url)
    try:
        entry = model_entry(url, model or request.server.model, "--against-model")
    except UsageError as error:
        raise UsageError(f"{url}: {error}") from error
    model = str(entry["id"])
    if model == first.model and Endpoint.parse(request.url) == Endpoint.parse(url):
        raise UsageError(
            f"--against names {model!r} of the same server, whose prefix cache would answer every "
            "second trial",
            fix="give another server, or another of its models with --against-model",
        )
    observer.note(f"{model}, {_check_tokenizer(request, first.tokenizer, entry)}")
    return first, replace(first, model=model)


def _check_tokenizer(request: BenchRequest, folder: Path, entry: dict[str, Any]) -> str:
    """How lengths are counted for the second server; ``UsageError`` where tokens are not alike."""
    if request.server.tokenizer is not None:
        return f"tokenizer {folder.name} as given, for both"
    root = tokenizer_here(entry)
    if root is None:
        return f"names no tokenizer that is here: {folder.name} is taken for both"
    names = ("first server's model", "second server's")
    difference = tokenizer_difference(folder, root, names=names)
    if difference is not None:
        raise UsageError(
            f"the two models have different tokenizers: {difference}",
            fix="compare servers of one tokenizer, or name the one to count with by --tokenizer",
        )
    return "the same tokenizer"
