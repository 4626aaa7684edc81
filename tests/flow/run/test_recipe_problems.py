"""A recipe that cannot be made of the target: refused early, and the others are measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.run.test_quantize import Heard
from tests.flow.stage import FakeEngine, prepared, recorder, tiny_spec
from whet.core.errors import InfeasibleError, QuantizationError
from whet.core.records.decision import Decision
from whet.core.records.plan import Problem
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.check.check import check_spec, feasible
from whet.flow.run.check.checkpoints import Checkpoints
from whet.flow.run.measure.quantize import quantize_recipes
from whet.flow.run.pipeline import run
from whet.report.run import best

RECIPES: dict[str, Any] = {
    "awq": {"method": "awq"},
    "fp8": {"scheme": "FP8_DYNAMIC"},
}
VARIANTS: dict[str, Any] = {"fp16": {}, "w4": {"weights": "awq"}, "w8": {"weights": "fp8"}}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def spec_of(folder: Path, *, wide: int = 320, **change: Any) -> Spec:
    """Groups of 128 do not divide ``wide`` inputs: ``awq`` cannot be made, ``fp8`` can."""
    spec = tiny_spec(folder, **{"recipes": RECIPES, "variants": VARIANTS, **change})
    write_tiny_llama(Path(spec.model.target), intermediate_size=wide)
    return spec


def problems_of(spec: Spec, folder: Path) -> tuple[Problem, ...]:
    return check_spec(
        spec, folder / "run", Checkpoints(folder / "scratch", {}), engines=FakeEngine()
    ).problems


def test_each_variant_of_the_recipe_is_refused_with_one_that_works(tmp_path: Path) -> None:
    drafts = {"speculation": {"draft": "awq"}}
    spec = spec_of(tmp_path, variants={**VARIANTS, "self": drafts})
    problems = problems_of(spec, tmp_path)
    assert [(each.variant, each.kind) for each in problems] == [
        ("w4", "recipe"),
        ("self", "recipe"),
    ]
    assert {each.message for each in problems} == {
        "recipes.awq: model.layers.0.mlp.down_proj has 320 inputs, not a multiple of the group "
        "size 128; use a recipe with method: awq, scheme: W4A16, group_size: 64"
    }


def test_check_refuses_and_says_that_a_run_goes_on(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    checked = check_spec(
        spec, tmp_path / "run", Checkpoints(tmp_path / "scratch", {}), engines=FakeEngine()
    )
    with pytest.raises(InfeasibleError, match=r"w4: recipes\.awq: .*group_size: 64") as refusal:
        feasible(checked, skip=False)
    assert "(whet run measures the others without these)" in str(refusal.value)


def test_a_recipe_that_nobody_uses_is_not_checked(tmp_path: Path) -> None:
    variants = {"fp16": {}, "w8": {"weights": "fp8"}}
    assert problems_of(spec_of(tmp_path, variants=variants), tmp_path) == ()


def test_a_checkpoint_that_exists_is_used(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    made = tmp_path / "run" / "checkpoints" / "awq"
    write_tiny_llama(made, intermediate_size=320)
    assert problems_of(spec, tmp_path) == ()


def test_the_baselines_own_recipe_ends_the_run(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, baseline="w4")
    with RunStore.open(tmp_path / "run") as store, pytest.raises(InfeasibleError) as refusal:
        prepared(spec, store)
    assert "measures the others" not in str(refusal.value)


def test_another_problem_beside_it_still_needs_the_flag(tmp_path: Path) -> None:
    long = {"args": {"max_model_len": 4096}}
    spec = spec_of(tmp_path, variants={**VARIANTS, "long": long})
    with RunStore.open(tmp_path / "run") as store:
        with pytest.raises(InfeasibleError, match="--skip-infeasible"):
            prepared(spec, store)
        job = prepared(spec, store, skip=True)
    assert [each.variant.name for each in job.resolved] == ["fp16", "w8"]


def measure(engine: FakeEngine, spec: Spec, folder: Path) -> tuple[Decision, Heard, Run]:
    heard = Heard()
    with RunStore.open(folder / "run") as store:
        decision = run(spec, recorder(store, heard), engines=engine)
    return decision, heard, Run.read(folder / "run")


def test_a_run_measures_the_others_and_reports_why_one_is_missing(
    tmp_path: Path, engine: FakeEngine
) -> None:
    decision, heard, done = measure(engine, spec_of(tmp_path, variants=no_w8()), tmp_path)
    assert set(engine.started) == {"fp16"}
    assert any("w4 is left out: recipes.awq" in each for each in heard.warnings)
    assert reasons(decision)["w4"].endswith("group_size: 64")
    assert done.missing == ()
    assert "not a multiple of the group size 128" in str(best.build(done))


def test_a_failure_while_quantizing_leaves_its_variants_out(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.quant.quantize_many", refuse)
    drafts = {"speculation": {"draft": "awq"}}
    spec = spec_of(tmp_path, wide=256, variants={**no_w8(), "self": drafts})
    decision, heard, done = measure(engine, spec, tmp_path)
    assert set(engine.started) == {"fp16"}
    assert "w4, self is left out: the numbers overflow" in heard.warnings
    expected = "the recipe awq cannot be made: the numbers overflow"
    assert {name: reasons(decision)[name] for name in ("w4", "self")} == {
        "w4": expected,
        "self": expected,
    }
    assert done.left_out == {"w4": expected, "self": expected}
    assert expected in str(best.build(done))
    assert done.missing == ()


def test_a_failure_of_the_baselines_recipe_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.quant.quantize_many", refuse)
    spec = spec_of(tmp_path, wide=256, baseline="w4")
    with RunStore.open(tmp_path / "run") as store:
        with pytest.raises(QuantizationError, match="overflow"):
            quantize_recipes(prepared(spec, store), recorder(store))
        assert store.reason("quantized", "awq") == "the numbers overflow"


def test_a_resume_tries_the_recipe_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(tmp_path, wide=256, variants={"fp16": {}, "w8": {"weights": "fp8"}})
    with RunStore.open(tmp_path / "run") as store:
        with monkeypatch.context() as patch:
            patch.setattr("whet.quant.quantize_many", refuse)
            job = quantize_recipes(prepared(spec, store), recorder(store))
        assert [each.variant.name for each in job.resolved] == ["fp16"]
        job = quantize_recipes(prepared(spec, store), recorder(store))
        assert [each.variant.name for each in job.resolved] == ["fp16", "w8"]
    assert Run.read(tmp_path / "run").left_out == {}


def refuse(*_args: object, **_kwargs: object) -> None:
    raise QuantizationError("the numbers overflow")


def no_w8() -> dict[str, Any]:
    return {name: item for name, item in VARIANTS.items() if name != "w8"}


def reasons(decision: Decision) -> dict[str, str]:
    return {
        each.variant: each.reason for each in decision.excluded if each.kind == "cannot run here"
    }


def test_a_model_without_a_map_is_refused_for_awq_alone(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, wide=256)
    file = Path(spec.model.target) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "nobodys"}))
    (problem,) = problems_of(spec, tmp_path)
    assert (problem.variant, problem.kind) == ("w4", "recipe")
    assert "method: rtn, scheme: FP8_DYNAMIC" in problem.message
