"""``whet quantize --compare``: the comparison and its end at a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from rich.console import Console

from whet.cli.console import ConsoleObserver
from whet.core.errors import QuantizationError, UsageError, WhetError
from whet.core.records import SchemeTable
from whet.core.spec import CalibrationSpec, QualitySpec
from whet.core.store import RunStore

_LIMITS: Final = {
    "max_documents": ("--max-documents", 100),
    "max_tasks": ("--max-tasks", 120),
    "max_tokens": ("--max-document-tokens", 512),
}


def run_comparison(
    model: str,
    out: Path,
    flags: Mapping[str, Any],
    calibration: CalibrationSpec,
    *,
    device: str | None,
) -> None:
    """Compare, write the reports, print the table; a stopped one still reports what it has.

    Raises ``QuantizationError`` where no scheme could be made.
    """
    from whet.flow.quantize.compare import compare
    from whet.flow.quantize.compare_job import CompareRequest, open_comparison
    from whet.flow.quantize.schemes import choose_schemes

    named = flags["--schemes"]
    names = None if named is None else [name.strip() for name in named.split(",") if name.strip()]
    request = CompareRequest(
        model=model,
        recipes=choose_schemes(names, calibration),
        quality=_quality(flags),
        calibration=calibration.source,
        tasks=not flags["--no-tasks"],
        device=device,
    )
    with open_comparison(out) as store, ConsoleObserver() as observer:
        try:
            table = compare(request, store, observer)
        except (KeyboardInterrupt, WhetError):
            _report_rest(store)
            raise
        _report(table, store.root, observer.console)


def is_comparison(folder: Path) -> bool:
    """Whether a folder was made by ``quantize --compare``."""
    from whet.flow.quantize.compare_job import SETTINGS

    return (folder / SETTINGS).is_dir()


def report_comparison(folder: Path, console: Console) -> None:
    """The table and its files again, from what is on disk."""
    from whet.flow.quantize.table import scheme_table

    _report(scheme_table(RunStore.read(folder)), folder, console)


def _report(table: SchemeTable, folder: Path, console: Console) -> None:
    from whet.report import print_schemes, write_scheme_reports

    write_scheme_reports(table, folder)
    print_schemes(table, console)
    console.print(f"\nReport: {folder / 'schemes.html'}", soft_wrap=True, highlight=False)
    if all(row.checkpoint is None for row in table.rows):
        raise QuantizationError(
            "no scheme could be made; the table says why for each: choose another model, or "
            "--schemes that it can take"
        )


def _report_rest(store: RunStore) -> None:
    """What a stopped comparison has, if it got that far."""
    from whet.flow.quantize.compare_job import SETTINGS
    from whet.flow.quantize.table import scheme_table
    from whet.report import write_scheme_reports

    if store.status(SETTINGS, SETTINGS) is not None:
        write_scheme_reports(scheme_table(store), store.root)


def _quality(flags: Mapping[str, Any]) -> QualitySpec:
    limits = {
        key: usual if flags[flag] is None else flags[flag] for key, (flag, usual) in _LIMITS.items()
    }
    try:
        return QualitySpec(heldout=flags["--heldout"], tasks=flags["--tasks-file"], **limits)
    except ValidationError as error:
        first = error.errors()[0]
        flag, _ = _LIMITS[str(first["loc"][0])]
        raise UsageError(f"{flag}: {first['msg']} (got {first['input']!r})") from error
