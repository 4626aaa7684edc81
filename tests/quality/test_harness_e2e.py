"""The harness against real vLLM: the demo target against itself, and against a ruined copy."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from lab.faults import round_weights

from tests.quality.harness_data import write_tasks
from whet.core.records.engine import Variant
from whet.core.spec import EngineSpec
from whet.demo import pair_paths
from whet.engines import get_engine
from whet.engines.vllm import find_installed
from whet.quality.asking import ModelEndpoint
from whet.quality.harness import HarnessRun, compare_harness, run_harness
from whet.quality.verdicts import losses

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_installed(sys.executable) is None, reason="vLLM is not installed"),
    pytest.mark.skipif(
        importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed"
    ),
]
TARGET = pair_paths()[0]
DOCUMENTS = 16
ARGS = (("max_model_len", 2048), ("enforce_eager", True), ("max_num_seqs", 8))


def measure(model: Path, tasks: Path, log: Path, *, times: int) -> list[HarnessRun]:
    engine = get_engine("vllm")
    variant = Variant(
        name="bf16",
        weights="16bit",
        model_path=str(model),
        speculation=None,
        prefix_cache=True,
        engine_args=ARGS,
        env=(("VLLM_CPU_KVCACHE_SPACE", "1"),),
    )
    resolved = engine.resolve(variant, EngineSpec(ready_timeout_s=300.0))
    with engine.serve(resolved, log=log) as server:
        endpoint = ModelEndpoint(
            url=server.base_url, model=resolved.served_model_name, concurrency=8
        )
        return [
            run_harness(
                endpoint,
                ("desk_recall", "desk_sums"),
                ["--include_path", str(tasks), "--limit", str(DOCUMENTS)],
                tokenizer=TARGET,
                max_length=2048,
            )
            for _ in range(times)
        ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[HarnessRun, HarnessRun, HarnessRun]:
    folder = tmp_path_factory.mktemp("harness_e2e")
    tasks = write_tasks(folder / "tasks")
    first, again = measure(TARGET, tasks, folder / "bf16.log", times=2)
    ruined = round_weights(TARGET, folder / "ruined", 2)
    (worse,) = measure(ruined, tasks, folder / "ruined.log", times=1)
    return first, again, worse


def test_the_target_answers_as_it_does_without_the_harness(
    runs: tuple[HarnessRun, HarnessRun, HarnessRun],
) -> None:
    scores, gaps = compare_harness(runs[0])
    by_name = {score.task: score.score.value for score in scores}
    assert by_name["desk_sums exact_match"] >= 0.75  # 117 of 128 in the model card
    assert by_name["desk_recall acc"] >= 0.75  # chance is a quarter
    assert gaps == ()


def test_the_same_server_asked_twice_shows_no_loss(
    runs: tuple[HarnessRun, HarnessRun, HarnessRun],
) -> None:
    scores, gaps = compare_harness(runs[1], runs[0])
    assert [score.n for score in scores] == [DOCUMENTS] * 3
    assert (losses(scores), gaps) == ([], ())


def test_two_bits_are_caught(runs: tuple[HarnessRun, HarnessRun, HarnessRun]) -> None:
    scores, _ = compare_harness(runs[2], runs[0])
    (sums,) = [score for score in scores if score.task == "desk_sums exact_match"]
    assert sums.lost is not None
    assert sums.lost >= 6
    assert any("desk_sums exact_match" in loss for loss in losses(scores))
