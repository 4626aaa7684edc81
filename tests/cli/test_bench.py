"""``whet bench`` against a scripted server: what it tells, what it writes, what bad input gets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stage import Whet
from tests.scripted_server import scripted_server
from whet.core.errors import EngineLostError, Interrupted, MeasurementError, UsageError
from whet.demo import pair_paths
from whet.load import trial
from whet.load.sources import source

USAGE, MEASUREMENT = UsageError.exit_code, MeasurementError.exit_code
TOKENIZER = pair_paths()[0]
SMALL = ("--tokenizer", TOKENIZER, "--num-warmups", 2, "--isl", 24, "--osl", 4)
SAVE = ("--save-result", "-o", "out")


def saved(folder: Path, name: str = "bench.json") -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "out" / name).read_text())
    return told


def test_a_closed_loop_from_end_to_end(whet: Whet, tmp_path: Path) -> None:
    with scripted_server(ttft_s=0.01, gap_s=0.001, hit_share=0.5) as server:
        said = whet(
            "bench", server.url, *SMALL, "--num-prompts", 80, "--concurrency", 4, *SAVE,
            "--goodput", "ttft:5000 tpot:5000", "--slo", "ttft:median<5s",
        )  # fmt: skip
        prompts = [tuple(body["prompt"]) for body in server.requests]
    assert said.code == 0, said.err
    assert "80 of 80 requests answered" in said.out
    assert "met: ttft:median<5s" in said.out.replace("5000ms", "5s")
    assert len(prompts) == len(set(prompts)) == 82
    assert {len(prompt) for prompt in prompts} == {24}
    told = saved(tmp_path)
    assert (told["completed"], told["failed"], told["total_output_tokens"]) == (80, 0, 320)
    assert told["max_concurrency"] == 4
    assert told["max_concurrent_requests"] <= 4
    assert told["request_goodput"] == pytest.approx(told["request_throughput"])
    assert told["run_info"]["prefix_hit_rate"] == pytest.approx(0.5)
    assert told["run_info"]["loop"] == "closed"


def test_results_go_to_a_fifo(whet: Whet, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    fifo = tmp_path / "out" / "bench.json"
    os.mkfifo(fifo)
    keeper = os.open(fifo, os.O_RDWR)  # both runs find a reader, and nothing ends in between
    with scripted_server() as server:
        said = whet("bench", server.url, *SMALL, "--num-prompts", 4, "--num-runs", 2, *SAVE)
    lines = os.read(keeper, 1 << 20).splitlines()
    os.close(keeper)
    assert said.code == 0, said.err
    assert [json.loads(line)["completed"] for line in lines] == [4, 4]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["bench.json"]


def test_an_open_loop_keeps_its_schedule_and_runs_differ(whet: Whet, tmp_path: Path) -> None:
    with scripted_server(ttft_s=0.02) as server:
        said = whet(
            "bench", server.url, *SMALL, "--num-prompts", 30, "--request-rate", 200, "--num-runs",
            2, *SAVE,
        )  # fmt: skip
        assert len({tuple(body["prompt"]) for body in server.requests}) == 64
    assert said.code == 0, said.err
    first, second = saved(tmp_path), saved(tmp_path, "bench-2.json")
    assert first["start_times"] == sorted(first["start_times"])
    assert first["start_times"] != second["start_times"]
    assert first["run_info"]["loop"] == "open"
    assert (first["request_rate"], first["max_concurrency"]) == (200, None)


def test_two_processes_that_cannot_keep_the_rate_tell_what_left(whet: Whet, tmp_path: Path) -> None:
    """Two in flight of 0.1 s each are 20 a second, not 200."""
    with scripted_server(ttft_s=0.1) as server:
        said = whet(
            "bench", server.url, *SMALL, "--num-prompts", 24, "--request-rate", 200,
            "--max-concurrency", 2, "--workers", 2, *SAVE,
        )  # fmt: skip
    assert "2 processes sent" in said.out
    assert "held the others back" in said.out + said.err
    told = saved(tmp_path)["run_info"]
    assert told["client_workers"] == 2
    assert told["achieved_request_rate"] < told["asked_request_rate"] / 2


@pytest.mark.parametrize("form", ["text", "chat"])
def test_a_server_that_takes_no_token_ids(whet: Whet, form: str) -> None:
    with scripted_server(ttft_s=0.05) as server:
        said = whet("bench", server.url, *SMALL, "--isl", 48, "--form", form, "--num-prompts", 5)
        body = server.requests[-1]
    assert said.code == 0, said.err
    assert isinstance(body["messages" if form == "chat" else "prompt"][0], (dict, str))


def test_the_highest_concurrency_within_an_objective(whet: Whet, tmp_path: Path) -> None:
    """The server does not slow down, so nothing is missed within the budget."""
    with scripted_server(ttft_s=0.02) as server:
        said = whet(
            "bench", server.url, *SMALL, "--num-prompts", 20, "--find-max", "concurrency",
            "--find-budget", 5, "--slo", "ttft:median<5s", *SAVE,
        )  # fmt: skip
    assert said.code == 0, said.err
    told = saved(tmp_path)
    assert told["lowest_missed"] is None
    assert told["highest_met"] >= 4, "a level that was too short is sent again from the budget"
    assert f"The highest load that met the objective is {told['highest_met']:g}" in said.out


# Bad input


def test_nobody_answers(whet: Whet) -> None:
    said = whet("bench", "http://127.0.0.1:9").sentence(EngineLostError.exit_code)
    assert "cannot be reached" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--model", "gone"), "the server has no model 'gone'; --model takes one of scripted"),
        ((), "give its folder or hub id with --tokenizer"),
        ((*SMALL, "--request-rate", 0), "rate_rps is 0"),
        ((*SMALL, "--request-rate", "nan"), "--request-rate takes a number from 0"),
        ((*SMALL, "--request-rate", 1, "--burstiness", 0), "burstiness is 0"),
        ((*SMALL, "--burstiness", 2), "needs --request-rate"),
        ((*SMALL, "--find-max", "rate"), "give --slo or --goodput"),
        (
            (*SMALL, "--find-max", "speed", "--slo", "ttft:p95<1s"),
            'Choose from: "rate", "concurrency"',
        ),
        ((*SMALL, "--form", "words"), 'Choose from: "ids", "text", "chat"'),
        ((*SMALL, "--goodput", "tfft:200"), "ttft"),
        ((*SMALL, "--slo", "ttft:p95<300"), "ms"),
        ((*SMALL, "--metric-percentiles", "99,101"), "between 0 and 100"),
    ],
)
def test_a_flag_that_cannot_be_used(whet: Whet, words: tuple[Any, ...], told: str) -> None:
    with scripted_server() as server:
        assert told in whet("bench", server.url, *words).sentence(USAGE)
        assert server.requests == []


def test_a_key_that_is_refused(whet: Whet) -> None:
    with scripted_server(get_status=401) as server:
        assert "OPENAI_API_KEY" in whet("bench", server.url).sentence(USAGE)


@pytest.mark.parametrize("status", [401, 404, 429, 503])
def test_a_storm_of_refusals_is_counted_request_by_request(
    whet: Whet, tmp_path: Path, status: int
) -> None:
    with scripted_server(status=status) as server:
        said = whet("bench", server.url, *SMALL, "--num-prompts", 8, "--concurrency", 2, *SAVE)
    assert f"http_{status}" in said.sentence(MEASUREMENT)
    told = saved(tmp_path)
    assert (told["completed"], told["failed"], len(told["errors"])) == (0, 8, 8)
    assert told["mean_ttft_ms"] is None


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("empty", "no_tokens"),
        ("done_only", "no_tokens"),
        ("no_done", "no_done"),
        ("wrong_content_type", "wrong_content_type"),
        ("eof", "reset"),
        ("reset", "reset"),
        ("hang", "timeout"),
        ("slow_loris", "timeout"),
        ("sse_error", "sse_error"),
        ("bad_chunk", "bad_chunk"),
    ],
)
def test_a_broken_stream_is_a_typed_failure(
    whet: Whet, tmp_path: Path, fault: str, word: str
) -> None:
    with scripted_server(fault=fault) as server:
        said = whet(
            "bench", server.url, *SMALL, "--num-prompts", 3, "--num-warmups", 0, "--concurrency", 3,
            "--timeout-s", 0.3, *SAVE,
        )  # fmt: skip
    assert word in said.sentence(MEASUREMENT)
    assert [error.split(":")[0] for error in saved(tmp_path)["errors"]] == [word] * 3


@pytest.mark.parametrize("tokens", [40, 10**30])
def test_a_false_token_count_invalidates_the_run(whet: Whet, tmp_path: Path, tokens: int) -> None:
    with scripted_server(ttft_s=0.02, claims={"completion_tokens": tokens}) as server:
        said = whet("bench", server.url, *SMALL, "--num-prompts", 10, *SAVE)
    sentence = said.sentence(MEASUREMENT)
    assert f"usage says {tokens} output tokens, max_tokens was 4" in sentence
    saved_run = saved(tmp_path)
    assert saved_run["total_output_tokens"] == 0
    assert saved_run["run_info"]["valid"] is False
    assert "token counts are wrong in 10 of 10" in saved_run["run_info"]["invalid_because"]


def test_answers_that_differ_from_the_request_are_noted_once(whet: Whet) -> None:
    with scripted_server(ttft_s=0.02, tokens=2, claims={"prompt_tokens": 1}) as server:
        said = whet("bench", server.url, *SMALL, "--num-prompts", 10)
    assert said.code == 0, said.err
    text = " ".join((said.out + said.err).split())
    assert text.count("10 answers differ from the request, such as:") == 1
    assert "usage says 1 prompt tokens, 24 were sent" in text
    assert "2 of 4 output tokens came despite ignore_eos" in text


def test_requests_that_were_sent_again_are_counted(whet: Whet, tmp_path: Path) -> None:
    with scripted_server(ttft_s=0.02, fault="reset_reused") as server:
        said = whet("bench", server.url, *SMALL, "--num-prompts", 10, *SAVE)
    assert said.code == 0, said.err
    retries = saved(tmp_path)["run_info"]["retried_requests"]
    assert retries > 0
    assert f"{retries} requests were sent again" in said.out + said.err


@pytest.mark.parametrize("script", [{"metrics_s": 60.0}, {"metrics_status": 500}])
def test_metrics_that_fail_do_not_stop_a_bench(
    whet: Whet, monkeypatch: pytest.MonkeyPatch, script: dict[str, Any]
) -> None:
    for module in (trial, source):
        monkeypatch.setattr(module, "OPTIONAL_COUNTERS_TIMEOUT_S", 0.2)
    with scripted_server(ttft_s=0.02, **script) as server:
        said = whet("bench", server.url, *SMALL, "--num-prompts", 10)
    assert said.code == 0, said.err
    assert "10 of 10 requests answered" in said.out
    if "metrics_s" in script:
        assert "no prefix hit rate and no acceptance length" in said.out + said.err


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    with scripted_server(ttft_s=0.05, gap_s=0.02) as server:
        words = ["bench", server.url, *map(str, SMALL), "--num-prompts", "2000", *SAVE]
        process = subprocess.Popen(
            [sys.executable, "-m", "whet", *words],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=_interrupt, args=(process, server), daemon=True).start()
        _, err = process.communicate(timeout=60)
    assert process.returncode == Interrupted.exit_code, err
    assert err.startswith("Stopped. ")
    told = saved(tmp_path)
    assert told["run_info"]["status"] == "interrupted"
    assert told["completed"] >= 5
    assert told["errors"][-1].startswith("aborted")


def _interrupt(process: subprocess.Popen[str], server: Any) -> None:
    while len(server.requests) < 10 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)


def number_after(text: str, out: str) -> float:
    return float(out.split(text, 1)[1].split(maxsplit=1)[0])


def test_a_stall_is_in_the_console_and_in_the_json_alike(whet: Whet, tmp_path: Path) -> None:
    """2 of 10 requests wait 1.5 s side by side: less than 10 requests in 1.5 s, in both."""
    with scripted_server(ttft_s=0.01) as server:
        server.stalls = {2 + 6: 1.5, 2 + 7: 1.5}  # after the warm-up
        said = whet("bench", server.url, *SMALL, "--num-prompts", 10, "--concurrency", 4, *SAVE)
    assert said.code == 0, said.err
    told = saved(tmp_path)
    assert told["request_throughput"] < 10 / 1.5
    shown = number_after("request rate, req/s: ", said.out)
    assert shown == pytest.approx(told["request_throughput"], rel=1e-3)
    tokens = number_after("throughput, tok/s: ", said.out)
    assert tokens == pytest.approx(told["output_throughput"], rel=1e-3)


def test_one_burst_is_no_measurement_and_says_what_to_send(whet: Whet) -> None:
    with scripted_server(ttft_s=0.01) as server:
        said = whet("bench", server.url, *SMALL, "--num-prompts", 6, "--concurrency", 6)
    assert "measured only a burst: 6 requests sent at once" in said.sentence(MEASUREMENT)
    assert "--num-prompts" in said.err
