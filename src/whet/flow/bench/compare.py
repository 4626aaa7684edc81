"""Two servers that are up at once under one load: interleaved trials, and what they decide."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from whet.checkpoint import tokenizer_difference
from whet.client.endpoint import Endpoint
from whet.core.errors import EngineLostError, Interrupted, MeasurementError, UsageError, WhetError
from whet.core.protocols import Observer
from whet.core.records.against import ServersCompared
from whet.core.records.load import TrialRecord, WorkloadFacts
from whet.flow.bench.options import CompareOptions
from whet.flow.bench.paired import compare_servers, usable_pairs, warnings_of
from whet.flow.bench.run import (
    BenchResult,
    reach,
    report_trial,
    require_figures,
    run_once,
)
from whet.flow.model_entry import model_entry
from whet.load import TrialInterrupted, TrialLost
from whet.load.sources.request import BenchRequest, Target

_USUAL_RUNS: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerRuns:
    """One of the two servers. ``name`` is unique to it; ``url`` holds no password."""

    name: str
    url: str
    runs: BenchResult


@dataclass(frozen=True, kw_only=True, slots=True)
class AgainstResult:
    """Both servers' trials in order, and what they decide. ``error`` is what ended them early."""

    a: ServerRuns
    b: ServerRuns
    compared: ServersCompared
    error: WhetError | None = None


def bench_against(
    request: BenchRequest, other: CompareOptions, observer: Observer
) -> AgainstResult:
    """Send ``num_runs`` trials (4 unless given) to each server in the order A B B A A B B A ….

    The n-th trials of both are a pair with the same prompts and arrival times; every pair has its
    own. The order lets a linear drift of the machine fall on both alike. ``until`` is not
    read. A stop, and a server that stops answering, is the result's ``error``.

    Raises ``UsageError`` for an odd number of trials, for twice the same model of one server and
    for tokenizers that differ; as ``reach`` does.
    """
    runs = request.load.num_runs or _USUAL_RUNS
    request = replace(request, load=replace(request.load, num_runs=runs))
    if runs < 2 or runs % 2:
        raise UsageError(
            f"--num-runs must be an even number, 2 or more, for the order A B B A (got {runs})"
        )
    assert other.against is not None, "the command has checked --against"
    match = _Match(
        request=request,
        urls=(request.url, other.against),
        targets=_reach_both(request, other.against, other.against_model, observer),
    )
    try:
        for number in range(runs):
            match.send_pair(number, observer)
    except (Interrupted, KeyboardInterrupt):
        return match.result(Interrupted("stopped on request"))
    except EngineLostError as error:
        return match.result(error)
    return match.result()


def require_comparison(result: AgainstResult) -> None:
    """Raise ``MeasurementError`` where a side cannot be believed or nothing could be decided."""
    compared = result.compared
    for server in (result.a, result.b):
        try:
            require_figures(server.runs)
        except MeasurementError as error:
            raise MeasurementError(f"{server.name}: {error}") from error
    if not compared.comparisons:
        raise MeasurementError(f"no run is usable on both servers: {'; '.join(compared.warnings)}")
    if all(item.verdict == "undecided" for item in compared.comparisons):
        raise MeasurementError(
            "too few runs are usable on both servers to measure the noise: "
            f"{'; '.join(compared.warnings)}"
        )


@dataclass(kw_only=True, slots=True)
class _Match:
    """Both servers, and what each was sent so far."""

    request: BenchRequest
    urls: tuple[str, str]
    targets: tuple[Target, Target]
    trials: tuple[list[TrialRecord], list[TrialRecord]] = field(default_factory=lambda: ([], []))
    facts: WorkloadFacts | None = None

    def send_pair(self, number: int, observer: Observer) -> None:
        """One trial of each, the first server first in every even pair."""
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            what = "conversations" if self.request.loop == "conversations" else "requests"
            observer.stage(
                "send",
                f"{self.request.requests} {what} to {'AB'[which]}, "
                f"run {number + 1} of {self.request.runs}",
            )
            request = replace(self.request, url=self.urls[which])
            try:
                trial, self.facts = run_once(request, self.targets[which], number)
            except (TrialInterrupted, TrialLost) as stop:
                self.trials[which].append(stop.record)
                raise
            self.trials[which].append(trial)
            report_trial(trial, self.facts, observer)

    def result(self, error: WhetError | None = None) -> AgainstResult:
        """The result as it stands."""
        a, b = (self._server(which, stopped=isinstance(error, Interrupted)) for which in (0, 1))
        return AgainstResult(
            a=a,
            b=b,
            compared=ServersCompared(
                a=a.name,
                b=b.name,
                pairs=len(usable_pairs(*self.trials)),
                comparisons=compare_servers(*self.trials),
                warnings=warnings_of(*self.trials),
            ),
            error=error,
        )

    def _server(self, which: int, *, stopped: bool) -> ServerRuns:
        target = self.targets[which]
        url = Endpoint.parse(self.urls[which]).url
        alike = self.targets[0].model == self.targets[1].model
        return ServerRuns(
            name=url if alike else f"{url} ({target.model})",
            url=url,
            runs=BenchResult(
                request=self.request,
                model=target.model,
                tokenizer=target.tokenizer.name,
                facts=self.facts,
                trials=tuple(self.trials[which]),
                interrupted=stopped,
            ),
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
    same = Endpoint.parse(request.url) == Endpoint.parse(url)
    if same and model == first.model:
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
    root = entry.get("root")
    if not isinstance(root, str) or not (Path(root) / "tokenizer.json").is_file():
        return f"names no tokenizer that is here: {folder.name} is taken for both"
    difference = tokenizer_difference(
        folder, Path(root), names=("first server's model", "second server's")
    )
    if difference is not None:
        raise UsageError(
            "the two models have different tokenizers, so a token of one is not a token of the "
            f"other: {difference}",
            fix="compare servers of one tokenizer, or name with --tokenizer the "
            "one to count with for both",
        )
    return "the same tokenizer"
