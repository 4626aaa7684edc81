"""Every cell is shown when it is measured: a live table, or a line each."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from whet.cli.observer import ConsoleObserver
from whet.core.load import Load
from whet.core.records.summary import CellSummary, Estimate, Status
from whet.metrics import METRICS


def cell(
    name: str, size: int, cost: float | None, *, status: Status = "complete", why: str | None = None
) -> CellSummary:
    def at(value: float) -> Estimate:
        return Estimate(value=value, low=None, high=None, samples=500)

    figures = dict.fromkeys(METRICS, None)
    if cost is not None:
        figures |= {
            "ttft_p95_ms": at(231.0),
            "tps_mean": at(812.0),
            "cost_per_1m_tokens": at(cost),
        }
    return CellSummary(
        variant=name,
        load=Load.at(size),
        status=status,
        trials=1,
        requests=9,
        errors=0,
        memory_kind="device",
        failure=why,
        figures=figures,
    )


def terminal(width: int = 100, height: int = 30) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None
    )


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def picture(observer: ConsoleObserver, width: int = 100, height: int = 30) -> list[str]:
    """The lines of the live display now."""
    console = terminal(width, height)
    observer.console = console
    console.print(observer._picture())
    return [line.rstrip() for line in text_of(console).splitlines() if line.strip()]


def names(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines if re.match(r"v\d", line)]


def test_a_pipe_gets_a_line_a_cell() -> None:
    console = Console(file=io.StringIO(), width=60)
    with ConsoleObserver(console) as observer:
        observer.cell(cell("awq", 8, 0.5), "adopted")
        observer.cell(cell("fp8", 8, None, status="failed", why="out of memory"), "failed")
    first, second = text_of(console).splitlines()
    assert first.endswith(
        "awq at concurrency 8: throughput 812 tok/s, TTFT p95 231 ms, cost $0.500 per 1M tok; "
        "adopted"
    )
    assert second.endswith("fp8 at concurrency 8: out of memory; failed")


def test_the_table_has_the_cheapest_first_and_the_newest_figures_of_a_cell() -> None:
    observer = ConsoleObserver(terminal())
    observer.cell(cell("v1", 8, 0.9), "start")
    observer.cell(cell("v2", 8, 0.2), "misses")
    observer.cell(cell("v3", 8, 0.5), "")
    observer.cell(cell("v4", 8, None, status="failed"), "")
    observer.cell(cell("v3", 8, 0.6), "adopted")
    lines = picture(observer)
    assert names(lines) == ["v3", "v1", "v2", "v4"]
    (newest,) = (line for line in lines if line.startswith("v3"))
    assert "$0.600" in newest
    assert newest.endswith("adopted")
    assert [line.split()[-1] for line in lines if line.startswith("v4")] == ["failed"]
    assert "TTFT p95" in lines[0]
    assert "concurrency" in lines[1]


@pytest.mark.parametrize(("width", "height"), [(80, 12), (50, 24)])
def test_the_table_fits_the_terminal(width: int, height: int) -> None:
    observer = ConsoleObserver(terminal(width, height))
    for number in range(40):
        observer.cell(cell(f"v{number}", 8, 1 + number / 100), "worse")
    observer.progress("trials", 1, 4)
    lines = picture(observer, width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert names(lines)[:2] == ["v0", "v1"]


@pytest.mark.parametrize("stopped", [False, True])
def test_the_table_stays_on_the_screen_where_a_run_was_stopped(stopped: bool) -> None:
    console = terminal()
    try:
        with ConsoleObserver(console) as observer:
            observer.cell(cell("v1", 8, 0.9), "start")
            if stopped:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    erased = "\x1b[2K" in text_of(console).rpartition("v1")[2]
    assert erased is not stopped


def test_quiet_shows_no_cell() -> None:
    for console in (terminal(), Console(file=io.StringIO())):
        with ConsoleObserver(console, quiet=True) as observer:
            observer.cell(cell("awq", 8, 0.5), "adopted")
        assert text_of(console) == ""
