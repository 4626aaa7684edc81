"""``whet break-even``: from which acceptance length on speculation pays on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from whet.cli.console import ConsoleObserver
from whet.cli.run import SpecFile, with_batch_sizes
from whet.core.errors import MeasurementError, UsageError
from whet.core.records import BreakEvenMap
from whet.core.spec import load_spec, redacted_source
from whet.core.store import RunStore, write_atomic


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("break-even")(break_even)


def break_even(
    spec_file: SpecFile = Path("whet.yaml"),
    output_dir: Annotated[
        Path, typer.Option("-o", "--output-dir", help="The folder of this map.")
    ] = Path("break-even"),
    k: Annotated[str, typer.Option("--k", help="Draft tokens a step, each a map.")] = "2,4,6",
    weights: Annotated[
        str | None,
        typer.Option(help="The variant to speculate on, such as awq; the baseline by default."),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            help="Worse drafts to measure beside the real one, 0 to 1: noise in its weights (CPU), "
            "or the share of K that is rejected (GPU). 0.3,0.5,1 or 0,0.5,1 by default."
        ),
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option("--batch-sizes", help="Replace load.batch_sizes: 1,4,8.")
    ] = None,
    together: Annotated[
        int, typer.Option(help="Servers that come up at the same time, as many as memory holds.")
    ] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted map, or add K to one.")
    ] = False,
) -> None:
    """Map, by batch size and K, the acceptance length above which speculation pays."""
    from whet.flow.break_even.map import MapRequest, run_map

    request = MapRequest(
        spec=with_batch_sizes(load_spec(spec_file), batch_sizes),
        ks=tuple(_whole(k)),
        base=weights,
        levels=None if levels is None else tuple(_shares(levels)),
        together=together,
    )
    with RunStore.open(output_dir, resume=resume) as store, ConsoleObserver() as observer:
        write_atomic(output_dir / "spec.yaml", redacted_source(spec_file))
        found = run_map(request, store, observer)
        page = _finish(found, output_dir, observer.console)
    if not found.points:
        raise MeasurementError(
            "no batch size has figures with evidence for a plain and a speculative server; "
            f"{page} says why for each, then go on with --resume"
        )


def is_map(folder: Path) -> bool:
    """Whether a folder holds a finished map."""
    return (folder / "break_even").is_dir()


def report_map(folder: Path, console: Console) -> None:
    """The table and the files of a map again, from what is on disk."""
    for found in RunStore.read(folder).all("break_even", BreakEvenMap):
        _finish(found, folder, console)


def _finish(found: BreakEvenMap, folder: Path, console: Console) -> Path:
    from whet.report.break_even_map_files import print_break_even, write_break_even

    write_break_even(found, folder)
    print_break_even(found, console)
    page = folder / "break_even.html"
    console.print(f"\nMap: {page}", soft_wrap=True, highlight=False)
    return page


def _whole(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--k {text!r}: whole numbers are needed, such as 2,4,6") from error


def _shares(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--levels {text!r}: shares are needed, such as 0.3,0.5,1") from error
