"""The rows of the quantizer table: CSV files without anybody's paths, and README's summary."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.jobs import Spent
from whet.core.redact import redact
from whet.core.store import write_atomic
from whet.core.units import GIB

_PATH: Final = re.compile(r"(?<![\w/])~?(?:/[\w.+@=,-]+)+/([\w.+@=,-]+)/?")
_DIGITS: Final = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One quantizer run: what was asked, where the time went, what came out.

    ``without_loading_s`` is work and saving. ``peak_memory_gib`` is the device's, sampled from
    outside, or on a CPU the process' resident memory, as ``memory_kind`` says.
    """

    tool: str
    method: str
    scheme: str
    group_size: int
    seed: int
    model: str
    device: str
    threads: int
    calibration_samples: int | None = None
    calibration_tokens: int | None = None
    compute_dtype: str | None = None
    peer_batch: int | None = None
    import_s: float | None = None
    load_s: float | None = None
    work_s: float | None = None
    save_s: float | None = None
    without_loading_s: float | None = None
    total_s: float | None = None
    peak_memory_gib: float | None = None
    memory_kind: str | None = None
    allocated_gib: float | None = None
    bits_per_weight: float | None = None
    weight_bytes: int | None = None
    phases: str | None = None
    versions: str | None = None
    started_at: str | None = None
    git_commit: str | None = None
    failure: str | None = None


def spent_values(spent: Spent, device: str) -> dict[str, object]:
    """The columns that a finished process fills."""
    allocated = spent.allocated_bytes
    return {
        "calibration_samples": spent.samples or None,
        "calibration_tokens": spent.tokens or None,
        "import_s": spent.import_s,
        "load_s": spent.load_s,
        "work_s": spent.work_s,
        "save_s": spent.save_s,
        "without_loading_s": spent.work_s + spent.save_s,
        "total_s": spent.total_s,
        "peak_memory_gib": spent.peak_bytes / GIB,
        "memory_kind": "process" if device == "cpu" else "device",
        "allocated_gib": None if allocated is None else allocated / GIB,
        "phases": " ".join(f"{name}={seconds:.2f}" for name, seconds in spent.phases) or None,
        "versions": " ".join(f"{name}={version}" for name, version in spent.versions),
    }


def write_rows(rows: Sequence[Any], path: Path) -> None:
    """One line a row of any kind, atomically; what a row lacks is an empty field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.StringIO(newline="")
    names = dict.fromkeys(name for row in rows for name in asdict(row))
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = asdict(row)
        writer.writerow(_field(values.get(name)) for name in names)
    write_atomic(path, buffer.getvalue().encode())


def _field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    return scrub(value) if isinstance(value, str) else str(value)


def scrub(text: str) -> str:
    """One line of ``text``, its secrets replaced and its absolute paths cut to their last name."""
    return without_folders(redact(" ".join(text.split())))


def without_folders(text: str, *, before: str = "") -> str:
    """``text`` with its absolute paths cut to their last name, with ``before`` in front."""
    return _PATH.sub(rf"{before}\1", text)


def summary(rows: Sequence[Row]) -> str:
    """A markdown table: a line for each tool and method, the mean over seeds with its range."""
    lines = [
        "| quantizer | seeds | s without loading | s in all | peak GiB | bits |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(map(_name, rows)):
        group = [row for row in rows if _name(row) == name]
        made = [row for row in group if row.failure is None]
        if not made:
            lines.append(f"| {name} | 0 | {scrub(group[0].failure or '')} |  |  |  |")
            continue
        cells = [
            spread([row.without_loading_s for row in made], 1),
            spread([row.total_s for row in made], 1),
            spread([row.peak_memory_gib for row in made], 2),
            spread([row.bits_per_weight for row in made], 3),
        ]
        lines.append(f"| {name} | {len(made)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _name(row: Row) -> str:
    """Tool and method of a line; the batch where it is not the peer's default.

    This project's searches end with a refit of scales and codes, which published AWQ and GPTQ lack.
    """
    batch = f", batch {row.peer_batch}" if row.peer_batch not in (None, 1) else ""
    refit = " + refit" if row.tool == "whet" and row.method != "rtn" else ""
    return f"{row.tool} {row.method}{refit}{batch}"


def spread(values: Sequence[float | None], digits: int) -> str:
    """``mean (lowest–highest)``; one value alone if they print alike, – without values."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean, low, high = (
        f"{value:.{digits}f}" for value in (sum(known) / len(known), min(known), max(known))
    )
    return mean if low == high else f"{mean} ({low}–{high})"
