"""``whet bench``: one load against a server that somebody else runs, measured whole."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.checkpoint import locate
from whet.client import HttpError, get_text
from whet.core.errors import MeasurementError, UsageError
from whet.core.protocols import Observer
from whet.core.records import TrialRecord, WorkloadFacts
from whet.load import Draw, TrialInterrupted, TrialPlan, run_trial
from whet.load.arrivals import Arrivals, arrival_offsets_ns
from whet.load.lengths import Independent, Lengths
from whet.load.synthetic import (
    SharedPrefixes,
    SyntheticLoad,
    SyntheticShape,
    build_synthetic,
    build_synthetic_text,
    ordinary_ids,
)
from whet.load.texts import load_text_tokenizer
from whet.metrics.usable import trial_problem

_UNAUTHORIZED = 401
_BLOCK_SIZE = 16
FORMS = ("ids", "text", "chat")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRequest:
    """What to send, how and how often.

    ``form`` is one of ``FORMS``: token ids or text to the completions endpoint, or a chat.
    ``arrivals`` None is a closed loop, or static batches, of ``concurrency`` requests; with
    arrivals ``concurrency`` is a cap, 0 for none. ``tokenizer`` and ``model`` None mean what the
    server names.
    """

    url: str
    model: str | None
    tokenizer: str | None
    form: str
    requests: int
    inputs: Lengths
    outputs: Lengths
    prefixes: SharedPrefixes | None = None
    arrivals: Arrivals | None = None
    concurrency: int = 0
    static: bool = False
    warmup: int = 0
    runs: int = 1
    seed: int = 0
    timeout_s: float = 600.0
    api_key: str | None = None

    @property
    def loop(self) -> str:
        """``open``, ``static`` or ``closed``."""
        if self.arrivals is not None:
            return "open"
        return "static" if self.static else "closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchResult:
    """The trials in order, one a run; ``interrupted`` where a person stopped the last one.

    ``facts`` are those of the last run that ended, None where none did.
    """

    model: str
    tokenizer: str
    facts: WorkloadFacts | None
    trials: tuple[TrialRecord, ...]
    interrupted: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A server that answered, and the tokenizer that lengths are counted with."""

    model: str
    tokenizer: Path


def reach(request: BenchRequest, observer: Observer) -> Target:
    """Ask the server for its model.

    Raises ``EngineLostError`` where nothing answers at the address, ``UsageError`` for a model that
    it does not serve or a key that it refuses, ``CheckpointError`` without a tokenizer.
    """
    observer.stage("reach", request.url)
    entry = _model_entry(request)
    target = Target(model=str(entry["id"]), tokenizer=_tokenizer(request, entry))
    observer.note(f"{target.model}, tokenizer {target.tokenizer.name}")
    return target


def bench(request: BenchRequest, observer: Observer) -> BenchResult:
    """Reach the server, then send the traffic ``runs`` times, fresh each time.

    Raises as ``reach`` does. A request that fails is an event of its trial and raises nothing.
    """
    target = reach(request, observer)
    trials: list[TrialRecord] = []
    facts: WorkloadFacts | None = None
    for number in range(request.runs):
        observer.stage("send", f"{request.requests} requests, run {number + 1} of {request.runs}")
        try:
            trial, facts = run_once(request, target, number)
        except TrialInterrupted as stop:
            trials.append(stop.record)
            break
        trials.append(trial)
        _tell(trial, observer)
    return BenchResult(
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
    load = _load(request, target.tokenizer, number)
    offsets: tuple[int, ...] = ()
    if request.arrivals is not None:
        offsets = arrival_offsets_ns(
            request.arrivals, requests=request.requests, seed=request.seed + number
        )
    plan = TrialPlan(
        variant=target.model,
        batch_size=request.concurrency,
        trial=number,
        workload=load.workload,
        warmup=load.warmup,
        request_timeout_s=request.timeout_s,
        api_key=request.api_key,
        loop=request.loop,
        offsets_ns=offsets,
        calls=load.calls,
        warmup_calls=load.warmup_calls,
    )
    # A server that is lost fails each request with a word of its own; none goes missing.
    record = run_trial(
        request.url, target.model, plan=plan, memory=lambda: None, alive=lambda: None
    )
    return record, load.workload.facts


def _model_entry(request: BenchRequest) -> dict[str, Any]:
    """What ``/v1/models`` says of the model asked for, or of the only one."""
    try:
        told = json.loads(get_text(request.url, "/v1/models", api_key=request.api_key))
        entries = [item for item in told["data"] if isinstance(item, dict) and "id" in item]
    except HttpError as error:
        if error.status == _UNAUTHORIZED:
            raise UsageError(
                f"{request.url} refuses the key (401); put the right one into OPENAI_API_KEY or "
                "give --api-key"
            ) from error
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise MeasurementError(
            f"{request.url}/v1/models is no list of models; check that it is an OpenAI-compatible "
            "server"
        ) from error
    names = [str(item["id"]) for item in entries]
    if request.model is None and len(names) == 1:
        return entries[0]
    if request.model is None:
        raise UsageError(
            f"the server has {len(names)} models; choose one with --model: {', '.join(names)}"
        )
    for item in entries:
        if item["id"] == request.model:
            return item
    raise UsageError(
        f"the server has no model {request.model!r}; --model takes one of {', '.join(names)}"
    )


def _tokenizer(request: BenchRequest, entry: dict[str, Any]) -> Path:
    """The folder of the tokenizer: the one given, else where the server says its model lies."""
    if request.tokenizer is not None:
        return locate(request.tokenizer)
    root = entry.get("root")
    if isinstance(root, str) and (Path(root) / "tokenizer.json").is_file():
        return Path(root)
    raise UsageError(
        f"lengths are counted with the model's own tokenizer, and {entry['id']!r} names none that "
        "is here; give its folder or hub id with --tokenizer"
    )


def _load(request: BenchRequest, folder: Path, number: int) -> SyntheticLoad:
    shape = SyntheticShape(
        lengths=Independent(input=request.inputs, output=request.outputs),
        prefixes=request.prefixes,
        seed=request.seed,
    )
    draw = Draw(
        requests=request.requests,
        batch_size=request.concurrency,
        trial=number,
        block_size=_BLOCK_SIZE,
    )
    if request.form == "ids":
        return build_synthetic(shape, ordinary_ids(folder), draw=draw, warmup=request.warmup)
    return build_synthetic_text(
        shape,
        load_text_tokenizer(folder),
        draw=draw,
        form="chat" if request.form == "chat" else "text",
        warmup=request.warmup,
    )


def _tell(trial: TrialRecord, observer: Observer) -> None:
    failed = sum(event.error is not None for event in trial.requests)
    observer.note(f"{len(trial.requests) - failed} answered, {failed} failed")
    if trial.failure is not None:
        observer.warn(trial.failure)
    if not trial.health.valid and trial.health.reason is not None:
        observer.warn(f"the client did not keep up: {trial.health.reason}")


def require_figures(result: BenchResult) -> None:
    """Raise ``MeasurementError`` where no run can be believed, and say why."""
    events = [event for trial in result.trials for event in trial.requests]
    if all(event.error is not None for event in events):
        words = {event.error: event.detail for event in events}
        told = "; ".join(f"{word} ({_line(detail)})" for word, detail in words.items())
        raise MeasurementError(f"no request was answered: {told}; mend the server or the address")
    problems = [trial_problem(trial) for trial in result.trials]
    if all(problem is not None for problem in problems):
        raise MeasurementError(f"no run can be believed: {'; '.join(map(str, problems))}")


def _line(detail: str | None) -> str:
    """What a server said, as a part of a sentence."""
    return " ".join((detail or "").split())
