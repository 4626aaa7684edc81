"""The stalled server's truth, the simulated schedule, the test of the arrivals, the readers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.chunk_server import Pace, ServerRecord
from benchmarks.instrument_rows import markdown
from benchmarks.instrument_runs import Context, attempt
from benchmarks.instrument_schedule import (
    poisson,
    schedule_rows,
    settings,
    simulate,
    tails,
    true_pairs,
)
from benchmarks.instrument_tools import (
    Client,
    Report,
    aiperf_client,
    guidellm_client,
    vllm_client,
    whet_client,
)
from benchmarks.jobs import JobError
from benchmarks.table import Row

from whet.demo import pair_paths

MS = 1_000_000
ROW: Row = {
    "tool": "whet", "table": "schedule", "in_flight": 4, "stall_at_s": 9.0, "stall_s": 2.0,
}  # fmt: skip


def test_truth_counts_from_the_tools_own_schedule_wherever_its_clock_begins() -> None:
    """Due at 0 and 0.1 s, sent at 0 and 0.4 s, on the way 1 and 3 ms; answered after 50 ms."""
    arrived_ms = (5001, 5403)
    served = [
        ServerRecord(
            arrived_ns=at * MS, read_ns=at * MS, num_chunks=2,
            first_ns=(at + 50) * MS, last_ns=(at + 60) * MS, pieces=2,
        )
        for at in arrived_ms
    ]  # fmt: skip
    told = Report(count=2, figures={}, due_s=(100.0, 100.1), sent_s=(100.0, 100.4))
    found = true_pairs(served, told, capped=True)
    assert found is not None
    assert found[0] == "schedule"
    assert np.allclose(found[1], [(0.050, 0.060), (0.352, 0.362)])
    silent = Report(count=2, figures={})
    assert true_pairs(served, silent, capped=True) is None
    counted = true_pairs(served, silent, capped=False)
    assert counted is not None
    assert counted[0] == "arrival"
    assert np.allclose(counted[1], [(0.050, 0.060)] * 2)
    other = replace(told, due_s=(1.0,), sent_s=(1.0,))
    assert true_pairs(served, other, capped=True) is None


def test_the_simulated_schedule_by_hand() -> None:
    """One place; each takes 50 + 10 ms; a stall from 0.1 to 0.6 s. Three due at 0, 20 and 80 ms.

    The second begins at 60: its first is due at 110, so at 600, and both pieces come then. The
    third begins at 600.
    """
    pace = Pace(ttft_s=0.05, gap_s=0.01, tokens=2, stall_at_s=0.1, stall_s=0.5)
    due_s = [1.0, 1.02, 1.08]
    assert np.allclose(simulate(due_s, pace, 1), [(0.05, 0.06), (0.58, 0.58), (0.57, 0.58)])
    assert np.allclose(simulate(due_s, pace, None), [(0.05, 0.06), (0.05, 0.06), (0.52, 0.52)])
    calm = replace(pace, stall_at_s=None)
    assert np.allclose(simulate(due_s, calm, 1), [(0.05, 0.06), (0.09, 0.10), (0.09, 0.10)])


def test_a_cap_hides_the_stall_from_p99_of_those_that_count_from_the_send() -> None:
    """Why there are 600: 4 that show it are less than 1%, the 40 that fall into it are not.

    It ends within the first half, of which a search for warm-up might take it away.
    """
    (_, pace), (load, _) = settings(quick=False)
    assert load.rate_rps is not None
    assert load.in_flight / load.requests < 0.01
    assert load.rate_rps * pace.stall_s / load.requests > 0.05
    assert pace.stall_at_s is not None
    assert pace.stall_at_s + pace.stall_s < load.requests / load.rate_rps / 2


def test_tails_of_nothing_are_unknown() -> None:
    assert tails([]) == {}
    found = tails([(0.1, 0.2), (0.3, 0.4)])
    assert found["ttft_p99_ms"] == pytest.approx(298.0)
    assert found["e2e_max_ms"] == pytest.approx(400.0)


def test_arrivals_are_held_against_the_asked_rate() -> None:
    """The statistic of four equal gaps of 1 s at rate 1: 1 − e⁻¹ below, e⁻¹ above."""
    told = poisson([_at(second) for second in (3, 1, 0, 2, 4)], 1.0)
    assert told["ks_statistic"] == pytest.approx(1 - np.exp(-1))
    assert told["arrived_rps"] == pytest.approx(1.0)
    quantiles = -np.log1p(-(np.arange(300) + 0.5) / 300) / 20  # of the exponential itself
    served = [_at(second) for second in np.cumsum([0.0, *quantiles])]
    asked, twice = poisson(served, 20.0), poisson(served, 40.0)
    assert asked["ks_statistic"] == pytest.approx(0.5 / 300, abs=1e-6)
    assert twice["ks_statistic"] == pytest.approx(0.25, abs=0.01)  # max of x − x² is 1/4
    assert asked["ks_p"] == pytest.approx(1.0)
    assert twice["ks_p"] is not None
    assert twice["ks_p"] < 1e-6
    assert poisson([_at(0)], 1.0) == {"arrived_rps": None, "ks_statistic": None, "ks_p": None}


def test_every_tool_is_told_the_rate_and_the_cap() -> None:
    (free, _), (capped, _) = settings(quick=False)
    for client in _every_client():
        words = " ".join(client.command("http://127.0.0.1:1", free, Path("out")))
        assert "20" in words
        assert "concurrency" not in words
        words = " ".join(client.command("http://127.0.0.1:1", capped, Path("out")))
        assert any(flag in words for flag in ("concurrency 4", '"max_concurrency": 4'))


@pytest.mark.parametrize("error", [JobError("no"), KeyError("p99"), TypeError("x"), OSError("y")])
def test_a_run_that_fails_is_a_row(error: Exception) -> None:
    def measure() -> Row:
        raise error

    row = attempt(ROW, measure)
    assert f"| whet | at most 4 | 2 s at 9 s | 0 | {row['failure']} |" in markdown([row])


@pytest.mark.full
def test_a_whole_quick_run_of_this_projects_client(tmp_path: Path) -> None:
    context = Context(
        clients=[whet_client(pair_paths()[0].resolve())],
        versions={},
        folder=tmp_path / "run",
        limit_s=120,
        quick=True,
    )
    free, capped = schedule_rows(context, 0)
    assert (free["failure"], capped["failure"]) == (None, None)
    assert (free["counted"], free["true_from"], capped["true_from"]) == (60, "schedule", "schedule")
    assert "ks_p" in free
    assert "ks_p" not in capped
    assert free["true_e2e_max_ms"] > 400  # the stall is 500


def _at(second: float) -> ServerRecord:
    at_ns = round(second * 1e9)
    return ServerRecord(arrived_ns=at_ns, read_ns=at_ns, num_chunks=1)


def _every_client() -> list[Client]:
    tokenizer = Path("tokenizer")
    return [
        whet_client(tokenizer),
        vllm_client("python", tokenizer),
        guidellm_client("guidellm", tokenizer),
        aiperf_client("aiperf", tokenizer),
    ]
