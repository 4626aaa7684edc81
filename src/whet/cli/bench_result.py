"""What a measured load comes to: printed for a person, saved under vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.cli.console import ConsoleObserver

if TYPE_CHECKING:
    from whet.core.records import TrialRecord
    from whet.core.records.objective import Bound
    from whet.flow.bench.run import BenchRequest, BenchResult
    from whet.report.vllm_json import Selection


def print_result(
    result: BenchResult,
    request: BenchRequest,
    asked: tuple[Any, Any, Any],
    observer: ConsoleObserver,
) -> None:
    """All runs in one table; ``asked`` are the selection, the bounds and the constraints."""
    from whet.metrics.objective import attainment, goodput_text, judge
    from whet.metrics.usable import usable_trials
    from whet.metrics.window import steady_requests
    from whet.report.load_console import print_load, print_verdict

    selection, bounds, constraints = asked
    facts = result.facts
    if facts is not None and (request.prefixes is not None or facts.expected_hit_rate > 0):
        observer.note(f"prefix hit rate to expect: {facts.expected_hit_rate:.3g}")
    print_load(result.trials, selection, observer.console)
    events = [e for trial in usable_trials(result.trials) for e in steady_requests(trial)]
    if bounds is not None and (share := attainment(events, bounds)) is not None:
        observer.console.print(
            f"{share.value:.1%} [{share.low or 0:.1%}, {share.high or 1:.1%}] of requests within "
            f"{goodput_text(bounds)}",
            highlight=False,
        )
    if constraints is not None and events:
        print_verdict(judge(events, constraints), observer.console)


def save_result_files(
    result: BenchResult,
    request: BenchRequest,
    asked: tuple[Any, Any],
    path: Path,
    observer: ConsoleObserver,
) -> None:
    """One JSON a run; the second and later runs carry their number in the name."""
    from whet.core.store import write_atomic

    selection, bounds = asked
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, trial in enumerate(result.trials):
        at = path if number == 0 else path.with_stem(f"{path.stem}-{number + 1}")
        told = run_json(trial, result, request, selection, bounds)
        write_atomic(at, json.dumps(told, allow_nan=False).encode())
        observer.note(f"result: {at}")
    save_picture(result.trials, path.with_suffix(".png"), observer)


def run_json(
    trial: TrialRecord,
    result: BenchResult,
    request: BenchRequest,
    selection: Selection,
    bounds: Sequence[Bound] | None,
) -> dict[str, Any]:
    """One run under vLLM's names."""
    from whet.report.vllm_json import run_info, vllm_result

    told = run_info(trial, result.model, result.tokenizer) | vllm_result(
        trial, selection, bounds=bounds
    )
    told["request_rate"] = "inf" if request.rate_rps is None else request.rate_rps
    told["burstiness"] = 1.0 if request.arrivals is None else request.arrivals.burstiness or 1.0
    return told


def save_picture(trials: Sequence[TrialRecord], path: Path, observer: ConsoleObserver) -> None:
    """The runs as a picture, where there is something to draw."""
    from whet.report.load_plot import write_load_plot

    if write_load_plot(trials, path):
        observer.note(f"picture: {path}")
