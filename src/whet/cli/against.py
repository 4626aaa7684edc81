"""``whet bench --against``: two servers under one load, at a terminal."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from whet.cli.bench_result import print_result, run_json, save_picture
from whet.cli.console import ConsoleObserver
from whet.core.errors import Interrupted
from whet.core.store import write_atomic

if TYPE_CHECKING:
    from whet.flow.bench.compare import AgainstResult, ServerRuns
    from whet.flow.bench.run import BenchRequest
    from whet.report.against import AgainstView

_PANEL: Final = "Two servers"
_RUNS: Final = 4

Against = Annotated[
    str | None,
    typer.Option(
        help="Compare with this server: the same load in turn (ABBA), --num-runs of each, here 4 "
        "by default.",
        metavar="URL",
        rich_help_panel=_PANEL,
    ),
]
AgainstModel = Annotated[
    str | None, typer.Option(help="Its name there; --model by default.", rich_help_panel=_PANEL)
]


@dataclass(frozen=True, kw_only=True, slots=True)
class AgainstFlags:
    """What the flags said; ``runs`` and ``path`` None were not given.

    ``asked`` are the selection, the bounds and the constraints.
    """

    url: str
    model: str | None
    runs: int | None
    asked: tuple[Any, Any, Any]
    path: Path | None


def run_against(request: BenchRequest, flags: AgainstFlags) -> None:
    """Measure both, print, save; what ended early still reports the pairs that it has."""
    from whet.flow.bench.compare import (
        AgainstLost,
        Other,
        bench_against,
        require_comparison,
    )

    asked = replace(request, runs=flags.runs or _RUNS)
    with ConsoleObserver() as observer:
        try:
            result = bench_against(asked, Other(url=flags.url, model=flags.model), observer)
        except AgainstLost as error:
            _report(error.result, asked, flags, observer)
            raise
        _report(result, asked, flags, observer)
    if result.interrupted:
        raise Interrupted("stopped on request")
    require_comparison(result)


def _report(
    result: AgainstResult, request: BenchRequest, flags: AgainstFlags, observer: ConsoleObserver
) -> None:
    from whet.report.against import AgainstView, print_against

    view = AgainstView(
        a=result.a.name,
        b=result.b.name,
        pairs=result.pairs,
        comparisons=result.comparisons,
        warnings=result.warnings,
    )
    for letter, server in (("A", result.a), ("B", result.b)):
        if server.runs.trials:
            observer.stage(letter, server.name)
            print_result(server.runs, request, flags.asked, observer)
    print_against(view, observer.console)
    if flags.path is not None:
        _save(result, view, request, flags, observer)


def _save(
    result: AgainstResult,
    view: AgainstView,
    request: BenchRequest,
    flags: AgainstFlags,
    observer: ConsoleObserver,
) -> None:
    """One JSON of both servers, and a picture of each."""
    from whet.report.against import against_json

    path = flags.path
    if path is None:
        return
    told = against_json(
        view,
        _server_json(result.a, request, flags),
        _server_json(result.b, request, flags),
        interrupted=result.interrupted,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(told, allow_nan=False).encode())
    observer.note(f"result: {path}")
    for letter, server in (("a", result.a), ("b", result.b)):
        picture = path.with_stem(f"{path.stem}-{letter}").with_suffix(".png")
        save_picture(server.runs.trials, picture, observer)


def _server_json(server: ServerRuns, request: BenchRequest, flags: AgainstFlags) -> dict[str, Any]:
    selection, bounds, _ = flags.asked
    runs = server.runs
    return {
        "url": server.url,
        "model_id": runs.model,
        "tokenizer_id": runs.tokenizer,
        "runs": [run_json(trial, runs, request, selection, bounds) for trial in runs.trials],
    }
