"""``whet bench``: measure one load against an external server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.checkpoint import locate_without_weights
from whet.client.calls import without_refused
from whet.core.errors import MeasurementError, UsageError
from whet.core.load import Load
from whet.core.protocols import Observer
from whet.core.quote import shell_word
from whet.core.records.load import RequestEvent, TrialRecord, WorkloadFacts
from whet.flow.model_entry import model_entry, tokenizer_here
from whet.load import TrialInterrupted, TrialPlan, run_trial
from whet.load.plan import with_fields
from whet.load.sources.replay import open_rows, report_trace
from whet.load.sources.request import BenchRequest, Target
from whet.load.sources.source import build_load, read_block_size
from whet.metrics.usable import trial_problem
from whet.report.bench.load import LoadFigures

_SHORT_OF_RATE = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchResult:
    """The trials in order, one a run; ``interrupted`` where a person stopped the last one.

    ``facts`` are those of the last run that ended, None where none did.
    """

    request: BenchRequest
    model: str
    tokenizer: str
    facts: WorkloadFacts | None
    trials: tuple[TrialRecord, ...]
    interrupted: bool = False


def reach(request: BenchRequest, observer: Observer) -> Target:
    """Ask the server for its model, and read the dataset that is to be sent, if any.

    Raises ``EngineLostError`` where nothing answers at the address, ``UsageError`` for a model that
    it does not serve, a key that it refuses or a dataset that cannot be used, ``CheckpointError``
    without a tokenizer.
    """
    observer.stage("reach", request.url)
    entry = model_entry(request.url, request.server.model)
    model, folder = str(entry["id"]), _tokenizer(request, entry)
    observer.note(f"{model}, tokenizer {folder.name}")
    report_trace(request, folder, observer)
    return Target(
        model=model,
        tokenizer=folder,
        rows=open_rows(request, folder, observer),
        block_size=read_block_size(request, observer),
    )


def bench(request: BenchRequest, observer: Observer) -> BenchResult:
    """Reach the server, then send the traffic ``runs`` times, fresh each time.

    Raises as ``reach`` does. A request that fails is an event of its trial and raises nothing.
    """
    target = reach(request, observer)
    trials: list[TrialRecord] = []
    facts: WorkloadFacts | None = None
    for number in range(request.runs):
        observer.stage("send", f"{request.requests} requests, run {number + 1}")
        try:
            trial, facts = run_once(request, target, number)
        except TrialInterrupted as stop:
            trials.append(stop.record)
            break
        trials.append(trial)
        report_trial(trial, observer)
    return BenchResult(
        request=request,
        model=target.model,
        tokenizer=target.tokenizer.name,
        facts=facts,
        trials=tuple(trials),
        interrupted=trials[-1].status == "interrupted",
    )


def run_once(
    request: BenchRequest, target: Target, number: int
) -> tuple[TrialRecord, WorkloadFacts]:
    """One trial with prompts and arrivals of its own; ``TrialInterrupted`` carries its record."""
    load = build_load(request, target, number)
    plan = TrialPlan(
        variant=target.model,
        load=Load.at(request.concurrency),
        trial=number,
        workload=load.workload,
        warmup=load.warmup,
        request_timeout_s=request.server.timeout_s,
        loop=request.loop,
        offsets_ns=load.offsets_ns,
        calls=load.calls,
        warmup_calls=load.warmup_calls,
        workers=request.load.workers,
        require_counters=False,
        tokenizer=target.tokenizer,
    )
    # A server that is lost fails each request with a word of its own; none goes missing.
    record = run_trial(
        request.url,
        target.model,
        plan=with_fields(plan, request.body),
        memory=lambda: None,
        alive=lambda: None,
    )
    return record, load.workload.facts


def _tokenizer(request: BenchRequest, entry: dict[str, Any]) -> Path:
    """The folder of the tokenizer: the one given, else the model path that the server states."""
    if request.server.tokenizer is not None:
        return locate_without_weights(request.server.tokenizer)
    if (folder := tokenizer_here(entry)) is not None:
        return folder
    raise UsageError(
        f"lengths are counted with the model's own tokenizer, and {entry['id']!r} names none that "
        "is here",
        fix="give its folder or hub id with --tokenizer",
    )


def report_trial(trial: TrialRecord, observer: Observer) -> None:
    """Say how many requests were answered, and what spoils the trial."""
    failed = sum(event.error is not None for event in trial.requests)
    observer.note(f"{len(trial.requests) - failed} answered, {failed} failed")
    if trial.failure is not None:
        observer.warn(trial.failure)
    doubts = [event.detail for event in trial.requests if event.error is None and event.detail]
    if doubts:
        observer.warn(f"{len(doubts)} answers differ from the request, such as: {doubts[0]}")
    retries = sum(event.retried for event in trial.requests)
    if retries:
        observer.note(f"{retries} requests were sent again: the server had closed the connection")
    health = trial.health
    scheduled, achieved = health.asked_rps, health.achieved_rps
    if health.workers > 1:
        observer.note(
            f"{health.workers} processes sent, the busiest took {health.cpu_share:.0%} of a core"
        )
    if scheduled is not None and achieved is not None and achieved < _SHORT_OF_RATE * scheduled:
        observer.warn(
            f"{scheduled:.3g} requests a second were due and {achieved:.3g} left: requests in "
            "flight held the others back"
        )
    if not health.valid and health.reason is not None:
        observer.warn(f"the client did not keep up: {health.reason}")


def require_figures(result: BenchResult) -> LoadFigures:
    """Return the figures; ``MeasurementError`` where no run can be believed, which says why."""
    events = [event for trial in result.trials for event in trial.requests]
    if all(event.error is not None for event in events):
        raise no_answer(events)
    problems = [trial_problem(trial) for trial in result.trials]
    if all(problem is not None for problem in problems):
        raise MeasurementError(f"no run can be believed: {'; '.join(map(str, problems))}")
    return LoadFigures.of(result.trials)


def no_answer(events: Sequence[RequestEvent]) -> MeasurementError:
    """Why no request was answered: each error with the server's words on one line.

    The fix leaves out the optional fields that a strict server names in its refusal.
    """
    details = {event.error: " ".join((event.detail or "").split()) for event in events}
    fields = without_refused((str(word), detail) for word, detail in details.items())
    leave_out = f"leave out what it refuses: --extra-body {shell_word(json.dumps(fields))}"
    return MeasurementError(
        f"no request was answered: {'; '.join(f'{word} ({d})' for word, d in details.items())}",
        fix=leave_out if fields else "fix the server or the address",
    )
