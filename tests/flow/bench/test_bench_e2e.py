"""``whet bench`` against real vLLM: lengths, prefix hits and a chat as the server counts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whet.core.protocols import Server
from whet.engines.vllm import find_installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]


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
