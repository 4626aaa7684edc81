"""The rows of the client comparison, and its four tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.table import scrub


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One run of one tool. ``table`` is accuracy, burst, cpu or speed.

    ``…_error_ms`` is reported less true. The ``inside`` columns are this project's alone: the
    error of single requests and pieces, and CPU within the timed loop. ``complaint`` is what a tool
    said that gave figures and then ended in protest; ``failure`` why there are none.
    """

    tool: str
    table: str
    repeat: int
    gap_ms: float
    in_flight: int
    requests: int
    pieces: int
    counted: int | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    true_ttft_p50_ms: float | None = None
    true_ttft_p99_ms: float | None = None
    true_tpot_p50_ms: float | None = None
    true_tpot_p99_ms: float | None = None
    ttft_p50_error_ms: float | None = None
    ttft_p99_error_ms: float | None = None
    tpot_p50_error_ms: float | None = None
    tpot_p99_error_ms: float | None = None
    schedule_ttft_p50_ms: float | None = None
    schedule_ttft_p99_ms: float | None = None
    inside_ttft_error_p50_us: float | None = None
    inside_ttft_error_p99_us: float | None = None
    inside_tpot_error_p50_us: float | None = None
    inside_tpot_error_p99_us: float | None = None
    inside_piece_error_p50_us: float | None = None
    inside_piece_error_p99_us: float | None = None
    inside_piece_error_max_us: float | None = None
    inside_cpu_us_per_chunk: float | None = None
    cpu_us_per_chunk: float | None = None
    cpu_s: float | None = None
    chunks_per_s: float | None = None
    peak_mib: float | None = None
    total_s: float | None = None
    version: str | None = None
    started_at: str | None = None
    complaint: str | None = None
    failure: str | None = None


Column = tuple[str, Callable[[Row], float | None], int]

_ERRORS: Final[tuple[Column, ...]] = (
    ("TTFT p50", lambda row: row.ttft_p50_error_ms, 3),
    ("TTFT p99", lambda row: row.ttft_p99_error_ms, 3),
    ("TPOT p50", lambda row: row.tpot_p50_error_ms, 4),
    ("TPOT p99", lambda row: row.tpot_p99_error_ms, 4),
    ("one piece, p50 µs", lambda row: row.inside_piece_error_p50_us, 1),
    ("one piece, p99 µs", lambda row: row.inside_piece_error_p99_us, 1),
)
_TABLES: Final[tuple[tuple[str, str, tuple[Column, ...]], ...]] = (
    ("accuracy", "Reported less true, ms, closed loop", _ERRORS),
    ("burst", "Reported less true, ms, every request at once", _ERRORS),
    (
        "cpu",
        "CPU of the client for each streamed chunk, µs",
        (
            ("whole process tree", lambda row: row.cpu_us_per_chunk, 1),
            ("within the timed loop", lambda row: row.inside_cpu_us_per_chunk, 1),
        ),
    ),
    (
        "speed",
        "As fast as it can",
        (
            ("chunks/s", lambda row: row.chunks_per_s, 0),
            ("peak MiB", lambda row: row.peak_mib, 0),
            ("s in all", lambda row: row.total_s, 1),
        ),
    ),
)


def markdown(rows: Sequence[Row]) -> str:
    """Four tables, a line a tool and setting: the mean over repeats with its range."""
    parts = []
    for name, title, columns in _TABLES:
        chosen = [row for row in rows if row.table == name]
        if chosen:
            parts.append(_table(title, chosen, columns))
    return "\n".join(parts)


def _table(title: str, rows: Sequence[Row], columns: Sequence[Column]) -> str:
    lines = [
        f"**{title}**\n",
        "| client | in flight | gap ms | runs | " + " | ".join(name for name, *_ in columns) + " |",
        "|---" * (4 + len(columns)) + "|",
    ]
    for key in dict.fromkeys(map(_key, rows)):
        group = [row for row in rows if _key(row) == key]
        made = [row for row in group if row.failure is None]
        cells = [_spread([of(row) for row in made], digits) for _, of, digits in columns]
        if not made:
            cells = [_cell(group[0].failure or ""), *[""] * (len(columns) - 1)]
        start = [key[0], str(key[1]), f"{key[2]:g}", str(len(made))]
        lines.append("| " + " | ".join([*start, *cells]) + " |")
    said = dict.fromkeys(f"{row.tool}: {_cell(row.complaint)}" for row in rows if row.complaint)
    return "\n".join([*lines, "", *(f"{line}\n" for line in said)])


def _key(row: Row) -> tuple[str, int, float]:
    return row.tool, row.in_flight, row.gap_ms


def _cell(text: str | None) -> str:
    return scrub(text or "").replace("|", "/")


def _spread(values: Sequence[float | None], digits: int) -> str:
    """``mean (lowest–highest)``, one value where they print alike, – where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean, low, high = (
        f"{value:.{digits}f}" for value in (sum(known) / len(known), min(known), max(known))
    )
    return mean if low == high else f"{mean} ({low}–{high})"
