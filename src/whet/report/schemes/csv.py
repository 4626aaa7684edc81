"""``schemes.csv``: one line a scheme, the 16-bit source first."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Final

from whet.core.records import Estimate, SchemeRow, SchemeSpeed, SchemeTable
from whet.core.store import write_atomic
from whet.report.run.cells_csv import Value, field
from whet.report.schemes.document import row_notes

_ESTIMATES: Final = ("perplexity", "perplexity_ratio", "kl", "flips")
SCHEMES_COLUMNS: Final[tuple[str, ...]] = (
    "scheme",
    "recipe",
    "weight_bytes",
    "bits_per_weight",
    *(f"{name}{end}" for name in _ESTIMATES for end in ("", "_low", "_high")),
    "kl_p99",
    "documents",
    "positions",
    "tasks_right",
    "tasks_asked",
    "tasks_lost",
    "tasks_gained",
    "task_scores",
    "quantize_seconds",
    "peak_memory_bytes",
    "quantize_device",
    "kernels",
    "engine",
    "served_perplexity",
    "rounded",
    "unit_error_mean",
    "unit_error_max",
    "unit_worst",
    "calibration_samples",
    "calibration_tokens",
    "calibration_seed",
    "not_made",
    "not_measured",
    "not_served",
    "notes",
    "loads",
    "output_tps",
    "serving_memory_bytes",
    "distances_by",
    "kl_top_k",
    "kl_covered",
)
"""Every column of ``schemes.csv``; new ones are added at the end only."""


def write_schemes_csv(table: SchemeTable, path: Path) -> None:
    """Write it atomically. A missing value is an empty field."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(SCHEMES_COLUMNS)
    for row in table.rows:
        values = {**_stored(row), **_measured(row), **_server_values(row)}
        writer.writerow([field(values.get(name)) for name in SCHEMES_COLUMNS])
    write_atomic(path, buffer.getvalue())


def _stored(row: SchemeRow) -> dict[str, Value]:
    done = row.checkpoint
    values: dict[str, Value] = {
        "scheme": row.name,
        "recipe": row.title,
        "weight_bytes": row.weight_bytes,
        "bits_per_weight": row.bits_per_weight,
        "not_made": row.not_made,
        "not_measured": row.not_measured,
        "not_served": row.not_served,
        "notes": "; ".join(row_notes(row)) or None,
    }
    if done is None:
        return values
    values |= {
        "quantize_seconds": done.seconds,
        "peak_memory_bytes": done.peak_memory_bytes,
        "quantize_device": done.device,
    }
    if done.calibration is not None:
        values |= {
            "calibration_samples": done.calibration.samples,
            "calibration_tokens": done.calibration.tokens,
            "calibration_seed": done.calibration.seed,
        }
    if done.units:
        worst = max(done.units, key=lambda unit: unit.error)
        values |= {
            "unit_error_mean": sum(unit.error for unit in done.units) / len(done.units),
            "unit_error_max": worst.error,
            "unit_worst": worst.unit,
        }
    return values


def _measured(row: SchemeRow) -> dict[str, Value]:
    distances = row.distances
    values = _estimate("perplexity", row.perplexity)
    if distances is None:
        return values
    for name in _ESTIMATES[1:]:
        values |= _estimate(name, getattr(distances, name))
    return values | {
        "kl_p99": distances.kl_p99.value,
        "documents": len(distances.documents),
        "positions": sum(one.tokens for one in distances.documents),
        "rounded": " ".join(distances.rounded),
        "distances_by": "transformers" if distances.top_k is None else "server",
        "kl_top_k": distances.top_k,
        "kl_covered": distances.covered,
    }


def _estimate(name: str, estimate: Estimate | None) -> dict[str, Value]:
    if estimate is None:
        return {}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _server_values(row: SchemeRow) -> dict[str, Value]:
    if row.served is None:
        return {}
    tasks = row.served.tasks
    speeds = row.served.speeds
    paired = [task for task in tasks if task.lost is not None and task.gained is not None]
    return {
        "tasks_right": sum(task.right for task in tasks),
        "tasks_asked": sum(task.n for task in tasks),
        "tasks_lost": sum(task.lost or 0 for task in paired) if paired else None,
        "tasks_gained": sum(task.gained or 0 for task in paired) if paired else None,
        "task_scores": "; ".join(f"{task.task} {task.right}/{task.n}" for task in tasks) or None,
        "kernels": "; ".join(row.served.kernels) or None,
        "engine": row.served.engine,
        "served_perplexity": row.served.perplexity.value if row.served.perplexity else None,
        "loads": "; ".join(str(each.load) for each in speeds) or None,
        "output_tps": "; ".join(_rate(each) for each in speeds) or None,
        "serving_memory_bytes": row.served.memory_bytes,
    }


def _rate(speed: SchemeSpeed) -> str:
    """``102.3``; ``?`` for a load without a figure, so that the places match those of ``loads``."""
    return "?" if speed.output_tps is None else f"{speed.output_tps:.6g}"
