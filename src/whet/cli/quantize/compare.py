"""``whet quantize --compare``: the comparison and its end at a terminal."""

from __future__ import annotations

from pathlib import Path

from whet.cli.options import OutputOptions, print_json
from whet.core.errors import QuantizationError, WhetError
from whet.core.records import SchemeTable, encode
from whet.core.store import RunStore
from whet.flow.quantize.options import QuantizeOptions


def run_comparison(model: str, out: Path, options: QuantizeOptions, output: OutputOptions) -> None:
    """Compare, write the reports, print the table; a stopped one still reports what it has.

    Raises ``QuantizationError`` where no scheme could be made.
    """
    from whet.flow.quantize.compare import compare
    from whet.flow.quantize.compare_job import CompareRequest, open_comparison
    from whet.flow.quantize.schemes import choose_schemes

    comparison, calibration = options.comparison, options.text.spec()
    names = None
    if comparison.schemes is not None:
        names = [name.strip() for name in comparison.schemes.split(",") if name.strip()]
    request = CompareRequest(
        model=model,
        recipes=choose_schemes(names, calibration),
        quality=comparison.quality(),
        calibration=calibration.source,
        tasks=not comparison.no_tasks,
        server_distances=comparison.server_distances,
        loads=comparison.speed_loads(),
        device=options.device,
    )
    with open_comparison(out) as store, output.observer() as observer:
        try:
            table = compare(request, store, observer)
        except (KeyboardInterrupt, WhetError):
            _report_rest(store)
            raise
        _report(table, store.root, output)


def is_comparison(folder: Path) -> bool:
    """Whether a folder was made by ``quantize --compare``."""
    from whet.flow.quantize.compare_job import SETTINGS

    return (folder / SETTINGS).is_dir()


def report_comparison(folder: Path, output: OutputOptions) -> None:
    """The table and its files again, from what is on disk."""
    from whet.flow.quantize.table import scheme_table

    _report(scheme_table(RunStore.read(folder)), folder, output)


def _report(table: SchemeTable, folder: Path, output: OutputOptions) -> None:
    from whet.report.schemes.files import print_schemes, write_scheme_reports

    document = write_scheme_reports(table, folder)
    if output.json:
        print_json(encode(table))
    print_schemes(document, output.console)
    output.console.print(f"\nReport: {folder / 'schemes.html'}", soft_wrap=True)
    if all(row.checkpoint is None for row in table.rows):
        raise QuantizationError(
            "no scheme could be made; the table says why for each: choose another model, or "
            "--schemes that it can take"
        )


def _report_rest(store: RunStore) -> None:
    """What a stopped comparison has, if it got that far."""
    from whet.flow.quantize.compare_job import SETTINGS
    from whet.flow.quantize.table import scheme_table
    from whet.report.schemes.files import write_scheme_reports

    if store.status(SETTINGS, SETTINGS) is not None:
        write_scheme_reports(scheme_table(store), store.root)
