"""``whet bench --find-max``: the highest load that meets an objective, at a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from whet.cli.bench.output import ResultView, save_json
from whet.cli.options import OutputOptions, print_json
from whet.core.errors import Interrupted, UsageError
from whet.flow.bench.options import SearchOptions

if TYPE_CHECKING:
    from whet.flow.bench.run import BenchRequest
    from whet.flow.bench.saturation import Axis, Objective, SaturationResult
    from whet.metrics.saturation import SearchPlan

_LOWEST_RATE_RPS: Final = 0.01
_LIMITS: Final = {"rate": 10_000.0, "concurrency": 4096.0}


def run_search(
    request: BenchRequest, options: SearchOptions, view: ResultView, output: OutputOptions
) -> None:
    """Search, print, save; a search that ended early still reports what it has."""
    from whet.flow.bench.saturation import (
        Objective,
        SaturationFailed,
        SaturationLost,
        saturate,
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
                plan=_plan(request, options, options.find_max),
                observer=observer,
                seconds=options.find_seconds,
            )
        except (SaturationFailed, SaturationLost) as error:
            _report(error.result, objective, view, output, failure=str(error))
            raise
        _report(result, objective, view, output, failure=None)
    if result.interrupted:
        raise Interrupted("stopped on request")


def _plan(request: BenchRequest, options: SearchOptions, axis: Axis) -> SearchPlan:
    from whet.metrics.saturation import SearchPlan

    start = options.find_start
    if start is None and axis == "rate" and request.rate_rps and math.isfinite(request.rate_rps):
        start = request.rate_rps
    return SearchPlan(
        start=start or float(request.concurrency or 1),
        lowest=_LOWEST_RATE_RPS if axis == "rate" else 1,
        limit=options.find_limit or _LIMITS[axis],
        integer=axis == "concurrency",
        budget=options.find_budget,
    )


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
    picture = view.path.with_suffix(".svg")
    if write_saturation_chart(search, picture):
        console.print(f"chart: {picture}", soft_wrap=True, highlight=False)
