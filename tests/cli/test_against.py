"""``whet bench --against``: what it tells, what it writes, what bad input gets."""

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
from tests.scripted_server import ScriptedServer, scripted_server
from whet.core.errors import EngineLostError, Interrupted, MeasurementError, UsageError
from whet.demo import pair_paths

USAGE = UsageError.exit_code
SMALL = ("--tokenizer", pair_paths()[0], "--num-warmups", 2, "--isl", 24, "--osl", 3)
SAVE = ("--save-result", "-o", "out")


def saved(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "out" / "bench.json").read_text())
    return told


def test_two_servers_from_end_to_end(whet: Whet, tmp_path: Path) -> None:
    with scripted_server(ttft_s=0.05) as a, scripted_server(ttft_s=0.2) as b:
        said = whet(
            "bench", a.url, "--against", b.url, *SMALL, "--num-prompts", 40, "--concurrency", 4,
            *SAVE, "--goodput", "ttft:5000", "--slo", "ttft:median<5s",
        )  # fmt: skip
        prompts = [sorted(tuple(body["prompt"]) for body in s.requests) for s in (a, b)]
    assert said.code == 0, said.err
    assert prompts[0] == prompts[1]
    assert len(set(prompts[0])) == len(prompts[0]) == 4 * 42
    assert "40 requests to B, run 4 of 4" in said.out
    assert f"A: {a.url}" in said.out
    assert "objective met" in said.out
    last = said.out[said.out.index("B is ") :]
    assert "worse than A on" in last
    assert "TTFT p50 (+" in last
    told = saved(tmp_path)
    assert (told["a"]["url"], told["b"]["url"]) == (a.url, b.url)
    for letter in ("a", "b"):
        runs = told[letter]["runs"]
        assert [run["completed"] for run in runs] == [40] * 4
        assert all(run["request_goodput"] == run["request_throughput"] for run in runs)
    found = {item["metric"]: item["verdict"] for item in told["comparisons"]}
    assert found["ttft_p50_ms"] == "worse"
    assert list(found)[:2] == ["tps_mean", "ttft_p50_ms"]
    assert not (tmp_path / "out" / "bench-2.json").exists()


def test_the_number_of_runs_may_be_given(whet: Whet) -> None:
    with scripted_server(ttft_s=0.05) as a, scripted_server(ttft_s=0.05, model="other") as b:
        words = (*SMALL, "--num-prompts", 5, "--num-runs", 2, "--against-model", "other")
        said = whet("bench", a.url, "--against", b.url, *words)
        assert len(a.requests) == len(b.requests) == 2 * 7
    assert f"B: {b.url} (other)" in said.out


def test_ctrl_c_tells_the_pairs_that_are_whole(tmp_path: Path) -> None:
    with scripted_server(ttft_s=0.05) as a, scripted_server(ttft_s=0.05) as b:
        words = ["bench", a.url, "--against", b.url, *map(str, SMALL), "--num-prompts", "20", *SAVE]
        process = subprocess.Popen(
            [sys.executable, "-m", "whet", *words],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=_interrupt, args=(process, b, 30), daemon=True).start()
        out, err = process.communicate(timeout=60)
    assert process.returncode == Interrupted.exit_code, err
    assert err == "Stopped. Figures printed above cover what was measured before.\n"
    assert "Nothing is decided by one pair of trials" in out
    told = saved(tmp_path)
    assert (told["interrupted"], told["pairs_compared"]) == (True, 1)
    assert {item["verdict"] for item in told["comparisons"]} == {"undecided"}
    assert [run["run_info"]["status"] for run in told["b"]["runs"]] == ["complete", "interrupted"]


def _interrupt(process: subprocess.Popen[str], server: ScriptedServer, after: int) -> None:
    while len(server.requests) < after and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)


# Bad input


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--num-runs", 3),
            "--num-runs must be an even number, 2 or more, for the order A B B A (got 3)",
        ),
        (("--num-runs", 1), "an even number, 2 or more"),
        (("--find-max", "rate", "--slo", "ttft:p95<1s"), "leave out --find-max"),
        (("--model", "gone"), "the server has no model 'gone'; --model takes one of scripted"),
        (("--against-model", "gone"), "has no model 'gone'; --against-model takes one of scripted"),
    ],
)
def test_a_flag_that_cannot_be_used(whet: Whet, words: tuple[Any, ...], told: str) -> None:
    with scripted_server() as a, scripted_server() as b:
        assert told in whet("bench", a.url, "--against", b.url, *SMALL, *words).sentence(USAGE)
        assert a.requests == b.requests == []


def test_a_second_model_without_a_second_server(whet: Whet) -> None:
    said = whet("bench", "http://127.0.0.1:9", "--against-model", "x").sentence(USAGE)
    assert "--against-model needs --against" in said


@pytest.mark.parametrize("url", ["nonsense", "http://[::1", "ftp://127.0.0.1"])
def test_an_address_that_is_none(whet: Whet, url: str) -> None:
    with scripted_server() as a:
        assert "http://host:port" in whet("bench", a.url, "--against", url, *SMALL).sentence(USAGE)


def test_the_same_server_twice(whet: Whet) -> None:
    with scripted_server() as a:
        said = whet("bench", a.url, "--against", a.url, *SMALL).sentence(USAGE)
    assert "--against names 'scripted' of the same server" in said


def test_nobody_answers_at_the_second(whet: Whet) -> None:
    with scripted_server() as a:
        said = whet("bench", a.url, "--against", "http://127.0.0.1:9", *SMALL)
    assert "127.0.0.1:9 cannot be reached" in said.sentence(EngineLostError.exit_code)


@pytest.mark.parametrize("broken", ["A", "B"])
def test_a_server_that_answers_nothing(whet: Whet, tmp_path: Path, broken: str) -> None:
    with scripted_server(status=503) as bad, scripted_server(ttft_s=0.05) as good:
        urls = (bad.url, good.url) if broken == "A" else (good.url, bad.url)
        words = (*SMALL, "--num-prompts", 4, "--num-runs", 2, *SAVE)
        said = whet("bench", urls[0], "--against", urls[1], *words)
    told = said.sentence(MeasurementError.exit_code)
    assert told.startswith(f"{bad.url}: no request was answered: http_503")
    assert "No trials could be compared: no run is usable on both servers." in said.out
    kept = saved(tmp_path)
    assert kept["comparisons"] == []
    assert [run["failed"] for run in kept[broken.lower()]["runs"]] == [4, 4]
