"""Requests that wait for each other: coverage on a simulated server, and runs too short for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.method_bench import Server, capacity_rps, coverage, simulate

from tests.metrics.events import event, trial
from whet.metrics.objective import judge
from whet.metrics.objective_text import parse_objective
from whet.metrics.request_groups import RequestGroups, request_groups

_SMALL = Server(slots=16, answer=(20, 0.7))


@pytest.fixture(scope="module")
def capacity() -> float:
    return capacity_rps(_SMALL)


def test_an_interval_of_a_queue_covers_the_truth(capacity: float) -> None:
    """0.93 to 0.98 less three standard errors of 40 runs; met at 5% above in at most 0.05."""
    found = coverage(_SMALL, 40, 0.4, [2000], rps=0.4 * capacity)
    given, ttft, tpot, within, *met = (row[3] for row in found)
    assert given > 0.8
    assert min(ttft, tpot, within) >= 0.83
    assert max(met) <= 0.1


def test_an_interval_of_a_closed_loop_covers_the_truth() -> None:
    """As independent requests, attainment would be covered in 0.71."""
    found = coverage(Server(), 40, 16, [480], concurrency=16)
    given, ttft, tpot, within, *met = (row[3] for row in found)
    assert given > 0.9
    assert min(ttft, tpot, within) >= 0.83
    assert max(met) <= 0.1


@pytest.mark.parametrize(("share", "count"), [(0.8, 500), (0.95, 2000), (1.2, 2000)])
def test_near_capacity_or_too_short_there_is_no_interval(
    capacity: float, share: float, count: int
) -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        groups = request_groups([simulate(_SMALL, rng, count, rps=share * capacity)])
        assert groups.is_short
        (ttft,) = judge(groups, parse_objective("ttft:p95<1s")).judgements
        assert (ttft.verdict, ttft.reason) == ("undecided", groups.problem)
        assert ttft.figure is not None
        assert (ttft.figure.low, ttft.figure.high) == (None, None)


def test_a_queue_that_grows_asks_for_more_the_longer_it_is_sent(capacity: float) -> None:
    trials = [
        simulate(_SMALL, np.random.default_rng(3), count, rps=1.2 * capacity)
        for count in (500, 2000)
    ]
    short, long = map(request_groups, ([trial] for trial in trials))
    assert long.wanted_s > 2 * short.wanted_s


def test_runs_of_one_load_add_up(capacity: float) -> None:
    runs = [
        simulate(_SMALL, np.random.default_rng(seed), 1000, rps=0.2 * capacity) for seed in range(4)
    ]
    together = request_groups(runs)
    assert together.lasted_s == pytest.approx(sum(request_groups([r]).lasted_s for r in runs))
    assert [len(np.unique(split)) for split in together.splits] == [8, 12]
    first, last = together.splits[0][:1000], together.splits[0][-1000:]
    assert set(first).isdisjoint(last)


def test_figures_of_requests_alone_are_the_narrowest() -> None:
    """Slow requests that come together tell less than as many that come one by one."""
    ttfts = [50 if 400 <= n < 440 else 10 for n in range(800)]
    events = [event(start_ms=60 * n, ttft_ms=ms, index=n) for n, ms in enumerate(ttfts)]
    blocks = request_groups([replace(trial(events), loop="open")])
    alone = RequestGroups(events=tuple(events))
    hits = [ms < 20 for ms in ttfts]
    wide, narrow = blocks.share(hits), alone.share(hits)
    assert wide is not None
    assert narrow is not None
    assert wide.value == narrow.value == 0.95
    assert wide.low is not None
    assert narrow.low is not None
    assert wide.low < narrow.low - 0.02


def test_no_request_has_no_figure() -> None:
    groups = request_groups([])
    assert (groups.share([]), groups.mean([]), groups.quantile([], 0.5)) == (None, None, None)
