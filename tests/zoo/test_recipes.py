"""Published models and the default recipe: accepted, or refused with one that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.zoo.models import names, published_config, tensors, write_model
from tests.zoo.recipes import AWQ, PLANS
from tests.zoo.truth import TRUTH
from whet.core.spec import RecipeSpec
from whet.quant.architecture import Architecture, Shapes, read_architecture
from whet.quant.suitability import recipe_problem, settings_text, working_recipes

DEFAULT = RecipeSpec()
QUANTIZED = [name for name in names() if name not in PLANS]
LOOKED_UP = {"embed_tokens", "embeddings", "lm_head"}
"""Embeddings are not linears, and engines never quantize a head that is not stored so."""


def models() -> list[object]:
    """Every unquantized model; a known defect must still be one."""
    return [
        pytest.param(name, marks=[pytest.mark.xfail(reason=plan.defect, strict=True)])
        if plan.defect
        else name
        for name, plan in PLANS.items()
    ]


def test_every_unquantized_model_has_a_plan() -> None:
    assert set(PLANS) == {name for name, truth in TRUTH.items() if truth.scheme == "16bit"}
    assert settings_text(DEFAULT) == AWQ


@pytest.mark.parametrize("name", models())
def test_the_default_recipe(name: str, tmp_path: Path) -> None:
    folder, plan = write_model(name, tmp_path), PLANS[name]
    problem = recipe_problem(folder, DEFAULT)
    recipes = working_recipes(folder, DEFAULT)
    assert tuple(map(settings_text, recipes)) == plan.recipes
    if recipes == (DEFAULT,):
        assert problem is None
    else:
        right_refusal(problem, plan.reason, plan.recipes)
    if recipes:
        shapes = {name: shape for name, (_, shape) in tensors(name).items()}
        architecture = read_architecture(published_config(name), shapes)
        assert len(set(architecture.linears)) == plan.linears
        right_ignore(architecture, shapes)


def right_refusal(problem: str | None, reason: str, recipes: tuple[str, ...]) -> None:
    """The reason, and every recipe that works and no other; without one, what to do instead."""
    assert problem is not None
    assert reason in problem
    assert re.findall(r"method: .*?(?=, or with|$)", problem) == list(recipes)
    if not recipes:
        assert "; " in problem


def right_ignore(architecture: Architecture, shapes: Shapes) -> None:
    """Patterns match every linear that stays in 16 bit, and none that is quantized."""
    quantized = set(architecture.linears)
    matrices = {
        name.removesuffix(".weight")
        for name, shape in shapes.items()
        if name.endswith(".weight") and len(shape) == 2
    }
    left = {name for name in matrices - quantized if name.rpartition(".")[2] not in LOOKED_UP}
    patterns = [re.compile(each.removeprefix("re:")) for each in architecture.ignore]
    assert {name for name in left | quantized if any(p.match(name) for p in patterns)} == left


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_quantized_model_takes_no_recipe(name: str, tmp_path: Path) -> None:
    problem = recipe_problem(write_model(name, tmp_path), DEFAULT)
    assert problem is not None
    assert problem.startswith("the model is quantized already")
    assert problem.endswith("leave the recipe out and serve it as stored")
