"""What limits the recommended configuration of the run recorded on an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.run_copy import replace as copy_run
from whet.core.load import Load
from whet.core.protocols import Silent
from whet.core.records.decision import Decision
from whet.core.run import Run
from whet.flow.demo import replay_recorded
from whet.predict.performance.observe import CHANGES, with_bottleneck


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(replay_recorded(tmp_path_factory.mktemp("recorded") / "run", Silent()))


def decided(run: Run, variant: str, concurrency: int) -> Decision:
    decision = run.decision
    assert decision is not None
    assert decision.recommendation is not None
    chosen = replace(
        decision.recommendation, variant=variant, load=Load.at(concurrency), reasons=("first",)
    )
    return replace(decision, recommendation=chosen)


def test_the_stored_decision_says_what_limits_it(run: Run) -> None:
    assert run.decision is not None
    assert run.decision.recommendation is not None
    limits = [
        each for each in run.decision.recommendation.reasons if each.startswith("limited by ")
    ]
    assert len(limits) == 1
    assert any(limits[0].endswith(f"what would raise it: {each}") for each in CHANGES.values())


def test_few_wait_for_weights(run: Run) -> None:
    decision = with_bottleneck(run, decided(run, "fp16+cache", 4))
    assert decision.recommendation is not None
    first, limit = decision.recommendation.reasons
    assert first == "first"
    assert limit.startswith("limited by weights, ")
    assert limit.endswith("weights of fewer bits, or more requests in flight")


def test_nothing_is_said_on_a_cpu_or_of_a_cell_that_is_not_there(run: Run) -> None:
    nowhere = decided(run, "fp16+cache", 5)
    assert with_bottleneck(run, nowhere) == nowhere
    environment = run.require_environment()
    cpu = replace(environment, device=replace(environment.device, kind="cpu"))
    there = decided(run, "fp16+cache", 4)
    assert with_bottleneck(copy_run(run, environment=cpu), there) == there
