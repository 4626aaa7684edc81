"""Prompts of a log on real vLLM: the predicted hits are those that its counters show."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.prompts.planted import planted_log
from whet.cli.observer import ConsoleObserver
from whet.demo import pair_paths
from whet.engines.vllm import find_installed
from whet.flow.prompts import replay_prompts
from whet.prompts.analyse import PromptLog, PromptQuestion, analyse, predict

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

TARGET = pair_paths()[0]
BLOCK = 32


def test_a_log_is_replayed_as_it_is_and_with_the_fixes(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    counts = {"whitespace": 5, "date": 8, "id": 8, "name": 11}
    lines = planted_log(counts, clean=16, tools=False)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = PromptLog(PromptQuestion(log=path, target=str(TARGET), block_size=BLOCK))
    analysis, variables = analyse(log)
    kinds = analysis.fix_kinds
    assert kinds
    prompts = list(log.prompts())
    sets = {
        "as the log is": [prompt.ids for prompt in prompts],
        "with the fixes": [p.ids for p in log.fixed(prompts, variables, kinds)],
    }
    with ConsoleObserver() as observer:
        sent, fixed = replay_prompts(
            str(TARGET),
            sets,
            partial(predict, BLOCK),
            block_size=BLOCK,
            log=tmp_path / "replay.log",
            observer=observer,
        )
    assert sent.predicted == analysis.hits
    assert fixed.predicted == analysis.best
    for replayed in (sent, fixed):
        assert abs(replayed.measured.rate - replayed.predicted.rate) < 0.01
    assert fixed.measured.rate > sent.measured.rate
