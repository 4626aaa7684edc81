"""A measured load told: which percentiles carry their mark."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.metrics.events import event, trial
from whet.report.bench.load import load_section
from whet.report.writers.console import print_sections


def line(name: str, *, count: int, pieces: int, p: float) -> list[str]:
    """The cells of one latency over ``count`` requests of ``pieces`` chunks each."""
    events = [event(start_ms=60 * n, index=n, pieces=pieces) for n in range(count)]
    made = replace(trial(events), loop="open")
    console = Console(file=io.StringIO(), width=200)
    section = load_section([made], (p,))
    print_sections([section], console)
    out = console.file
    assert isinstance(out, io.StringIO)
    rows = [row.split() for row in out.getvalue().splitlines()]
    return next(cells for cells in rows if cells[:1] == [name])


@pytest.mark.parametrize(
    ("p", "count", "mark"),
    [(75, 20, "?"), (95, 129, "?"), (95, 140, ""), (99.9, 6600, "?"), (99.9, 6700, "")],
)
def test_a_percentile_of_too_few_requests_is_marked(p: float, count: int, mark: str) -> None:
    assert line("TTFT", count=count, pieces=2, p=p)[-1].endswith("0" + mark)


def test_gaps_are_as_certain_as_their_requests_are_many() -> None:
    """100 requests of 50 gaps are 5,000 gaps, and not the 130 requests that p95 needs."""
    assert line("ITL", count=100, pieces=51, p=95)[-1].endswith("?")
    assert not line("ITL", count=140, pieces=2, p=95)[-1].endswith("?")
