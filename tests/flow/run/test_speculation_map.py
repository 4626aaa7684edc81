"""The speculation map from spec to record, on servers whose rates follow from what they accept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.method_gate import speculation

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.rounds_stage import DECLARED, Bench, build_bench, patch_declared, spec_of
from tests.metrics.events import steady, trial
from whet.core.counters import ACCEPTED, DRAFT_TOKENS, DRAFTS, GENERATED, PREFIX_QUERIES
from whet.core.load import Load
from whet.core.protocols import Silent
from whet.core.records.evidence import Declared
from whet.core.records.load import TrialRecord
from whet.core.records.speculation_map import (
    AcceptanceLevel,
    SpeculationMap,
    SpeculationPoint,
)
from whet.core.records.summary import Estimate
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.conclude.speculation_map import break_even_length
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
            load=plan.load,
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
    monkeypatch.setattr("whet.flow.serving.run_trial", made.run_trial)
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
    [one] = [item for item in result.points if item.load == Load.at(size)]
    return one


def test_a_plain_server_of_two_steps_breaks_even_at_length_two(
    physics: Physics, tmp_path: Path
) -> None:
    result = mapped(physics, tmp_path)
    assert [(item.plain, item.load.slots, item.k) for item in result.points] == [
        ("fp16", 1, 4),
        ("fp16", 2, 4),
    ]
    one = point(result, 1)
    assert one.l_star is not None
    assert one.l_star.value == pytest.approx(2.0, rel=1e-6)
    assert [item.synthetic for item in one.levels] == [1.0, 3.0, None]
    assert [item.change.value for item in one.levels] == pytest.approx([0.5, 1.5, 2.0], rel=1e-6)
    assert one.draft is not None
    assert one.draft.acceptance_length == 4.0
    assert result.left_out == ()


def test_a_simulated_length_of_one_accepts_nothing_and_counts(
    physics: Physics, tmp_path: Path
) -> None:
    levels = point(mapped(physics, tmp_path), 2).levels
    lengths = {item.synthetic: item.acceptance_length for item in levels}
    assert lengths[1.0] == 1.0


def test_a_level_that_misses_its_length_is_left_out(physics: Physics, tmp_path: Path) -> None:
    physics.accepted["level.accepted0.5"] = 1.0
    result = mapped(physics, tmp_path)
    assert [item.synthetic for item in point(result, 1).levels] == [1.0, None]
    decision = Run.read(tmp_path / "map").decision
    assert decision is not None
    reasons = [item.reason for item in decision.excluded if item.variant == "level.accepted0.5"]
    assert any("contradicted" in reason for reason in reasons)


def test_a_draft_that_accepts_nothing_is_left_out(physics: Physics, tmp_path: Path) -> None:
    physics.accepted["draft"] = 0.0
    result = mapped(physics, tmp_path)
    assert point(result, 1).draft is None
    decision = Run.read(tmp_path / "map").decision
    assert decision is not None
    assert any("not one token accepted" in item.reason for item in decision.excluded)


def test_a_plain_server_too_fast_to_catch(physics: Physics, tmp_path: Path) -> None:
    """Six tokens in the time of a step, and K + 1 = 5."""
    physics.plain = 6.0
    assert point(mapped(physics, tmp_path), 1).l_star is None


def test_one_start_has_a_break_even_and_no_interval(physics: Physics, tmp_path: Path) -> None:
    one = point(mapped(physics, tmp_path, starts=1), 1)
    assert one.l_star is not None
    assert one.draft is not None
    for figure in (one.l_star, one.draft.change):
        assert (figure.low, figure.high) == (None, None)


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


def levels(ratios: list[float], width: float = 0.0) -> list[AcceptanceLevel]:
    """Levels at the lengths 1, 2 and 4, each ratio within a factor of 1 + ``width``."""
    return [
        AcceptanceLevel(
            variant="draft",
            synthetic=length,
            acceptance_length=length,
            change=Estimate(value=r, low=r / (1 + width), high=r * (1 + width), samples=2),
        )
        for length, r in zip((1.0, 2.0, 4.0), ratios, strict=False)
    ]


def physical(plain: float = 0.02, fixed: float = 0.008, step: float = 0.03) -> list[float]:
    """Rates over plain where a token takes ``fixed + step ÷ length`` seconds, ``plain`` without."""
    return [plain / (fixed + step / length) for length in (1, 2, 4)]


def test_prompts_do_not_move_the_break_even() -> None:
    """0.03 ÷ (0.02 − 0.008) = 2.5; its interval are the same formula's with the ratios scaled."""
    length = break_even_length(levels(physical(), 0.1))
    assert length is not None
    assert length.value == pytest.approx(2.5)
    low, high = (0.03 / (0.02 * factor - 0.008) for factor in (1.1, 1 / 1.1))
    assert (length.low, length.high) == pytest.approx((low, high))


@pytest.mark.parametrize("plain", [0.01, 0.05])
def test_a_break_even_outside_the_levels_is_not_guessed(plain: float) -> None:
    assert break_even_length(levels(physical(plain))) is None


def test_an_interval_that_the_levels_do_not_enclose_is_none() -> None:
    length = break_even_length(levels(physical(fixed=0.01, step=0.035), 0.3))
    assert length is not None
    assert (length.low, length.high) == (None, None)


@pytest.mark.parametrize(("lengths", "given"), [((2.4, 2.7), False), ((2.3, 2.7), True)])
def test_levels_within_15_percent_have_no_interval(lengths: tuple[float, ...], given: bool) -> None:
    close = [
        replace(one, acceptance_length=length)
        for one, length in zip(levels([0.95, 1.05], 0.01), lengths, strict=True)
    ]
    length = break_even_length(close)
    assert length is not None
    assert lengths[0] < length.value < lengths[1]
    assert (length.low is not None) is given


def test_one_level_or_none_has_no_break_even() -> None:
    assert break_even_length([]) is None
    assert break_even_length(levels([1.0])) is None


@pytest.mark.parametrize("dearer", [0.0, 0.05])
@pytest.mark.parametrize("lengths", [(1.0, 2.5, 4.0), (2.3, 2.6)])
def test_the_interval_covers_where_steps_become_dearer(
    lengths: tuple[float, ...], dearer: float
) -> None:
    rows = speculation(lengths, sigma=0.02, starts=3, dearer=dearer, runs=60)
    given, covered = (row[3] for row in rows)
    assert given >= 0.95 if lengths[0] == 1.0 else given == 0
    assert covered >= 0.90


def test_the_interval_covers_the_truth() -> None:
    """Rates with 2% noise per server, the plain one's included: L* = 2.5."""
    rng = np.random.default_rng(7)
    width = np.expm1(1.96 * 0.02 * np.sqrt(2))
    covered = 0
    for _ in range(400):
        noise = np.exp(0.02 * rng.standard_normal(4))
        ratios = [float(r * n / noise[3]) for r, n in zip(physical(), noise, strict=False)]
        length = break_even_length(levels(ratios, width))
        assert length is not None
        assert length.low is not None
        assert length.high is not None
        covered += length.low <= 2.5 <= length.high
    assert covered >= 0.94 * 400
