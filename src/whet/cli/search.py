"""``whet bench --find-max``: the highest load that keeps an objective, at a terminal."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from whet.cli.console import ConsoleObserver
from whet.core.errors import Interrupted, UsageError
from whet.core.store import write_atomic

if TYPE_CHECKING:
    from whet.core.records.objective import Bound, Constraint
    from whet.flow.bench.run import BenchRequest
    from whet.flow.bench.saturation import Axis, Objective, SaturationResult

_AXES: Final = ("rate", "concurrency")
_LOWEST_RATE_RPS: Final = 0.01
_LIMITS: Final = {"rate": 10_000.0, "concurrency": 4096.0}

FIND_SECONDS: Final = 20.0
"""In this time a queue that grows has become a latency, and the first long answers have ended."""

FindSeconds = Annotated[
    float,
    typer.Option(
        min=0,
        help="Of each rate at least; 0 leaves it to --num-prompts.",
        rich_help_panel="Search",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchFlags:
    """What the flags said: ``axis`` is rate or concurrency; ``path`` None saves nothing."""

    axis: str
    constraints: tuple[Constraint, ...]
    bounds: tuple[Bound, ...] | None
    share: float
    start: float | None
    limit: float | None
    budget: int
    path: Path | None
    seconds: float = FIND_SECONDS


def run_search(request: BenchRequest, flags: SearchFlags) -> None:
    """Search, print, save; a search that ended early still reports what it has."""
    from whet.flow.bench.saturation import SaturationFailed, SaturationLost, saturate

    axis, objective = _axis(flags.axis), _objective(flags)
    with ConsoleObserver() as observer:
        try:
            result = saturate(
                request,
                objective=objective,
                axis=axis,
                plan=_plan(request, flags, axis),
                observer=observer,
                seconds=flags.seconds,
            )
        except (SaturationFailed, SaturationLost) as error:
            _report(error.result, objective, flags, observer, failure=str(error))
            raise
        _report(result, objective, flags, observer, failure=None)
    if result.interrupted:
        raise Interrupted("stopped on request")


def _axis(word: str) -> Axis:
    if word not in _AXES:
        raise UsageError(f"--find-max {word!r}: choose rate or concurrency")
    found: Literal["rate", "concurrency"] = "rate" if word == "rate" else "concurrency"
    return found


def _objective(flags: SearchFlags) -> Objective:
    from whet.flow.bench.saturation import Objective

    if not flags.constraints and flags.bounds is None:
        raise UsageError("--find-max searches for an objective; give --slo or --goodput")
    return Objective(constraints=flags.constraints, bounds=flags.bounds, share=flags.share)


def _plan(request: BenchRequest, flags: SearchFlags, axis: Axis) -> Any:
    from whet.metrics.saturation import SearchPlan

    start = flags.start
    if start is None and axis == "rate" and request.rate_rps and math.isfinite(request.rate_rps):
        start = request.rate_rps
    return SearchPlan(
        start=start or float(request.concurrency or 1),
        lowest=_LOWEST_RATE_RPS if axis == "rate" else 1,
        limit=flags.limit or _LIMITS[axis],
        integer=axis == "concurrency",
        budget=flags.budget,
    )


def _report(
    result: SaturationResult,
    objective: Objective,
    flags: SearchFlags,
    observer: ConsoleObserver,
    *,
    failure: str | None,
) -> None:
    from whet.report import (
        SearchView,
        print_saturation,
        saturation_json,
        write_saturation_plot,
    )

    view = SearchView(
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
    print_saturation(view, observer.console)
    if flags.path is None:
        return
    flags.path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(flags.path, json.dumps(saturation_json(view), allow_nan=False).encode())
    observer.note(f"result: {flags.path}")
    picture = flags.path.with_suffix(".png")
    if write_saturation_plot(view, picture):
        observer.note(f"picture: {picture}")
