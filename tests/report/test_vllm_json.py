"""vLLM's names over figures that are known in closed form."""

import json
import math

import numpy as np
import pytest

from tests.metrics.events import event, failed, steady, trial
from whet.metrics.objective_text import parse_goodput
from whet.report.bench.vllm_json import most_in_flight, vllm_result

ALL = (50.0, 90.0, 99.9)


def test_figures_of_a_loop_without_a_pause() -> None:
    """Ten requests of 30 ms in turn: TTFT 10 ms, four gaps of 5 ms, five tokens each."""
    told = vllm_result(trial(steady(10)), ALL)
    assert told["duration"] == pytest.approx(0.3)
    assert (told["completed"], told["failed"]) == (10, 0)
    assert (told["total_input_tokens"], told["total_output_tokens"]) == (30, 50)
    assert told["request_throughput"] == pytest.approx(10 / 0.3)
    assert told["output_throughput"] == pytest.approx(50 / 0.3)
    assert told["total_token_throughput"] == pytest.approx(80 / 0.3)
    assert told["mean_ttft_ms"] == told["p99.9_ttft_ms"] == pytest.approx(10)
    assert told["median_tpot_ms"] == told["p50_itl_ms"] == pytest.approx(5)
    assert told["mean_e2el_ms"] == pytest.approx(30)
    assert told["std_ttft_ms"] == pytest.approx(0)
    assert told["max_concurrent_requests"] == 1
    assert told["request_goodput"] is None


def test_a_late_send_counts_from_the_schedule_and_shows_beside() -> None:
    told = vllm_result(trial([event(ttft_ms=50, late_ms=20)]), ALL)
    assert told["mean_ttft_ms"] == pytest.approx(50)
    assert told["mean_ttft_from_send_ms"] == pytest.approx(30)
    assert told["queue_times"] == [pytest.approx(0.02)]


def test_a_failed_request_has_its_place_and_no_figure() -> None:
    told = vllm_result(trial([event(index=0), failed(start_ms=5), event(start_ms=9)]), ALL)
    assert (told["completed"], told["failed"]) == (2, 1)
    assert told["errors"] == ["", "timeout: scripted", ""]
    assert told["ttfts"][1] is None
    assert len(told["itls"]) == len(told["generated_texts"]) == 3


def test_goodput_counts_what_the_objective_takes() -> None:
    late = [
        event(start_ms=30 * n, ttft_ms=30 if n < 6 else 10, gap_ms=0, index=n) for n in range(10)
    ]
    told = vllm_result(trial(late), ALL, bounds=parse_goodput(["ttft:20"]))
    assert told["request_goodput"] == pytest.approx(4 / told["duration"])


def test_nothing_measured_is_null_and_never_zero() -> None:
    told = vllm_result(trial([failed()]), ALL)
    assert told["mean_ttft_ms"] is None
    assert told["p99.9_e2el_ms"] is None
    assert not any(isinstance(v, float) and math.isnan(v) for v in told.values())
    json.dumps(told, allow_nan=False)


def test_names_are_those_of_vllm() -> None:
    """The keys of ``vllm bench serve`` 0.29 that its own plots and sweeps read."""
    told = vllm_result(trial(steady(3)), [99.0])
    wanted = {
        "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
        "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times",
        "generated_texts", "errors", "max_concurrent_requests", "mean_ttft_ms", "median_ttft_ms",
        "std_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "p99_itl_ms",
    }  # fmt: skip
    assert wanted <= told.keys()


def test_an_end_and_a_start_at_one_moment_do_not_overlap() -> None:
    assert most_in_flight(steady(6, slots=3)) == 3
    assert most_in_flight([]) == 0


def test_percentiles_are_numpys() -> None:
    events = [event(ttft_ms=float(ms), start_ms=0, index=ms) for ms in range(1, 101)]
    told = vllm_result(trial(events), ALL)
    assert told["p90_ttft_ms"] == pytest.approx(np.percentile(range(1, 101), 90))
