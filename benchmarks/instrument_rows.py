"""The rows of the client comparison, one kind a sort of table, and the tables that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.table import scrub, spread


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What every row has: who ran what, when, and what came of it.

    ``complaint`` is the message of a tool that gave figures and then failed; ``failure`` says why
    figures are missing.
    """

    tool: str
    table: str
    repeat: int
    in_flight: int
    requests: int
    pieces: int
    version: str | None = None
    started_at: str | None = None
    complaint: str | None = None
    failure: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row(Run):
    """One run of accuracy, burst, cpu or speed.

    ``…_error_ms`` is reported less true; ``server_late_p99_ms`` how late the server itself wrote.
    The ``inside`` columns are this project's alone: the error of single requests and pieces, and
    CPU within the timed loop; ``bare_us_per_chunk`` is what the reads alone cost there.
    """

    gap_ms: float
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
    server_late_p99_ms: float | None = None
    inside_ttft_error_p50_us: float | None = None
    inside_ttft_error_p99_us: float | None = None
    inside_tpot_error_p50_us: float | None = None
    inside_tpot_error_p99_us: float | None = None
    inside_piece_error_p50_us: float | None = None
    inside_piece_error_p99_us: float | None = None
    inside_piece_error_max_us: float | None = None
    inside_cpu_us_per_chunk: float | None = None
    bare_us_per_chunk: float | None = None
    cpu_us_per_chunk: float | None = None
    cpu_s: float | None = None
    chunks_per_s: float | None = None
    peak_mib: float | None = None
    total_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleRow(Run):
    """One run against a server that stalls. ``in_flight`` is the cap, 0 for none.

    ``true`` is what the server did, counted from what ``true_from`` names: the schedule that the
    tool drew and wrote down, or, where it writes none down, the arrivals (open loop only).
    ``expected`` is the asked schedule simulated: the median of many draws, and for E2E p99 its 5th
    and 95th percentile. ``queued_e2e_p99_ms`` is vLLM's other figure, shown when asked for.
    ``cut`` requests are left out by whet as warm-up. ``ks`` tests the gaps of the arrivals.
    """

    rate_rps: float
    stall_at_s: float
    stall_s: float
    counted: int | None = None
    ttft_p99_ms: float | None = None
    ttft_max_ms: float | None = None
    e2e_p99_ms: float | None = None
    e2e_max_ms: float | None = None
    queued_e2e_p99_ms: float | None = None
    true_from: str | None = None
    true_ttft_p99_ms: float | None = None
    true_ttft_max_ms: float | None = None
    true_e2e_p99_ms: float | None = None
    true_e2e_max_ms: float | None = None
    expected_ttft_p99_ms: float | None = None
    expected_e2e_p99_ms: float | None = None
    expected_e2e_p99_low_ms: float | None = None
    expected_e2e_p99_high_ms: float | None = None
    expected_e2e_max_ms: float | None = None
    cut: int | None = None
    arrived_rps: float | None = None
    ks_statistic: float | None = None
    ks_p: float | None = None
    server_late_p99_ms: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """``leads`` name a line of it; ``columns`` are a name, a value of a row, and its digits."""

    name: str
    title: str
    leads: tuple[tuple[str, Callable[[Any], str]], ...]
    columns: tuple[tuple[str, Callable[[Any], float | None], int], ...]


def _of(name: str) -> Callable[[Any], float | None]:
    return lambda row: getattr(row, name)


_PACED: Final = (
    ("in flight", lambda row: str(row.in_flight)),
    ("gap ms", lambda row: f"{row.gap_ms:g}"),
)
_ERRORS: Final = (
    ("TTFT p50", _of("ttft_p50_error_ms"), 3),
    ("TTFT p99", _of("ttft_p99_error_ms"), 3),
    ("TPOT p50", _of("tpot_p50_error_ms"), 4),
    ("TPOT p99", _of("tpot_p99_error_ms"), 4),
    ("one piece, p50 µs", _of("inside_piece_error_p50_us"), 1),
    ("one piece, p99 µs", _of("inside_piece_error_p99_us"), 1),
    ("server late, p99 ms", _of("server_late_p99_ms"), 2),
)
_TABLES: Final = (
    Table(
        name="accuracy",
        title="Reported less true, ms, closed loop",
        leads=_PACED,
        columns=_ERRORS,
    ),
    Table(
        name="burst",
        title="Reported less true, ms, every request at once",
        leads=_PACED,
        columns=_ERRORS,
    ),
    Table(
        name="cpu",
        title="CPU of the client for each streamed chunk, µs",
        leads=_PACED,
        columns=(
            ("whole process tree", _of("cpu_us_per_chunk"), 1),
            ("within the timed loop", _of("inside_cpu_us_per_chunk"), 1),
            ("bare reads", _of("bare_us_per_chunk"), 1),
        ),
    ),
    Table(
        name="speed",
        title="As fast as it can",
        leads=_PACED,
        columns=(
            ("chunks/s", _of("chunks_per_s"), 0),
            ("peak MiB", _of("peak_mib"), 0),
            ("s in all", _of("total_s"), 1),
        ),
    ),
    Table(
        name="schedule",
        title="A server that stalls, Poisson arrivals, ms",
        leads=(
            ("in flight", lambda row: f"at most {row.in_flight}" if row.in_flight else "any"),
            ("stall", lambda row: f"{row.stall_s:g} s at {row.stall_at_s:g} s"),
        ),
        columns=(
            ("TTFT p99", _of("ttft_p99_ms"), 0),
            ("true", _of("true_ttft_p99_ms"), 0),
            ("TTFT max", _of("ttft_max_ms"), 0),
            ("true", _of("true_ttft_max_ms"), 0),
            ("E2E p99", _of("e2e_p99_ms"), 0),
            ("true", _of("true_e2e_p99_ms"), 0),
            ("expected", _of("expected_e2e_p99_ms"), 0),
            ("E2E max", _of("e2e_max_ms"), 0),
            ("true", _of("true_e2e_max_ms"), 0),
            ("E2E p99 with queue, asked for", _of("queued_e2e_p99_ms"), 0),
            ("cut as warm-up", _of("cut"), 0),
            ("KS", _of("ks_statistic"), 3),
            ("p", _of("ks_p"), 2),
        ),
    ),
)
TABLES: Final = tuple(table.name for table in _TABLES)


def markdown(rows: Sequence[Run]) -> str:
    """The tables, a line a tool and setting: the mean over repeats with its range."""
    parts = []
    for table in _TABLES:
        chosen = [row for row in rows if row.table == table.name]
        if chosen:
            parts.append(_table(table, chosen))
    return "\n".join(parts)


def _table(table: Table, rows: Sequence[Run]) -> str:
    names = ["client", *(name for name, _ in table.leads), "runs"]
    names += [name for name, *_ in table.columns]
    lines = [f"**{table.title}**\n", _line(names), "|---" * len(names) + "|"]

    def key(row: Run) -> tuple[str, ...]:
        return row.tool, *(of(row) for _, of in table.leads)

    for one in dict.fromkeys(map(key, rows)):
        group = [row for row in rows if key(row) == one]
        made = [row for row in group if row.failure is None]
        cells = [spread([of(row) for row in made], digits) for _, of, digits in table.columns]
        if not made:
            cells = [_cell(group[0].failure), *[""] * (len(cells) - 1)]
        lines.append(_line([*one, str(len(made)), *cells]))
    complaints = dict.fromkeys(
        f"{row.tool}: {_cell(row.complaint)}" for row in rows if row.complaint
    )
    return "\n".join([*lines, "", *(f"{line}\n" for line in complaints)])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(text: str | None) -> str:
    return scrub(text or "").replace("|", "/")
