"""``whet bench``: a load against any OpenAI-compatible server, in vLLM's words.

The result is printed for a person and saved under vLLM's names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from whet.cli.options import OutputOptions, print_json
from whet.core.bench_options import BenchOptions, ResultOptions
from whet.core.errors import Interrupted, UsageError, WhetError
from whet.core.redact import REDACTED, is_secret_name, redact
from whet.core.server_url import split_server_url
from whet.core.store import is_special, write_atomic

if TYPE_CHECKING:
    from whet.core.records.load import TrialRecord
    from whet.core.records.objective import Bound, Constraint, SearchResult
    from whet.flow.bench.compare import AgainstResult
    from whet.flow.bench.run import BenchResult
    from whet.report.document import Section


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultView:
    """Which figures are shown and judged, and where they are saved."""

    percentiles: tuple[float, ...]
    bounds: tuple[Bound, ...] | None
    constraints: tuple[Constraint, ...] | None
    path: Path | None
    detailed: bool
    notes: dict[str, str]


def read_view(options: ResultOptions) -> ResultView:
    """Return the checked options. ``UsageError`` for a percentile or objective that is wrong."""
    from whet.flow.bench.build import key_values, read_objectives

    notes = key_values(options.metadata, "--metadata")
    bounds, constraints = read_objectives(options)
    return ResultView(
        percentiles=_percentiles(options.metric_percentiles),
        bounds=bounds,
        constraints=constraints,
        path=options.result_dir / options.result_filename if options.save_result else None,
        detailed=options.save_detailed,
        notes={name: _without_secret(name, value) for name, value in notes.items()},
    )


def _without_secret(name: str, value: str) -> str:
    is_secret = is_secret_name(name) and not value.isdigit()  # as in max_tokens=128
    return REDACTED if is_secret else redact(value)


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        percentiles = tuple(float(part) for part in text.split(","))
    except ValueError:
        percentiles = ()
    if not percentiles or not all(0 < p < 100 for p in percentiles):
        raise UsageError(
            f"--metric-percentiles {text!r}: give numbers between 0 and 100, like 90,95,99"
        )
    return percentiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a command prints and saves; files by what their names add to the path."""

    sections: Sequence[Section]
    document: dict[str, Any]
    files: Mapping[str, dict[str, Any]]

    def show(self, view: ResultView, output: OutputOptions) -> None:
        """Print the sections, or JSON too, and save what ``--save-result`` asks for."""
        from whet.report.writers.console import print_sections

        print_sections(self.sections, output.console)
        if output.json:
            print_json(self.document)
        if view.path is None:
            return
        special = is_special(view.path)
        stem = view.path.stem
        for suffix, document in self.files.items():
            path = view.path if special else view.path.with_stem(stem + suffix)
            write_atomic(path, json.dumps(document, allow_nan=False).encode() + b"\n")
            output.console.print(f"result: {path}", soft_wrap=True)
            output.result(path)


def bench_report(result: BenchResult, view: ResultView) -> Report:
    """All runs in one table, and a file for each."""
    runs = [run_json(trial, result, view) for trial in result.trials]
    return Report(
        sections=[_section(result, view)],
        document={"runs": runs},
        files={f"-{number}" if number > 1 else "": run for number, run in enumerate(runs, 1)},
    )


def compare_report(result: AgainstResult, view: ResultView) -> Report:
    """Both servers, and what the comparison decides."""
    from whet.report.bench.compare import against_json, compare_section

    compared, (a, b) = result.compared, result.runs
    sections = [
        replace(section, title=f"{letter}: {name}, {section.title}")
        for letter, name, runs in (("A", compared.a, a), ("B", compared.b, b))
        if runs.trials and (section := _section(runs, view))
    ]
    servers = (
        {
            "url": url,
            "model_id": runs.model,
            "tokenizer_id": runs.tokenizer,
            "runs": [run_json(trial, runs, view) for trial in runs.trials],
        }
        for url, runs in zip(result.urls, result.runs, strict=True)
    )
    stopped = isinstance(result.error, Interrupted)
    document = against_json(compared, *servers, interrupted=stopped)
    return Report(
        sections=[*sections, compare_section(compared)], document=document, files={"": document}
    )


def search_report(result: SearchResult, view: ResultView) -> Report:
    """The highest load that meets an objective."""
    from whet.report.bench.saturation import saturation_json, search_section

    document = saturation_json(result, view.percentiles, detailed=view.detailed) | view.notes
    return Report(sections=[search_section(result)], document=document, files={"": document})


def _section(result: BenchResult, view: ResultView) -> Section:
    """All runs in one table, and whether they meet the objectives."""
    from whet.report.bench.load import load_section

    facts = result.facts
    shares = facts is not None and (
        result.request.prefixes.count > 0 or facts.expected_hit_rate > 0
    )
    return load_section(
        result.trials,
        view.percentiles,
        expected_hit_rate=facts.expected_hit_rate if facts is not None and shares else None,
        bounds=view.bounds,
        constraints=view.constraints,
    )


def run_json(trial: TrialRecord, result: BenchResult, view: ResultView) -> dict[str, Any]:
    """One run under vLLM's names."""
    request = result.request
    from whet.report.bench.vllm_json import run_info, vllm_result

    run = run_info(trial, result.model, result.tokenizer)
    run |= vllm_result(trial, view.percentiles, bounds=view.bounds, detailed=view.detailed)
    run["request_rate"] = "inf" if request.rate_rps is None else request.rate_rps
    run["burstiness"] = shape if math.isfinite(shape := request.load.burstiness) else "inf"
    return run | view.notes


def bench(
    url: Annotated[
        str | None, Parameter(name="--url", help="Server address, such as http://host:port.")
    ] = None,
    *,
    options: BenchOptions = BenchOptions(),
    output: OutputOptions = OutputOptions(),
) -> object:
    """Load-test a running server.

    Exit code 6 if no figure can be trusted: the client did not keep up, or no request was answered.
    """
    from whet.flow.bench.build import build_request
    from whet.flow.bench.compare import bench_against, require_comparison
    from whet.flow.bench.run import bench as send
    from whet.flow.bench.run import require_figures
    from whet.flow.bench.saturation import find_max

    view, search = read_view(options.result), options.search
    if options.compare.against is not None:
        split_server_url(options.compare.against, "--against")
    request = build_request(url, options)
    with output.observer() as observer:
        if search.find_max is not None:
            saturation = find_max(request, search, view.constraints, view.bounds, observer)
            search_report(saturation, view).show(view, output)
            _raise(saturation.error)
            return saturation
        if options.compare.against is not None:
            compared = bench_against(request, options.compare, observer)
            compare_report(compared, view).show(view, output)
            _raise(compared.error)
            require_comparison(compared)
            return compared
        result = send(request, observer)
        bench_report(result, view).show(view, output)
        _raise(Interrupted("stopped on request") if result.interrupted else None)
        return require_figures(result)


def _raise(error: WhetError | None) -> None:
    if error is not None:
        raise error
