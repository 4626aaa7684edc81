"""The key of a server that asks for one: in every request of every command, and in no output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.stage import Said, Whet, write_whole_spec
from tests.scripted_server import scripted_server
from whet.core.errors import EngineStartError, NothingQualifiesError, UsageError
from whet.demo import pair_paths
from whet.load import health

KEY = "key-of-the-gateway-51c7"
TOKENIZER = pair_paths()[0]
SMALL = ("--tokenizer", TOKENIZER, "--isl", 24, "--osl", 4, "--num-prompts", 6)


@pytest.fixture(autouse=True)
def no_slow_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LATENESS_FLOOR_NS", 10 * 10**9)
    monkeypatch.setattr(health, "MAX_CPU_SHARE", 2.0)


def run_openai(whet: Whet, folder: Path, url: str) -> Said:
    write_whole_spec(folder, engine={"name": "openai", "url": url, "args": {"max_model_len": 512}})
    return whet("run")


def everything(folder: Path, said: Said) -> str:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return said.out + said.err + "".join(path.read_text(errors="replace") for path in files)


def test_every_request_of_a_run_carries_the_key(
    whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    with scripted_server(gap_s=0.001, words=True, key=KEY) as server:
        said = run_openai(whet, tmp_path, server.url)
    assert said.code == NothingQualifiesError.exit_code, said.err  # it has no log to prove by
    assert server.refused == []
    assert server.paths >= {"/v1/models", "/v1/completions", "/metrics", "/detokenize", "/version"}
    assert KEY not in everything(tmp_path / "runs", said)


def test_a_wrong_key_ends_the_run_before_it_measures(
    whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another-key-of-old")
    with scripted_server(key=KEY) as server:
        said = run_openai(whet, tmp_path, server.url)
    assert "refuses the key (401)" in said.sentence(EngineStartError.exit_code)
    assert "another-key-of-old" not in everything(tmp_path / "runs", said)


@pytest.mark.parametrize("words", [(), ("--workers", 2), ("--form", "chat")])
def test_every_request_of_bench_carries_the_key(
    whet: Whet, monkeypatch: pytest.MonkeyPatch, words: tuple[Any, ...]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with scripted_server(ttft_s=0.01, key=KEY) as server:
        said = whet("bench", server.url, *SMALL, "--concurrency", 2, *words)
    assert said.code == 0, said.err
    assert server.refused == []
    assert KEY not in said.out + said.err


def test_both_servers_of_a_comparison_get_the_key(
    whet: Whet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with scripted_server(key=KEY) as server, scripted_server(key=KEY) as other:
        said = whet("bench", server.url, *SMALL, "--concurrency", 2, "--against", other.url)
    assert said.code == 0, said.err
    assert server.refused + other.refused == []


def test_the_flag_goes_before_the_variable(whet: Whet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another-key-of-old")
    with scripted_server(key=KEY) as server:
        said = whet("bench", server.url, *SMALL, "--concurrency", 2, "--api-key", KEY)
    assert said.code == 0, said.err
    assert server.refused == []


def test_every_request_of_quality_carries_the_key(
    whet: Whet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with scripted_server(words=True, key=KEY) as server:
        limits = ("--max-documents", 2, "--max-tasks", 2, "--max-tokens", 16)
        said = whet("quality", server.url, "--tokenizer", TOKENIZER, *limits)
    assert server.refused == []
    assert "/v1/completions" in server.paths, said.err


@pytest.mark.parametrize("command", ["bench", "quality"])
@pytest.mark.parametrize("address", ["http://bob:hunter2pass@h:1", "https://bob:hunter2/pass@h"])
def test_a_password_in_the_url_is_refused_and_never_printed(
    whet: Whet, command: str, address: str
) -> None:
    said = whet(command, address)
    assert "OPENAI_API_KEY" in said.sentence(UsageError.exit_code)
    assert "hunter2" not in said.out + said.err


def test_a_password_in_the_other_url_is_refused(whet: Whet) -> None:
    said = whet("bench", "http://h:1", "--against", "http://bob:hunter2pass@h:1")
    assert said.sentence(UsageError.exit_code).startswith("--against holds a user name")
    assert "hunter2" not in said.out + said.err


def test_a_key_that_no_header_carries(whet: Whet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "schlüssel-99")
    with scripted_server() as server:
        told = whet("bench", server.url, *SMALL).sentence(UsageError.exit_code)
    assert "OPENAI_API_KEY has a character that a header cannot carry" in told
