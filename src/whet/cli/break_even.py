"""``whet break-even``: from which acceptance length on speculation pays on this machine."""

from __future__ import annotations

from pathlib import Path

from whet.cli.options import OutputOptions, SpecFile, print_json
from whet.core.errors import MeasurementError
from whet.core.records import BreakEvenMap, encode
from whet.core.spec import redacted_source
from whet.core.store import RunStore, write_atomic
from whet.flow.break_even.options import BreakEvenOptions
from whet.flow.run.options import SpecOptions


def break_even(
    spec_file: SpecFile = Path("whet.yaml"),
    /,
    *,
    change: SpecOptions = SpecOptions(),
    options: BreakEvenOptions = BreakEvenOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Measure how good a draft model must be for speculative decoding to pay off.

    The map has, by batch size and K, the acceptance length above which speculation pays.
    """
    from whet.flow.break_even.map import MapRequest, run_map

    folder = options.output_dir
    request = MapRequest(
        spec=change.read(spec_file),
        ks=options.numbers_of_drafts(),
        base=options.weights,
        levels=options.shares(),
        together=options.together,
    )
    with RunStore.open(folder, resume=options.resume) as store, output.observer() as observer:
        write_atomic(folder / "spec.yaml", redacted_source(spec_file))
        result = run_map(request, store, observer)
        page = _finish(result, folder, output)
    if not result.points:
        raise MeasurementError(
            "no batch size has figures with evidence for a plain and a speculative server; "
            f"{page} says why for each, then go on with --resume"
        )


def is_map(folder: Path) -> bool:
    """Whether a folder holds a finished map."""
    return (folder / "break_even").is_dir()


def report_map(folder: Path, output: OutputOptions) -> None:
    """The table and the files of a map again, from what is on disk."""
    for stored in RunStore.read(folder).all("break_even", BreakEvenMap):
        _finish(stored, folder, output)


def _finish(result: BreakEvenMap, folder: Path, output: OutputOptions) -> Path:
    from whet.report.break_even.files import print_break_even, write_break_even

    document = write_break_even(result, folder)
    if output.json:
        print_json(encode(result))
    print_break_even(document, output.console)
    page = folder / "break_even.html"
    output.console.print(f"\nMap: {page}", soft_wrap=True)
    return page
