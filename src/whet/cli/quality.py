"""``whet quality``: the gate on its own, between two servers or checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from whet.cli.console import ConsoleObserver
from whet.cli.quality_flags import (
    Against,
    Baseline,
    BaselineModel,
    Concurrency,
    Golden,
    Heldout,
    IncludePath,
    Limit,
    LmEval,
    MaxDocuments,
    MaxTasks,
    MaxTokens,
    Model,
    NumFewshot,
    Protocol,
    Save,
    SideFlags,
    Speculative,
    Target,
    TasksFile,
    Tokenizer,
    Tolerances,
    TopLogprobs,
    read_harness_flags,
    read_request,
)
from whet.cli.quality_result import drift_json, print_drift, print_gate, result_json
from whet.core.errors import MeasurementError, NothingQualifiesError, UsageError
from whet.core.store import write_json

if TYPE_CHECKING:
    from whet.flow.gate.request import GateRequest

_CONCURRENCY: Final = 16


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quality")(quality)


def quality(
    target: Target,
    baseline: Baseline = None,
    against: Against = None,
    save: Save = None,
    golden: Golden = None,
    model: Model = None,
    baseline_model: BaselineModel = None,
    tokenizer: Tokenizer = None,
    speculative: Speculative = False,
    heldout: Heldout = None,
    tasks_file: TasksFile = None,
    tolerance: Tolerances = None,
    max_documents: MaxDocuments = None,
    max_tasks: MaxTasks = None,
    max_tokens: MaxTokens = None,
    concurrency: Concurrency = _CONCURRENCY,
    top_logprobs: TopLogprobs = None,
    protocol: Protocol = None,
    lm_eval: LmEval = None,
    limit: Limit = None,
    num_fewshot: NumFewshot = None,
    include_path: IncludePath = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write the records and verdicts.", metavar="FILE")
    ] = None,
) -> None:
    """Check that a server or checkpoint answers as well as its baseline: pass, fail or unknown.

    A TARGET that is a folder is served with the installed engine, which takes minutes.

    Exit code 0 for a pass, 9 for a fail or a drift, 6 where it cannot be known.
    """
    sides = SideFlags(
        target=target,
        baseline=baseline,
        against=against,
        save=save,
        model=model,
        baseline_model=baseline_model,
        tokenizer=tokenizer,
        speculative=speculative,
    )
    asked = {
        "heldout": heldout,
        "tasks": tasks_file,
        "max_documents": max_documents,
        "max_tasks": max_tasks,
        "max_tokens": max_tokens,
        "concurrency": concurrency,
        "top_logprobs": top_logprobs,
        "protocol": protocol,
    }
    harness = read_harness_flags(lm_eval, limit, num_fewshot, include_path)
    request = read_request(sides, asked, tolerance, harness)
    if golden is None:
        _gate(request, as_json)
    else:
        _refuse_beside_golden(request)
        _drift(replace(request, save=None), golden, as_json)


def _gate(request: GateRequest, as_json: Path | None) -> None:
    from whet.flow.gate.gate import run_gate

    with ConsoleObserver() as observer:
        result = run_gate(request, observer)
    print_gate(result, observer.console)
    if as_json is not None:
        write_json(as_json, result_json(result))
    why = result.reason or "no reason was given"
    if result.verdict == "fail":
        raise NothingQualifiesError(f"the gate fails: {why}")
    if result.verdict == "unknown":
        raise MeasurementError(f"the gate cannot tell, which is no pass: {why}")


def _refuse_beside_golden(request: GateRequest) -> None:
    given = {
        "--baseline": request.baseline is not None,
        "--against": request.against is not None,
        "--speculative": request.speculative,
        "--lm-eval": request.harness is not None,
    }
    for flag, was in given.items():
        if was:
            raise UsageError(f"--golden asks probes and nothing else; leave {flag} out")


def _drift(request: GateRequest, golden: Path, as_json: Path | None) -> None:
    from whet.flow.gate.golden import check_golden

    with ConsoleObserver() as observer:
        drift = check_golden(request.target, golden, request, observer)
    print_drift(drift, observer.console)
    if as_json is not None:
        write_json(as_json, drift_json(drift))
    if drift.verdict == "fail":
        raise NothingQualifiesError(
            f"{request.target} does not say what it said when {golden} was taken"
            + (f": {drift.reason}" if drift.reason else "; find out what was changed")
        )
    if drift.verdict == "unknown":
        raise MeasurementError(f"whether it drifted cannot be told: {drift.reason}")
