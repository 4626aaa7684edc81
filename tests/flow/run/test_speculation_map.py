"""The speculation map from spec to record, on servers whose rates follow from what they accept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.rounds_stage import DECLARED, Bench, build_bench, patch_declared, spec_of
from tests.metrics.events import steady, trial
from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, GENERATED, PREFIX_QUERIES
from whet.core.protocols import Silent
from whet.core.records import Declared, TrialRecord
from whet.core.records.speculation_map import SpeculationMap, SpeculationPoint
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.conclude.speculation_map import length_estimate
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder
from whet.load import TrialPlan

STEPS = 100
DRAFT: dict[str, Any] = {"speculation": {"num_tokens": 4}}
LEVELS: dict[str, Any] = {"speculation": {"num_tokens": 4, "synthetic_acceptance": [0, 0.5]}}
VARIANTS = {"fp16": {}, "draft": DRAFT, "level": LEVELS}


@dataclass
class Physics:
    """Accepted tokens per step by variant; ``plain`` is a plain server's speed in steps.

    A speculative server's rate is its acceptance length times one step per unit of time.
    """

    bench: Bench
    accepted: dict[str, float] = field(default_factory=dict)
    plain: float = 2.0

    def declared(self, _url: str) -> Declared:
        """Settings of the newest server."""
        if self.bench.engine.started[-1] == "fp16":
            return DECLARED
        asked = {"method": "draft_model", "num_speculative_tokens": "4"}
        config = tuple((f"speculative_config.{key}", value) for key, value in asked.items())
        return replace(DECLARED, config=(*DECLARED.config, *config))

    def run_trial(self, _url: str, _model: str, *, plan: TrialPlan, **_asked: Any) -> TrialRecord:
        accepted = self.accepted.get(plan.variant)
        speed = self.plain if accepted is None else 1 + accepted
        after = {GENERATED: 1000.0, PREFIX_QUERIES: 0.0}
        if accepted is not None:
            after |= {DRAFTS: STEPS, DRAFT_TOKENS: 4 * STEPS, ACCEPTED: accepted * STEPS}
        record = trial(
            steady(16, scale=1 / speed),
            number=plan.trial,
            variant=plan.variant,
            batch_size=plan.batch_size,
            before=dict.fromkeys(after, 0.0),
            after=after,
        )
        return replace(record, workload_sha256=plan.workload.facts.sha256)


@pytest.fixture
def physics(monkeypatch: pytest.MonkeyPatch) -> Physics:
    made = Physics(
        build_bench(monkeypatch),
        accepted={"draft": 3.0, "level.accepted0": 0.0, "level.accepted0.5": 2.0},
    )
    for module in ("measure.session", "measure.find_rate"):
        monkeypatch.setattr(f"whet.flow.run.{module}.run_trial", made.run_trial)
    patch_declared(monkeypatch, made.declared)
    return made


def spec_with_draft(folder: Path, variants: dict[str, Any], starts: int = 2) -> Spec:
    write_tiny_llama(folder / "draft", seed=1)
    models = {"target": str(folder / "target"), "draft": str(folder / "draft")}
    order = "interleaved" if starts > 1 else "blocks"
    return spec_of(folder, order, starts, model=models, variants=variants)


def mapped(
    physics: Physics, folder: Path, variants: dict[str, Any] = VARIANTS, **change: Any
) -> SpeculationMap:
    with RunStore.open(folder / "map") as store:
        run(
            spec_with_draft(folder, variants, **change),
            Recorder(store=store, observer=Silent()),
            engines=physics.bench.engine,
        )
        result = store.get("speculation_map", "all", SpeculationMap)
    assert result is not None
    return result


def point(result: SpeculationMap, size: int) -> SpeculationPoint:
    [one] = [item for item in result.points if item.batch_size == size]
    return one


def test_a_plain_server_of_two_steps_breaks_even_at_length_two(
    physics: Physics, tmp_path: Path
) -> None:
    result = mapped(physics, tmp_path)
    assert [(item.plain, item.batch_size, item.k) for item in result.points] == [
        ("fp16", 1, 4),
        ("fp16", 2, 4),
    ]
    one = point(result, 1)
    assert one.l_star is not None
    assert one.l_star.value == pytest.approx(2.0, rel=1e-6)
    assert one.fixed_share == pytest.approx(0.0, abs=1e-6)
    assert (one.reachable, one.pays) == ("yes", "yes")
    assert one.change is not None
    assert one.change.value == pytest.approx(2.0, rel=1e-6)
    assert one.headroom is not None
    assert one.headroom.value == pytest.approx(5 / 4, rel=1e-6)
    assert [item.synthetic for item in one.levels] == [None, 1.0, 3.0]
    assert result.left_out == ()


def test_a_simulated_length_of_one_accepts_nothing_and_counts(
    physics: Physics, tmp_path: Path
) -> None:
    lengths = {
        item.synthetic: item.acceptance_length
        for item in point(mapped(physics, tmp_path), 2).levels
    }
    assert lengths[1.0].value == 1.0


def test_a_level_that_misses_its_length_is_left_out(physics: Physics, tmp_path: Path) -> None:
    physics.accepted["level.accepted0.5"] = 1.0
    result = mapped(physics, tmp_path)
    assert [item.synthetic for item in point(result, 1).levels] == [None, 1.0]
    [sentence] = result.left_out
    assert sentence.startswith("level.accepted0.5 at 1, 2: speculation contradicted")


def test_a_draft_that_accepts_nothing_is_left_out(physics: Physics, tmp_path: Path) -> None:
    physics.accepted["draft"] = 0.0
    result = mapped(physics, tmp_path)
    assert point(result, 1).real is None
    assert point(result, 1).pays == "undecided"
    assert "not one token accepted" in result.left_out[0]


def test_a_plain_server_too_fast_to_catch(physics: Physics, tmp_path: Path) -> None:
    """Six tokens in the time of a step, and K + 1 = 5."""
    physics.plain = 6.0
    one = point(mapped(physics, tmp_path), 1)
    assert one.l_star is not None
    assert one.l_star.value == pytest.approx(6.0, rel=1e-6)
    assert (one.reachable, one.pays) == ("no", "no")


def test_one_start_has_a_break_even_and_no_interval(physics: Physics, tmp_path: Path) -> None:
    one = point(mapped(physics, tmp_path, starts=1), 1)
    for figure in (one.l_star, one.headroom, one.change):
        assert figure is not None
        assert (figure.low, figure.high) == (None, None)
    assert (one.reachable, one.pays) == ("undecided", "undecided")


def test_a_map_needs_the_same_variant_without_speculation(physics: Physics, tmp_path: Path) -> None:
    physics.accepted = {"level.accepted0": 0.0, "level.accepted0.5": 2.0}
    result = mapped(physics, tmp_path, {"fp16": {}, "level": LEVELS | {"prefix_cache": True}})
    assert result.points == ()
    assert "no variant is the same without speculation" in result.left_out[0]


def test_simulated_answers_are_never_recommended(physics: Physics, tmp_path: Path) -> None:
    """The level is 1.5 times as fast as the plain server, and its text is made up."""
    physics.bench.passes = True
    physics.accepted["draft"] = 0.5
    mapped(physics, tmp_path)
    decision = Run.read(tmp_path / "map").decision
    assert decision is not None
    assert {item.kind for item in decision.excluded if item.variant == "level.accepted0.5"} == {
        "known fault"
    }
    assert decision.recommendation is not None
    assert decision.recommendation.variant == "fp16"


def test_a_length_has_the_interval_of_its_bounded_variance() -> None:
    """200 accepted in 100 steps of K = 4: variance at most 2·2, so ± 1.96 · 2 ÷ 10."""
    found = length_estimate(200, 100, 4)
    assert (found.low, found.value, found.high) == pytest.approx((2.608, 3.0, 3.392))
    assert length_estimate(0, 100, 4).high == 1.0
