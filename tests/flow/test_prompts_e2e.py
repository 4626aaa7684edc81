"""``whet prompts`` against real vLLM: what is predicted is what its counters say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.prefix.planted import planted_log
from whet.cli.console import ConsoleObserver
from whet.demo import pair_paths
from whet.engines.vllm import find_installed
from whet.flow.prompts import VerifyRequest, ask_prompts
from whet.prefix.analyse import PromptQuestion

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

TARGET = pair_paths()[0]
BLOCK = 32


def test_a_log_is_replayed_as_it_is_and_mended(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    counts = {"whitespace": 5, "date": 6, "id": 5, "version": 4, "name": 7, "json": 5}
    lines = planted_log(counts, clean=16, tools=False)
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    question = PromptQuestion(log=log, target=str(TARGET), block_size=BLOCK)
    with ConsoleObserver() as observer:
        found = ask_prompts(
            question,
            observer,
            verify=VerifyRequest(requests=48, log=tmp_path / "replay.log", args={}),
        )
    assert {cause.kind: cause.requests for cause in found.causes} == counts
    sent, mended = found.replays
    assert sent.predicted.hit_tokens == found.hits.hit_tokens
    assert mended.predicted.hit_tokens == found.repaired.hit_tokens
    for replayed in (sent, mended):
        assert abs(replayed.measured.rate - replayed.predicted.rate) < 0.01
    assert mended.measured.rate > sent.measured.rate + 0.2
    assert found.speed is not None
    assert found.speed.s_per_token > 0
    assert sent.ttft_mean_s is not None
    assert mended.ttft_mean_s is not None
