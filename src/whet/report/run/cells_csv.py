"""``results.csv``: seven columns that people rely on first, everything else after them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whet.core.records.quality import QualityRecord
from whet.core.records.summary import CellSummary, Estimate, Figure
from whet.core.redact import one_line
from whet.core.run import Run
from whet.core.store import write_atomic
from whet.metrics import METRICS
from whet.metrics.metric import Metric
from whet.report.run.common import quantized_of, weights_size

if TYPE_CHECKING:
    import pandas as pd

Value = str | int | float | None

_LEADING: Final = (
    "config",
    "batch_size",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "tps_mean",
    "vram_gb",
    "cost_per_1m_tokens",
)
_OF_CELL: Final = (
    *("expected_hit_rate", "status", "memory_kind", "trials", "starts", "requests", "errors"),
    *("warmup_excluded", "window_s", "failure"),
)


def _columns(metric: Metric) -> tuple[str, ...]:
    """The figure's column, and those of its interval."""
    name = metric.column or metric.name
    return _with_ends(name) if metric.bounds else (name,)


def _with_ends(name: str) -> tuple[str, ...]:
    return name, f"{name}_low", f"{name}_high"


def write_csv(run: Run, path: Path) -> None:
    """Write one line a cell, atomically. A missing value is an empty field."""
    records = list(_records(run))
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    columns = dict.fromkeys((*_LEADING, *(name for each in records[:1] for name in each)))
    writer.writerow(columns)
    for record in records:
        writer.writerow([field(record[name]) for name in columns])
    write_atomic(path, buffer.getvalue())


def cells_table(run: Run) -> pd.DataFrame:
    """Return the cells without intervals, one row each; columns without a value are left out."""
    import pandas as pd

    shown = {each.column or each.name: each.name for each in METRICS.values() if each.views}
    names = {
        **{"config": "configuration", "batch_size": "concurrency", "rate_rps": "request_rate"},
        **shown,
        **{"tps_mean": "tokens_per_s", "rps_mean": "requests_per_s"},
        **{"status": "status", "decision": "standing"},
    }
    table = pd.DataFrame(list(_records(run)), columns=list(names)).rename(columns=names)
    return table.dropna(axis="columns", how="all")


def _records(run: Run) -> Iterator[dict[str, Value]]:
    """The cells as flat records, all of the same columns."""
    for cell in run.cells:
        record = run.quality.get(cell.variant)
        decided = run.decided(cell.variant, cell.load)
        yield {
            **_cell_values(cell),
            **_quality_values(record),
            **_weight_values(run, cell.variant),
            **_fields(["selected_cost_per_1m_tokens"], cell.selected_cost),
            "too_few_samples": " ".join(_too_few(cell, record)) or None,
            "decision": decided.label if decided else None,
            "evidence": run.evidence(cell.variant, cell.load),
            "tier": run.tier,
            "price_usd_per_hour": run.spec.hardware.price_usd_per_hour if run.spec else None,
        }


def _cell_values(cell: CellSummary) -> dict[str, Value]:
    values: dict[str, Value] = {name: getattr(cell, name) for name in _OF_CELL}
    values |= {
        "config": cell.variant,
        "batch_size": cell.load.concurrency,
        "rate_rps": cell.load.rate_rps,
    }
    for metric in METRICS.values():
        values |= _fields(_columns(metric), cell.figures.get(metric.name))
    return values


def _fields(columns: Sequence[str], figure: Figure | None) -> dict[str, Value]:
    """The value, and the ends of the interval where there are columns for them."""
    ends: tuple[Value, ...] = (
        (figure.value, figure.low, figure.high) if isinstance(figure, Estimate) else (figure,)
    )
    return dict(zip_longest(columns, ends[: len(columns)]))


def _quality_values(record: QualityRecord | None) -> dict[str, Value]:
    tasks = record.tasks if record else ()
    distances = record.distances if record else None
    return {
        **_fields(["perplexity"], record.perplexity if record else None),
        **_fields(_with_ends("perplexity_ratio"), record.perplexity_ratio if record else None),
        "tasks_right": sum(task.right for task in tasks) if tasks else None,
        "tasks_asked": sum(task.n for task in tasks) if tasks else None,
        **_fields(_with_ends("kl"), distances.kl if distances else None),
        **_fields(["kl_p99"], distances.kl_p99 if distances else None),
        **_fields(_with_ends("flips"), distances.flips if distances else None),
    }


def _weight_values(run: Run, variant: str) -> dict[str, Value]:
    size, bits = weights_size(run, variant) or (None, None)
    made = quantized_of(run, variant)
    return {
        "weight_bytes": size,
        "bits_per_weight": bits,
        "quantize_seconds": made.seconds if made else None,
    }


def _too_few(cell: CellSummary, record: QualityRecord | None) -> Iterator[str]:
    """The columns whose percentile has too few samples."""
    for metric in METRICS.values():
        estimate = cell.estimate(metric.name)
        if metric.marked and estimate is not None and not estimate.enough:
            yield metric.name
    distances = record.distances if record else None
    if distances is not None and not distances.kl_p99.enough:
        yield "kl_p99"


def field(value: Value) -> str:
    """A value as a CSV field: empty where it is missing, six significant figures."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.1f}"
    return neutral(one_line(value)) if isinstance(value, str) else str(value)


def neutral(text: str) -> str:
    """``text`` so that no spreadsheet takes it for a formula (OWASP, CSV injection)."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
