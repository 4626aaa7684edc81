"""The tables of the client comparison: what names a line of each, and its columns.

Columns of a row in ms unless the name says otherwise: ``…_error_ms`` is reported less true,
``server_late_p99_ms`` how late the server itself wrote. ``inside_…`` are this project's alone: the
error of single requests and pieces, and CPU within the timed loop; ``bare_us_per_chunk`` is what
the reads alone cost there. In **schedule** ``in_flight`` is the cap, 0 for none; ``true_…`` is what
the server did, counted from what ``true_from`` names, and ``expected_…`` the asked schedule
simulated, with the 5th and 95th percentile of its draws for E2E p99; ``cut`` requests are left out
by whet as warm-up, and ``ks_…`` tests the gaps of the arrivals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.table import Columns, Leads, Row, table

_CLIENT: Final[Leads] = {"client": lambda row: str(row["tool"])}
_PACED: Final[Leads] = _CLIENT | {
    "in flight": lambda row: str(row["in_flight"]),
    "gap ms": lambda row: f"{row['gap_ms']:g}",
}
_STALLED: Final[Leads] = _CLIENT | {
    "in flight": lambda row: f"at most {row['in_flight']}" if row["in_flight"] else "any",
    "stall": lambda row: f"{row['stall_s']:g} s at {row['stall_at_s']:g} s",
}
_ERRORS: Final = (
    ("TTFT p50", "ttft_p50_error_ms", 3),
    ("TTFT p99", "ttft_p99_error_ms", 3),
    ("TPOT p50", "tpot_p50_error_ms", 4),
    ("TPOT p99", "tpot_p99_error_ms", 4),
    ("one piece, p50 µs", "inside_piece_error_p50_us", 1),
    ("one piece, p99 µs", "inside_piece_error_p99_us", 1),
    ("server late, p99 ms", "server_late_p99_ms", 2),
)
_CPU: Final = (
    ("whole process tree", "cpu_us_per_chunk", 1),
    ("within the timed loop", "inside_cpu_us_per_chunk", 1),
    ("bare reads", "bare_us_per_chunk", 1),
)
_SPEED: Final = (
    ("chunks/s", "chunks_per_s", 0),
    ("peak MiB", "peak_mib", 0),
    ("s in all", "total_s", 1),
)
_STALL: Final = (
    ("TTFT p99", "ttft_p99_ms", 0),
    ("true", "true_ttft_p99_ms", 0),
    ("TTFT max", "ttft_max_ms", 0),
    ("true", "true_ttft_max_ms", 0),
    ("E2E p99", "e2e_p99_ms", 0),
    ("true", "true_e2e_p99_ms", 0),
    ("expected", "expected_e2e_p99_ms", 0),
    ("E2E max", "e2e_max_ms", 0),
    ("true", "true_e2e_max_ms", 0),
    ("E2E p99 with queue, asked for", "queued_e2e_p99_ms", 0),
    ("cut as warm-up", "cut", 0),
    ("KS", "ks_statistic", 3),
    ("p", "ks_p", 2),
)
TABLES: Final[dict[str, tuple[str, Leads, Columns]]] = {
    "accuracy": ("Reported less true, ms, closed loop", _PACED, _ERRORS),
    "burst": ("Reported less true, ms, every request at once", _PACED, _ERRORS),
    "cpu": ("CPU of the client for each streamed chunk, µs", _PACED, _CPU),
    "speed": ("As fast as it can", _PACED, _SPEED),
    "schedule": ("A server that stalls, Poisson arrivals, ms", _STALLED, _STALL),
}


def markdown(rows: Sequence[Row]) -> str:
    """The tables, a line a tool and setting: the mean over repeats with its range."""
    parts = []
    for name, (title, leads, columns) in TABLES.items():
        chosen = [row for row in rows if row["table"] == name]
        if chosen:
            parts.append(f"**{title}**\n\n{table(chosen, leads, columns)}")
    return "\n".join(parts)
