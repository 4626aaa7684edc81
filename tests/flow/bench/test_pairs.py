"""What paired trials of known figures decide: verdicts and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metrics.events import HEALTHY, event, failed, steady, trial
from whet.core.records.against import ServerComparison
from whet.core.records.load import RequestEvent, TrialRecord
from whet.flow.bench import compare as module
from whet.flow.bench.compare import compare_servers
from whet.metrics import metrics_in

COMPARED = [metric.name for metric in metrics_in("compare")]


def warnings_of(a: Sequence[TrialRecord], b: Sequence[TrialRecord]) -> tuple[str, ...]:
    return tuple(module.warnings_of(a, b))


def side(*scales: float) -> list[TrialRecord]:
    """A trial for each scale: TTFT 10 ms, TPOT 5 ms and E2E 30 ms, times the scale."""
    return [trial(steady(40, scale=scale), number=n) for n, scale in enumerate(scales)]


def open_loop(events: list[RequestEvent], number: int) -> TrialRecord:
    return replace(trial(events, number=number), loop="open")


def verdicts(found: tuple[ServerComparison, ...]) -> set[str]:
    assert [item.metric for item in found] == COMPARED
    return {item.verdict for item in found}


def of(found: tuple[ServerComparison, ...], metric: str) -> ServerComparison:
    return next(item for item in found if item.metric == metric)


# Verdicts


@pytest.mark.parametrize(("scale", "verdict"), [(0.5, "better"), (2.0, "worse")])
def test_a_server_that_is_quicker_or_slower_on_everything(scale: float, verdict: str) -> None:
    found = compare_servers(side(1, 1, 1, 1), side(*[scale] * 4))
    assert verdicts(found) == {verdict}
    assert of(found, "ttft_p50_ms").a.value == pytest.approx(10)
    assert of(found, "ttft_p50_ms").b.value == pytest.approx(10 * scale)
    assert of(found, "ttft_p50_ms").ratio.value == pytest.approx(scale)
    assert of(found, "tps_mean").ratio.value == pytest.approx(1 / scale)


@settings(deadline=None, max_examples=10)
@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6))
def test_the_same_figures_are_no_difference(scales: list[float]) -> None:
    found = compare_servers(side(*scales), side(*scales))
    assert verdicts(found) <= {"no difference"}


def test_only_what_differs_is_told_apart() -> None:
    def served(ttft_ms: float) -> list[TrialRecord]:
        spread = (0.97, 1.0, 1.03, 1.0, 0.99)
        return [
            open_loop(
                [
                    event(start_ms=100 * n, ttft_ms=ttft_ms * spread[n % 5], index=n)
                    for n in range(40)
                ],
                number,
            )
            for number in range(4)
        ]

    found = compare_servers(served(10), served(20))
    assert of(found, "ttft_p50_ms").verdict == "worse"
    assert of(found, "tpot_p50_ms").verdict == "no difference"


def test_percentiles_of_few_requests_are_not_certain() -> None:
    few = compare_servers(side(1, 1), side(2, 2))
    assert (of(few, "ttft_p95_ms").ratio.enough, of(few, "ttft_p95_ms").a.samples) == (False, 80)
    many = compare_servers(side(1, 1, 1, 1), side(2, 2, 2, 2))
    assert of(many, "ttft_p95_ms").ratio.enough


def test_one_pair_decides_nothing() -> None:
    found = compare_servers(side(1), side(2))
    assert verdicts(found) == {"undecided"}
    assert {item.ratio.low for item in found} == {None}


def test_pairs_that_scatter_more_than_they_differ_decide_nothing() -> None:
    slower = side(1.15, 1.15, 1.15, 1.15)
    assert verdicts(compare_servers(side(1, 1.01, 1, 1.01), slower)) == {"worse"}
    assert verdicts(compare_servers(side(0.9, 1.25, 0.9, 1.25), slower)) == {"no difference"}


def test_identical_servers_differ_in_one_metric_in_twenty() -> None:
    """100 runs of six pairs; a pair shares 5% of traffic, a trial has 2% noise."""
    rng, differs = np.random.default_rng(3), 0
    for _ in range(100):
        traffic = rng.normal(0, 0.05, 6)
        a, b = (side(*np.exp(traffic + rng.normal(0, 0.02, 6))) for _ in "ab")
        differs += of(compare_servers(a, b), "tps_mean").verdict != "no difference"
    assert differs / 100 <= 0.05 + 3 * (0.05 * 0.95 / 100) ** 0.5


def test_a_figure_that_a_side_lacks_is_not_compared() -> None:
    short = [
        open_loop([event(start_ms=30 * i, pieces=1, tokens=1, index=i) for i in range(20)], n)
        for n in range(2)
    ]
    found = compare_servers(short, short)
    assert "tpot_p50_ms" not in [item.metric for item in found]
    assert len(found) == len(COMPARED) - 1


def test_a_pair_counts_only_where_both_sides_can_be_believed() -> None:
    """B's slow first trial is left out with the invalid one of A, so nothing differs."""
    a, b = side(1, 1, 1, 1, 1), side(9, 1, 1, 1, 1)
    late = replace(HEALTHY, valid=False, reason="sent late")
    a[0] = replace(a[0], health=late)
    assert verdicts(compare_servers(a, b)) == {"no difference"}
    (told,) = warnings_of(a, b)
    assert told == "run 1 of both is left out (A, trial 0 is invalid: sent late)"
    assert compare_servers([trial([failed()])], side(1)) == ()
    assert compare_servers([], side(1)) == ()


# What makes the two unlike


def counted(prompt: int, output: int) -> list[TrialRecord]:
    events = [replace(e, prompt_tokens=prompt, output_tokens=output) for e in steady(20)]
    return [trial(events, number=n) for n in range(2)]


def test_unlike_counts_are_told() -> None:
    assert warnings_of(counted(10, 5), counted(10, 5)) == ()
    (prompts,) = warnings_of(counted(10, 5), counted(11, 5))
    assert "A 400, B 440 tokens" in prompts
    (answers,) = warnings_of(counted(10, 5), counted(10, 4))
    assert "A 200, B 160 tokens" in answers


def test_a_cache_behind_both_is_told() -> None:
    def cached(first: bool) -> list[TrialRecord]:
        """Whoever comes second in a pair finds everything."""
        hits = [0.0 if (number % 2 == 0) == first else 90.0 for number in range(4)]
        return [
            trial(
                steady(20),
                number=number,
                before={"vllm:prefix_cache_queries_total": 0, "vllm:prefix_cache_hits_total": 0},
                after={"vllm:prefix_cache_queries_total": 90, "vllm:prefix_cache_hits_total": hit},
            )
            for number, hit in enumerate(hits)
        ]

    (told,) = warnings_of(cached(True), cached(False))
    assert "found 100% of its prompts in the prefix cache, the first 0%" in told
    assert warnings_of(cached(True), cached(True)) == ()
