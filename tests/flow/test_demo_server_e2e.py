"""``whet bench`` and ``whet quality`` with real vLLM on the bundled target, which they share.

Lengths, prefix hits and a chat as the server counts them; a baseline held to itself and to a fault.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.faults import scale_layer

from whet.core.protocols import Server
from whet.demo import pair_paths
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]
LIMITS = ("--max-documents", "60", "--max-tasks", "8", "--max-tokens", "128")


TARGET = pair_paths()[0]


@pytest.fixture
def url(demo_server: Server) -> str:
    return demo_server.base_url


def bench(url: str, out: Path, *words: str) -> dict[str, Any]:
    """No ``--tokenizer``: vLLM says itself where its model lies."""
    done = subprocess.run(
        [sys.executable, "-m", "whet", "bench", url, *words, "--save-result", "-o", str(out)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # Code 6 is the client's own doubt on a busy machine; the answers are whole all the same.
    assert done.returncode in (0, 6), done.stdout + done.stderr
    told: dict[str, Any] = json.loads((out / "bench.json").read_text())
    return told


@pytest.mark.canary
def test_token_ids_arrive_as_counted_and_prefixes_are_hit_as_built(
    url: str, tmp_path: Path
) -> None:
    told = bench(
        url, tmp_path, "--num-prompts", "24", "--num-warmups", "4", "--concurrency", "4", "--isl",
        "48", "--osl", "8", "--prefixes", "2", "--prefix-len", "96", "--seed", "7",
    )  # fmt: skip
    assert (told["completed"], told["failed"]) == (24, 0)
    assert set(told["input_lens"]) == {144}
    assert set(told["output_lens"]) == {8}
    # 96 of the 144 tokens of each prompt are three shared blocks, and were warm.
    assert told["run_info"]["prefix_hit_rate"] == pytest.approx(96 / 144, abs=0.01)


def test_a_chat_has_the_length_that_was_asked_for(url: str, tmp_path: Path) -> None:
    told = bench(
        url, tmp_path, "--num-prompts", "8", "--num-warmups", "1", "--request-rate", "4", "--form",
        "chat", "--isl", "64", "--osl", "6",
    )  # fmt: skip
    assert (told["completed"], told["failed"]) == (8, 0)
    assert set(told["input_lens"]) == {64}
    assert set(told["output_lens"]) == {6}


def gate(folder: Path, target: Path | str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "whet", "quality", str(target), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def passed(folder: Path, target: Path | str) -> dict[str, Any]:
    """The record of ``target``, which passes against the saved baseline."""
    done = gate(folder, target, "--against", "kept", "--json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    record: dict[str, Any] = json.loads(done.stdout)["record"]
    assert record["identity"]["problems"] == []
    assert record["perplexity_ratio"]["value"] == pytest.approx(1.0, abs=1e-3)
    return record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the saved baseline ``kept``, measured on the checkpoint."""
    path = tmp_path_factory.mktemp("gate")
    done = gate(path, TARGET, "--save", "kept", *LIMITS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return path


def test_a_server_of_the_same_checkpoint_passes(folder: Path, demo_server: Server) -> None:
    # A server does not show which weights it has, so the baseline is no reference of the same ones.
    assert passed(folder, demo_server.base_url)["twin"] != "baseline"


@pytest.mark.full
def test_a_checkpoint_passes_against_itself(folder: Path) -> None:
    assert passed(folder, TARGET)["twin"] == "baseline"


@pytest.mark.full
def test_a_damaged_checkpoint_fails(folder: Path) -> None:
    done = gate(folder, scale_layer(TARGET, folder / "damaged", 1, 1.5), "--against", "kept")
    assert done.returncode == 9, done.stdout[-3000:] + done.stderr[-3000:]
    assert "perplexity changes by" in done.stderr
