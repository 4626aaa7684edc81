"""``whet prompts`` against real vLLM: what is predicted is what its counters say."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.prefix.planted import planted_log
from whet.cli.console import ConsoleObserver
from whet.core.protocols import Server
from whet.core.records import HitTokens, Variant
from whet.core.spec import EngineSpec
from whet.demo import pair_paths
from whet.engines import get_engine
from whet.engines.vllm import find_installed
from whet.flow.prompts import VerifyRequest, ask_prompts, judge_replay, replay
from whet.load.shapes import (
    AgentLoop,
    FewShot,
    MultiTurn,
    Rag,
    Shape,
    SingleSystem,
    best_hit_tokens,
)
from whet.load.shapes_prompts import build_shape
from whet.load.synthetic import ordinary_ids
from whet.prefix.analyse import PromptQuestion

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
]

TARGET = pair_paths()[0]
BLOCK = 32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    variant = Variant(
        name="cache",
        weights="fp16",
        scheme=None,
        model_path=str(TARGET),
        speculation=None,
        prefix_cache=True,
        engine_args=(
            ("max_model_len", 2048), ("enforce_eager", True), ("block_size", BLOCK),
        ),
        env=(("VLLM_CPU_KVCACHE_SPACE", "1"),),
    )  # fmt: skip
    engine = get_engine("vllm")
    resolved = engine.resolve(variant, EngineSpec(ready_timeout_s=300.0))
    with engine.serve(resolved, log=tmp_path_factory.mktemp("log") / "engine.log") as live:
        yield live


@pytest.mark.parametrize(
    "shape",
    [
        SingleSystem(requests=16, system_tokens=200),
        FewShot(tasks=2, requests_per_task=6),
        Rag(requests=16),
        Rag(requests=16, order="sorted"),
        MultiTurn(conversations=4, turns=4),
        AgentLoop(agents=3, steps=4, system_tokens=300),
    ],
    ids=lambda shape: f"{type(shape).__name__}-{getattr(shape, 'order', '')}",
)
def test_the_known_best_of_a_shape_is_what_the_server_counts(server: Server, shape: Shape) -> None:
    requests = build_shape(shape, ordinary_ids(TARGET))
    prompts = [np.array(each.prompt_token_ids, dtype=np.int32) for each in requests]
    known = HitTokens(
        prompt_tokens=sum(map(len, prompts)), hit_tokens=best_hit_tokens(shape, BLOCK)
    )
    found = judge_replay("shape", known, replay(server, "shape", prompts, BLOCK))
    assert found.measured.prompt_tokens == known.prompt_tokens
    assert abs(found.measured.hit_tokens - known.hit_tokens) <= 0.01 * known.hit_tokens
    assert found.differs is None


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
