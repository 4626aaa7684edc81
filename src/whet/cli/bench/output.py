"""The result of a measured load: printed for a person, saved under vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from whet.cli.options import OutputOptions, print_json
from whet.core.errors import UsageError
from whet.core.redact import REDACTED, SECRET, is_secret_name, redact
from whet.core.store import is_special, write_atomic
from whet.flow.bench.options import ResultOptions

if TYPE_CHECKING:
    from rich.console import Console

    from whet.core.records import TrialRecord
    from whet.core.records.objective import Bound, Constraint
    from whet.flow.bench.run import BenchRequest, BenchResult
    from whet.report.bench.vllm_json import Selection

_DETAILS: Final = (
    "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times",
    "generated_texts", "errors",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultView:
    """Which figures are shown and judged, and where they are saved."""

    selection: Selection
    bounds: tuple[Bound, ...] | None
    constraints: tuple[Constraint, ...] | None
    path: Path | None
    detailed: bool
    notes: dict[str, str]


def read_view(options: ResultOptions) -> ResultView:
    """The options, checked. ``UsageError`` for a metric, percentile or objective that is wrong."""
    from whet.flow.bench.build import key_values
    from whet.flow.bench.objectives import read_bounds, read_constraints

    notes = key_values(options.metadata, "--metadata")
    if options.label is not None:
        notes["label"] = options.label
    return ResultView(
        selection=_selection(options.percentile_metrics, options.metric_percentiles),
        bounds=read_bounds(options),
        constraints=read_constraints(options),
        path=options.result_dir / options.result_filename if options.save_result else None,
        detailed=options.save_detailed,
        notes={name: _without_secret(name, value) for name, value in notes.items()},
    )


def _without_secret(name: str, value: str) -> str:
    if is_secret_name(name) and not value.isdigit():  # as in max_tokens=128
        return REDACTED
    return SECRET.sub(REDACTED, redact(value))


def _selection(metrics: str, percentiles: str) -> Selection:
    from whet.report.bench.vllm_json import METRICS, Selection

    names = tuple(part.strip() for part in metrics.split(",") if part.strip())
    if not names or set(names) - set(METRICS):
        raise UsageError(
            f"--percentile-metrics {metrics!r}: give some of {', '.join(METRICS)}, comma-separated"
        )
    try:
        wanted = tuple(float(part) for part in percentiles.split(","))
    except ValueError:
        wanted = ()
    if not wanted or not all(0 < p < 100 for p in wanted):
        raise UsageError(
            f"--metric-percentiles {percentiles!r}: give numbers between 0 and 100, like 90,95,99"
        )
    return Selection(metrics=names, percentiles=wanted)


def report_bench(
    result: BenchResult, request: BenchRequest, view: ResultView, output: OutputOptions
) -> None:
    """Print the runs, as tables or as JSON, and save them where that was asked for."""
    console = output.console
    print_result(result, request, view, console)
    runs = [run_json(trial, result, request, view) for trial in result.trials]
    if output.json:
        print_json({"runs": runs})
    if view.path is None:
        return
    special = is_special(view.path)  # one stream of JSON, and no picture next to it
    for number, run in enumerate(runs):
        first = special or number == 0
        at = view.path if first else view.path.with_stem(f"{view.path.stem}-{number + 1}")
        save_json(at, run, console)
    if not special:
        save_picture(result.trials, view.path.with_suffix(".svg"), console)


def print_result(
    result: BenchResult, request: BenchRequest, view: ResultView, console: Console
) -> None:
    """All runs in one table, and whether they meet the objectives."""
    from whet.flow.bench.objectives import judge_objectives
    from whet.report.bench.console import print_load, print_verdict

    facts = result.facts
    if facts is not None and (request.prefixes is not None or facts.expected_hit_rate > 0):
        console.print(f"prefix hit rate to expect: {facts.expected_hit_rate:.3g}")
    print_load(result.trials, view.selection, console)
    judged = judge_objectives(result.trials, view.bounds, view.constraints)
    if (share := judged.share) is not None:
        console.print(
            f"{share.value:.1%} [{share.low or 0:.1%}, {share.high or 1:.1%}] of requests within "
            f"{judged.bounds_text}",
        )
    if judged.verdict is not None:
        print_verdict(judged.verdict, console)


def run_json(
    trial: TrialRecord, result: BenchResult, request: BenchRequest, view: ResultView
) -> dict[str, Any]:
    """One run under vLLM's names."""
    from whet.report.bench.vllm_json import run_info, vllm_result

    run = run_info(trial, result.model, result.tokenizer)
    run |= vllm_result(trial, view.selection, bounds=view.bounds)
    run["request_rate"] = "inf" if request.rate_rps is None else request.rate_rps
    run["burstiness"] = 1.0 if request.arrivals is None else request.arrivals.burstiness or 1.0
    if not view.detailed:
        run = {key: value for key, value in run.items() if key not in _DETAILS}
    return run | view.notes


def save_json(path: Path, document: dict[str, Any], console: Console) -> None:
    """Write one JSON file and say where."""
    write_atomic(path, json.dumps(document, allow_nan=False).encode() + b"\n")
    console.print(f"result: {path}", soft_wrap=True)


def save_picture(trials: Sequence[TrialRecord], path: Path, console: Console) -> None:
    """Draw the runs, where there is something to draw."""
    from whet.report.bench.latency_chart import write_latency_chart

    if write_latency_chart(trials, path):
        console.print(f"chart: {path}", soft_wrap=True)
