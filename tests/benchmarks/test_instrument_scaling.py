"""Scaling over client processes, and the agreement with vLLM's client: settings and figures."""

from pathlib import Path

import pytest
from benchmarks import instrument_agreement
from benchmarks.chunk_server import Pace
from benchmarks.instrument_agreement import agreement_rows, like_for_like
from benchmarks.instrument_rows import AgreementRow, ScalingRow, markdown
from benchmarks.instrument_runs import Context
from benchmarks.instrument_scaling import pace_chunks_per_s, settings
from benchmarks.instrument_tools import Load, vllm_client, whet_client
from benchmarks.table import write_rows

from whet.core.errors import EngineError

AGREEMENT = AgreementRow(
    tool="whet", table="agreement", repeat=0, in_flight=8, requests=96, pieces=32
)


def test_the_pace_allows_by_hand() -> None:
    """Ten streams of 5 pieces in 100 + 4 × 25 ms: 250 a second."""
    assert pace_chunks_per_s(10, Pace(ttft_s=0.1, gap_s=0.025, tokens=5)) == pytest.approx(250)
    assert pace_chunks_per_s(10, Pace(tokens=5)) is None


@pytest.mark.parametrize(("cores", "servers"), [(1, 1), (2, 1), (4, 2), (64, 2)])
def test_each_load_is_run_by_one_and_by_two_workers(cores: int, servers: int) -> None:
    found = settings(quick=False, cores=cores)
    assert {one.servers for one in found} == {servers}
    assert [one.load.workers for one in found] == [1, 2] * 4
    for one in found:
        assert one.load.tokens == one.pace.tokens
        assert one.load.requests > one.load.in_flight


def test_only_a_second_worker_is_asked_for() -> None:
    client = whet_client(Path("tokenizer"))
    load = Load(in_flight=8, requests=16, tokens=4, warmup=0)
    assert "--workers" not in client.command("http://127.0.0.1:1", load, Path("out"))
    two = Load(in_flight=8, requests=16, tokens=4, warmup=0, workers=2)
    assert "--workers 2" in " ".join(client.command("http://127.0.0.1:1", two, Path("out")))


def test_like_for_like_is_from_the_send_and_of_every_request() -> None:
    """Waits of 1 s count in neither; a request that failed has no figures."""
    told = {
        "ttfts": [1.1, 0.3, None],
        "queue_times": [1.0, 0.0, 0.0],
        "latencies": [1.5, 0.3, None],
        "output_lens": [5, 1, None],
    }
    found = like_for_like(told)
    assert found["ttft_p50_ms"] == pytest.approx(200.0)
    assert found["tpot_p50_ms"] == pytest.approx(100.0)
    assert found["e2e_p50_ms"] == pytest.approx(400.0)
    empty = like_for_like({name: [] for name in told})
    assert set(empty.values()) == {None}


def test_a_server_that_does_not_start_is_a_row_for_each_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(log: Path) -> None:
        raise EngineError("it ended")

    monkeypatch.setattr(instrument_agreement, "vllm_server", nothing)
    context = Context(
        clients=[whet_client(Path("t")), vllm_client("python", Path("t"))],
        versions={},
        folder=tmp_path / "run",
        limit_s=1,
        repeats=2,
    )
    rows = list(agreement_rows(context))
    assert [row.tool for row in rows] == ["whet", "vllm bench serve"]
    assert {row.failure for row in rows} == {"no server: it ended"}


def test_the_ratio_is_of_the_runs_of_one_repeat() -> None:
    """(10, 20) over (8, 10): 1.25 and 2."""
    figures = [("whet", 0, 10.0), ("whet", 1, 20.0), ("vllm", 0, 8.0), ("vllm", 1, 10.0)]
    rows = [
        AgreementRow(
            tool=tool, table="agreement", repeat=repeat, in_flight=8, requests=96, pieces=32,
            ttft_p50_ms=value,
        )
        for tool, repeat, value in figures
    ]  # fmt: skip
    assert "| whet ÷ vllm | 8 | 2 | 1.625 (1.250–2.000) | – |" in markdown(rows)
    assert "÷" not in markdown(rows[:2])


def test_a_file_of_several_kinds_of_row_has_the_columns_of_all(tmp_path: Path) -> None:
    scaling = ScalingRow(
        tool="whet", table="scaling", repeat=0, in_flight=8, requests=96, pieces=32,
        workers=2, servers=1, gap_ms=5.0, valid=True,
    )  # fmt: skip
    write_rows([AGREEMENT, scaling], tmp_path / "a" / "runs.csv")
    head, first, second = (tmp_path / "a" / "runs.csv").read_text().splitlines()
    names = head.split(",")
    told = [dict(zip(names, line.split(","), strict=True)) for line in (first, second)]
    assert [one["workers"] for one in told] == ["", "2"]
    assert [one["valid"] for one in told] == ["", "True"]
    assert [one["table"] for one in told] == ["agreement", "scaling"]
    write_rows([], tmp_path / "none.csv")
