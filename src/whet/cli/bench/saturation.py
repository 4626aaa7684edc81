"""``whet bench --find-max``: the highest load that meets an objective, at a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whet.cli.bench.output import ResultView, save_json
from whet.cli.options import OutputOptions, print_json
from whet.core.errors import Interrupted, UsageError
from whet.core.store import is_special
from whet.flow.bench.options import SearchOptions

if TYPE_CHECKING:
    from whet.flow.bench.run import BenchRequest
    from whet.flow.bench.saturation import Objective, SaturationResult


def run_search(
    request: BenchRequest, options: SearchOptions, view: ResultView, output: OutputOptions
) -> None:
    """Search, print, save; a search that ended early still reports what it has."""
    from whet.flow.bench.saturation import (
        Objective,
        SaturationFailed,
        SaturationLost,
        saturate,
        search_plan,
    )

    assert options.find_max is not None
    if not view.constraints and view.bounds is None:
        raise UsageError("--find-max searches for an objective; give --slo or --goodput")
    objective = Objective(
        constraints=view.constraints or (), bounds=view.bounds, share=options.goodput_share
    )
    with output.observer() as observer:
        try:
            result = saturate(
                request,
                objective=objective,
                axis=options.find_max,
                plan=search_plan(request, options, options.find_max),
                observer=observer,
                seconds=options.find_seconds,
            )
        except (SaturationFailed, SaturationLost) as error:
            _report(error.result, objective, view, output, failure=str(error))
            raise
        _report(result, objective, view, output, failure=None)
    if result.interrupted:
        raise Interrupted("stopped on request")


def _report(
    result: SaturationResult,
    objective: Objective,
    view: ResultView,
    output: OutputOptions,
    *,
    failure: str | None,
) -> None:
    from whet.report.bench.saturation import (
        SearchView,
        print_saturation,
        saturation_json,
        write_saturation_chart,
    )

    search = SearchView(
        axis=result.axis,
        saturation=result.saturation,
        trials=result.judged,
        constraints=objective.constraints,
        bounds=objective.bounds,
        share=objective.share,
        knee=result.knee,
        interrupted=result.interrupted,
        failure=failure,
    )
    console = output.console
    print_saturation(search, console)
    document = saturation_json(search) | view.notes
    if output.json:
        print_json(document)
    if view.path is None:
        return
    save_json(view.path, document, console)
    if is_special(view.path):
        return
    picture = view.path.with_suffix(".svg")
    if write_saturation_chart(search, picture):
        console.print(f"chart: {picture}", soft_wrap=True)
