"""Decided runs with the same baseline as one table, each cell beside its own run's baseline.

    python -m benchmarks.side_by_side OUT.csv LABEL=RUN …

A run is a folder, or what ``lab.archive`` wrote. Prints a Markdown table of requests per second
over the baseline's, with the 95% interval where a cell has several starts; OUT.csv has that and the
figures that explain it. Cells of two runs are compared by these ratios alone.
"""

from __future__ import annotations

import csv
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import whet.levers  # noqa: F401  a run's spec has the keys of levers
from whet.core.records import Estimate
from whet.core.run import Run
from whet.flow.run.conclude.results import summarize_run
from whet.report.run.cells_csv import csv_records

_FIGURES: Final = (
    "ttft_p50_ms",
    "ttft_p95_ms",
    "tpot_p50_ms",
    "e2e_p95_ms",
    "burst_ttft_p95_ms",
    "acceptance_length",
    "prefix_hit_rate",
    "vram_gb",
    "perplexity_ratio",
    "tasks_right",
    "tasks_asked",
    "requests",
    "starts",
    "evidence",
)


def main(words: Sequence[str]) -> None:
    """Write the CSV and print the table."""
    out, *named = words
    rows = []
    for label, _, path in (each.partition("=") for each in named):
        with TemporaryDirectory() as scratch:
            rows += [{"run": label, **row} for row in _rows(opened(Path(path), Path(scratch)))]
    with Path(out).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("\n".join(table(rows)))


def opened(path: Path, scratch: Path) -> Run:
    """A run's folder, or an archive that is extracted into ``scratch``."""
    if path.is_file():
        with tarfile.open(path) as archive:
            archive.extractall(scratch)  # our own archives; filters came with 3.11.4
        path = scratch / "run"
    return Run.read(path)


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    """A cell that lacks trials has a ratio and no interval."""
    baseline, rates = run.require_spec().baseline, summarize_run(run).tables["rps_mean"]
    cells = {(cell.variant, cell.batch_size): cell.rps_mean for cell in run.cells}
    for record, cell in zip(csv_records(run), run.cells, strict=True):
        rate, default = cell.rps_mean, cells[baseline, cell.batch_size]
        if rate is None or default is None:
            continue
        tested = None
        if cell.variant != baseline:
            places = (baseline, cell.batch_size), (cell.variant, cell.batch_size)
            tested = rates.difference(*places, family=0)
        ratio = Estimate(value=rate.value / default.value, low=None, high=None, samples=1)
        ratio = ratio if tested is None else tested.ratio
        yield {
            "config": cell.variant,
            "in_flight": cell.batch_size,
            "requests_per_s": _short(rate.value),
            "times_default": _short(ratio.value),
            "times_low": _short(ratio.low),
            "times_high": _short(ratio.high),
            **{figure: _short(record[figure]) for figure in _FIGURES},
        }


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line a configuration of a run, a column a load."""
    sizes = sorted({row["in_flight"] for row in rows})
    yield f"| run | in flight | {' | '.join(map(str, sizes))} |"
    yield f"|---|---|{'--:|' * len(sizes)}"
    for label, name in dict.fromkeys((row["run"], row["config"]) for row in rows):
        cells = {
            row["in_flight"]: _cell(row)
            for row in rows
            if (row["run"], row["config"]) == (label, name)
        }
        yield f"| {label} | {name} | {' | '.join(cells.get(size, '') for size in sizes)} |"


def _cell(row: dict[str, Any]) -> str:
    around = f" [{row['times_low']:.2f}, {row['times_high']:.2f}]" if row["times_low"] else ""
    return f"{row['times_default']:.2f}{around}"


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main(sys.argv[1:])
