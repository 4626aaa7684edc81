"""``whet bench --against``: two servers under one load, at a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from whet.cli.bench.output import ResultView, print_result, run_json, save_json, save_picture
from whet.cli.options import OutputOptions, print_json
from whet.core.errors import Interrupted
from whet.core.store import is_special
from whet.flow.bench.options import BenchOptions

if TYPE_CHECKING:
    from whet.flow.bench.compare import AgainstResult, ServerRuns
    from whet.flow.bench.run import BenchRequest

_RUNS: Final = 4


def run_comparison(
    request: BenchRequest, options: BenchOptions, view: ResultView, output: OutputOptions
) -> None:
    """Measure both, print, save; what ended early still reports the pairs that it has."""
    from whet.flow.bench.compare import AgainstLost, Other, bench_against, require_comparison

    request = replace(request, runs=options.load.num_runs or _RUNS)
    assert options.compare.against is not None
    other = Other(url=options.compare.against, model=options.compare.against_model)
    with output.observer() as observer:
        try:
            result = bench_against(request, other, observer)
        except AgainstLost as error:
            _report(error.result, request, view, output)
            raise
        _report(result, request, view, output)
    if result.interrupted:
        raise Interrupted("stopped on request")
    require_comparison(result)


def _report(
    result: AgainstResult, request: BenchRequest, view: ResultView, output: OutputOptions
) -> None:
    from whet.report.bench.compare import AgainstView, against_json, print_against

    comparison = AgainstView(
        a=result.a.name,
        b=result.b.name,
        pairs=result.pairs,
        comparisons=result.comparisons,
        warnings=result.warnings,
    )
    console = output.console
    for letter, server in (("A", result.a), ("B", result.b)):
        if server.runs.trials:
            console.print(f"\n{letter}: {server.name}")
            print_result(server.runs, request, view, console)
    print_against(comparison, console)
    document = against_json(
        comparison,
        _server_json(result.a, request, view),
        _server_json(result.b, request, view),
        interrupted=result.interrupted,
    )
    if output.json:
        print_json(document)
    if view.path is None:
        return
    save_json(view.path, document, console)
    if is_special(view.path):
        return
    for letter, server in (("a", result.a), ("b", result.b)):
        picture = view.path.with_stem(f"{view.path.stem}-{letter}").with_suffix(".svg")
        save_picture(server.runs.trials, picture, console)


def _server_json(server: ServerRuns, request: BenchRequest, view: ResultView) -> dict[str, Any]:
    runs = server.runs
    return {
        "url": server.url,
        "model_id": runs.model,
        "tokenizer_id": runs.tokenizer,
        "runs": [run_json(trial, runs, request, view) for trial in runs.trials],
    }
