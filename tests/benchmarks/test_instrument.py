"""The client comparison: what each tool's output means, the truth beside it, the files."""

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import instrument
from benchmarks.chunk_server import ServerRecord
from benchmarks.instrument import plan
from benchmarks.instrument_loop import compare
from benchmarks.instrument_rows import markdown
from benchmarks.instrument_runs import run_client
from benchmarks.instrument_tools import (
    Client,
    Load,
    aiperf_client,
    guidellm_client,
    read_aiperf,
    read_answer,
    read_guidellm,
    read_vllm,
    read_whet,
    vllm_client,
    whet_client,
)
from benchmarks.instrument_truth import chunks_per_s, figures, percentile, timed, tpot_ms, ttft_ms
from benchmarks.jobs import JobError
from benchmarks.table import Row

from whet.core.records.load import RequestEvent

# What the tools wrote about 24 requests of 20 pieces, 8 in flight (GuideLLM 0.8.1, AIPerf 0.13.0,
# vLLM 0.32.0), cut to the fields that are read and some that must not be.
VLLM = {
    "completed": 24,
    "mean_ttft_ms": 106.95127412494305,
    "p50_ttft_ms": 107.01944749962422,
    "p99_ttft_ms": 108.59317534130241,
    "p100_ttft_ms": 109.0,
    "p50_tpot_ms": 19.995476973762333,
    "p99_tpot_ms": 20.062358314671176,
    "p50_itl_ms": 19.77095099937287,
    "p99_itl_ms": 21.641141950021844,
    "p99_e2el_ms": 490.0,
    "p100_e2el_ms": 491.0,
    "p99_e2el_including_client_queue_ms": 495.0,
}
TIMES = {"start_times": [10.0, 10.5], "queue_times": [0.0, 0.25]}
WHET = TIMES | {
    "completed": 24,
    "p50_ttft_ms": 101.5,
    "p99_ttft_ms": 102.05,
    "p50_ttft_from_send_ms": 101.4,
    "p99_ttft_from_send_ms": 101.9,
    "p50_tpot_ms": 19.98,
    "p99_tpot_ms": 20.03,
    "p99_e2el_ms": 482.0,
    "ttfts": [0.1025, None],
    "latencies": [0.4825, None],
    "run_info": {"timed_requests_before_steady": 7},
}
GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                "request_totals": {"successful": 26, "errored": 0, "incomplete": 0, "total": 26},
                "time_to_first_token_ms": {
                    "successful": {
                        "count": 24,
                        "percentiles": {"p50": 101.77803039550781, "p99": 114.59183692932129},
                        "max": 115.0,
                    }
                },
                "time_per_output_token_ms": {
                    "successful": {
                        "count": 480,
                        "percentiles": {"p50": 24.1007447242, "p99": 24.83},
                    }
                },
                "inter_token_latency_ms": {
                    "successful": {
                        "count": 456,
                        "percentiles": {"p50": 19.99688148498535, "p99": 20.21553641871402},
                    }
                },
                "request_latency": {"successful": {"percentiles": {"p99": 0.5}, "max": 0.75}},
            },
            "requests": {
                "successful": [
                    {"info": {"timings": {"targeted_start": due_s, "request_start": sent_s}}}
                    for due_s, sent_s in ((1.8e9, 1.8e9 + 1), (-0.9, 1.8e9 + 2))
                ]
            },
        }
    ]
}
AIPERF = {
    "aiperf_version": "0.13.0",
    "time_to_first_token": {
        "unit": "ms",
        "p50": 105.3605465,
        "p99": 118.22188238,
        "max": 119.0,
        "count": 24,
    },
    "inter_token_latency": {
        "unit": "ms",
        "p50": 20.131482184210522,
        "p99": 20.432334943684207,
        "count": 24,
    },
    "inter_chunk_latency": {"unit": "ms", "p50": 19.9, "p99": 21.6, "count": 24},
    "request_latency": {"unit": "ms", "p99": 500.0, "max": 501.0},
}
LOAD = Load(in_flight=32, requests=640, tokens=64, warmup=64)
ROW: Row = {
    "tool": "whet", "table": "accuracy", "repeat": 0, "gap_ms": 20.0, "in_flight": 32,
    "requests": 640, "pieces": 64, "complaint": None, "failure": None,
}  # fmt: skip
MS = 1_000_000


@pytest.mark.parametrize(
    ("read", "told", "expected"),
    [
        (read_vllm, VLLM, (107.01944749962422, 109.0, 19.995476973762333, 490.0, 491.0)),
        (read_whet, WHET, (101.4, 102.5, 19.98, 482.0, 482.5)),
        (read_guidellm, GUIDELLM, (101.77803039550781, 115.0, 19.99688148498535, 500.0, 750.0)),
        (read_aiperf, AIPERF, (105.3605465, 119.0, 20.131482184210522, 500.0, 501.0)),
    ],
)
def test_each_tool_is_read_in_its_own_words(
    read: Any, told: dict[str, Any], expected: tuple[float, ...]
) -> None:
    found = read(told)
    assert found.count == 24
    names = ("ttft_p50_ms", "ttft_max_ms", "tpot_p50_ms", "e2e_p99_ms", "e2e_max_ms")
    assert tuple(found.figures[name] for name in names) == expected


def test_whet_counts_from_its_schedule_and_vllm_tells_its_schedule_beside() -> None:
    """whet's starts are scheduled and the wait follows; vLLM's are sends and it came before."""
    ours = read_whet(WHET)
    assert (ours.due_s, ours.sent_s) == ((10.0, 10.5), (10.0, 10.75))
    assert list(ours.more.values()) == [101.5, 102.05, 7]
    theirs = read_vllm(VLLM | TIMES)
    assert (theirs.due_s, theirs.sent_s) == ((10.0, 10.25), (10.0, 10.5))
    assert theirs.more == {"queued_e2e_p99_ms": 495.0}
    assert read_vllm(VLLM).due_s == read_vllm(VLLM).sent_s == ()


def test_guidellm_tells_targets_and_one_from_1970_is_due_when_sent() -> None:
    assert read_guidellm(GUIDELLM).due_s == (1.8e9, 1.8e9 + 2)
    assert read_aiperf(AIPERF).due_s == ()


@pytest.mark.parametrize("text", ["", "not json", "{}", '{"benchmarks": []}', "[1]"])
def test_an_output_of_another_form_is_a_failure_in_words(text: str, tmp_path: Path) -> None:
    for client in _every_client():
        (tmp_path / client.answer).write_text(text, encoding="utf-8")
        with pytest.raises(JobError, match="holds no figures"):
            read_answer(client, tmp_path)


def test_every_tool_is_told_the_same_load() -> None:
    for client in _every_client():
        command = " ".join(client.command("http://127.0.0.1:1", LOAD, Path("out")))
        assert "http://127.0.0.1:1" in command
        for number in (32, 64):
            assert str(number) in command
        sent = 704 if client.name == "guidellm" else 640  # it counts its warm-up in
        assert str(sent) in command
    burst = replace(LOAD, burst=True)
    for client in _every_client():
        command = client.command("http://127.0.0.1:1", burst, Path("out"))
        assert "--max-concurrency" not in command
        assert client.name != "guidellm" or "warmup" not in " ".join(command)


def test_true_latencies_by_hand() -> None:
    one = ServerRecord(
        arrived_ns=5 * MS,
        read_ns=7 * MS,
        num_chunks=5,
        first_ns=105 * MS,
        last_ns=185 * MS,
        pieces=5,
    )
    assert (ttft_ms(one), tpot_ms(one)) == (100.0, 20.0)
    assert tpot_ms(replace(one, pieces=1)) is None
    unserved = ServerRecord(arrived_ns=5, read_ns=5, num_chunks=5)
    assert (ttft_ms(unserved), tpot_ms(unserved)) == (None, None)
    assert set(figures([unserved]).values()) == {None}


def test_a_percentile_is_of_the_tools_own_definition() -> None:
    """Of 1 to 4: interpolated 2.5, or the second of four."""
    assert percentile([4, 2, 1, 3], 50) == 2.5
    assert percentile([4, 2, 1, 3], 50, "inverted_cdf") == 2
    assert percentile([], 50) is None


def test_only_the_last_requests_are_timed_and_each_must_be_whole() -> None:
    served = [_served(at) for at in range(5)]
    assert timed(served, 3) == served[2:]
    for count in (0, 6):
        with pytest.raises(JobError, match="the server read 5"):
            timed(served, count)
    cut = [*served[:4], replace(served[4], pieces=9)]
    with pytest.raises(JobError, match="1 of 3 requests were not served to their end"):
        timed(cut, 3)


def test_chunks_a_second_counts_what_was_taken_before_the_last_request() -> None:
    """Four requests a second apart, one in flight: 30 pieces in 3 s."""
    served = [_served(at) for at in range(4)]
    assert chunks_per_s(served, 1) == pytest.approx(10.0)
    assert chunks_per_s(served, 4) is None
    assert chunks_per_s([], 1) is None


def test_each_piece_is_held_against_its_own_write() -> None:
    """Two pieces 3 µs and 5 µs late; sent 7 µs before it arrived."""
    written = (100 * MS, 120 * MS)
    event = RequestEvent(
        index=0,
        prefix_id=None,
        scheduled_ns=0,
        sent_ns=0,
        chunk_ns=(written[0] + 3000, written[1] + 5000),
        ended_ns=121 * MS,
        prompt_tokens=8,
        output_tokens=2,
        cached_tokens=None,
        finish_reason="length",
        text="".join(f"{at:020d}" for at in written),
    )
    one = ServerRecord(
        arrived_ns=7000,
        read_ns=9000,
        num_chunks=2,
        first_ns=written[0],
        last_ns=written[1],
        pieces=2,
    )
    found = compare([event], [one], cpu_s=8e-6)
    assert found["inside_cpu_us_per_chunk"] == pytest.approx(4.0)
    assert found["inside_piece_error_p50_us"] == pytest.approx(4.0)
    assert found["inside_piece_error_max_us"] == pytest.approx(5.0)
    assert found["inside_ttft_error_p50_us"] == pytest.approx(10.0)
    assert found["inside_tpot_error_p50_us"] == pytest.approx(2.0)
    with pytest.raises(ValueError, match="unknown to the server"):
        compare([event], [], cpu_s=0.0)
    with pytest.raises(ValueError, match="reset"):
        compare([replace(event, error="reset")], [one], cpu_s=0.0)


def test_a_tool_that_writes_nothing_says_why_and_one_that_protests_keeps_its_figures(
    tmp_path: Path,
) -> None:
    client = _scripted("")
    with pytest.raises(JobError, match="it wrote no figures"):
        run_client(client, _python("pass"), tmp_path / "a", limit_s=60, memory=False)
    with pytest.raises(JobError, match=r"^it ended with code 1: ValueError: no server$"):
        run_client(
            client,
            _python("raise ValueError('no server')"),
            tmp_path / "b",
            limit_s=60,
            memory=False,
        )
    with pytest.raises(JobError, match="stopped after 1 s"):
        run_client(
            client, _python("import time; time.sleep(60)"), tmp_path / "c", limit_s=1, memory=False
        )
    with pytest.raises(JobError, match="No such file"):
        run_client(client, ["/no/such/tool"], tmp_path / "d", limit_s=60, memory=False)
    program = "open('answer.json', 'w').write('{}'); print('not believed'); raise SystemExit(6)"
    spent = run_client(client, _python(program), tmp_path / "e", limit_s=60, memory=False)
    assert spent.complaint == "it ended with code 6: not believed"
    assert spent.cpu_s > 0
    assert spent.peak_bytes is None


def test_rows_hold_no_path_and_a_missing_value_is_an_empty_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole pass with a tool that is not there: a row, a table and a card, each without paths."""
    monkeypatch.setattr(instrument, "whet_client", lambda _: _scripted("/no/such/tool"))
    code = instrument.main(["--quick", "--tables", "accuracy", "--out", str(tmp_path)])
    assert code == 1
    with (tmp_path / "runs.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["tool"], row["gap_ms"], row["complaint"]) == ("scripted", "20", "")
    assert "No such file" in row["failure"]
    written = "".join(path.read_text(encoding="utf-8") for path in tmp_path.iterdir())
    assert "/no/such" not in written
    assert "scripted" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_the_table_is_the_mean_with_its_range_and_tells_failures_and_protests() -> None:
    rows = [
        ROW | {"ttft_p50_error_ms": 0.1, "tpot_p50_error_ms": 0.0},
        ROW | {"ttft_p50_error_ms": 0.3, "tpot_p50_error_ms": 0.0, "complaint": "a|b"},
        ROW | {"tool": "peer", "failure": "cannot read /a/b/c"},
        ROW | {"table": "speed", "gap_ms": 0.0, "chunks_per_s": 1234.4},
    ]
    text = markdown(rows)
    assert "| whet | 32 | 20 | 2 | 0.200 (0.100–0.300) | – | 0.0000 | – | – | – | – |" in text
    assert "| peer | 32 | 20 | 0 | cannot read c |  |  |  |  |  |  |" in text
    assert "| whet | 32 | 0 | 1 | 1234 | – | – |" in text
    assert "whet: a/b" in text


def test_the_plan_has_the_gaps_and_the_difference_of_two_lengths() -> None:
    full = plan(list(instrument.TABLES), quick=False)
    gaps = [trial.gap_s for trial in full if trial.table == "accuracy"]
    assert gaps == [0.02, 0.01, 0.005]
    (cpu,) = (trial for trial in full if trial.table == "cpu")
    assert cpu.fewer_tokens is not None
    assert cpu.fewer_tokens < cpu.load.tokens
    (burst,) = (trial for trial in full if trial.table == "burst")
    assert (burst.load.requests, burst.load.burst) == (64, True)
    assert plan(["speed"], quick=True)[0].gap_s == 0.0


@pytest.mark.full
def test_this_projects_client_is_measured_from_both_sides(tmp_path: Path) -> None:
    """The one whole run that needs no peer; a peer that is not given is left out."""
    options = instrument._options(["--quick", "--tables", "accuracy", "--out", str(tmp_path)])
    clients = instrument._clients(options)
    assert [client.name for client in clients] == ["whet"]
    (row,) = instrument.run(options, clients, tmp_path)
    assert row["failure"] is None
    assert row["counted"] == 32
    for name in ("ttft_p50_error_ms", "tpot_p50_error_ms", "inside_piece_error_p50_us"):
        assert math.isfinite(row[name])


def _every_client() -> list[Client]:
    tokenizer = Path("tokenizer")
    return [
        whet_client(tokenizer),
        vllm_client("python", tokenizer),
        guidellm_client("guidellm", tokenizer),
        aiperf_client("aiperf", tokenizer),
    ]


def _scripted(program: str) -> Client:
    return Client(
        name="scripted",
        command=lambda url, load, folder: [program],
        answer="answer.json",
        read=read_vllm,
        version=(sys.executable, "-c", "print(1)"),
    )


def _python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def _served(second: int) -> ServerRecord:
    read_ns = second * 1000 * MS
    return ServerRecord(
        arrived_ns=read_ns,
        read_ns=read_ns,
        num_chunks=10,
        first_ns=read_ns + MS,
        last_ns=read_ns + 10 * MS,
        pieces=10,
    )
