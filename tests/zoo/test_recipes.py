"""Published models and the default recipe: accepted, or refused with one that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.zoo.models import names, published_config, tensors, write_model
from tests.zoo.recipes import AWQ, PLANS
from tests.zoo.truth import TRUTH
from whet.core.spec import RecipeSpec
from whet.quant.architecture import read_architecture
from whet.quant.suitability import recipe_problem, settings_text, working_recipes

DEFAULT = RecipeSpec(method="awq")
QUANTIZED = [name for name in names() if name not in PLANS]
LARGE = {
    *("DeepSeek-V3", "GLM-4.5-Air", "GLM-5", "Kimi-K2", "MiniMax-M2.5"),
    *("Qwen3-Next-80B-A3B", "nvidia-Qwen3-235B-NVFP4", "GLM-5.2", "Kimi-K2.5", "LongCat-Flash"),
    *("Nemotron-3-Ultra-550B", "Hy3-295B", "MiMo-V2-Flash", "GLM-5-next", "Kimi-Linear-48B"),
    "Laguna-XS",
}
"""Over 40,000 tensors, or a test of some seconds; they run with the long tests."""
LOOKED_UP = {"embed_tokens", "embeddings", "lm_head"}
"""Embeddings are not linears, and engines never quantize a head that is not stored so."""


def marked(models: list[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.full if name in LARGE else ()) for name in models]


def quantizable() -> list[str]:
    """Models that take a recipe."""
    return [name for name, plan in PLANS.items() if plan.recipes]


def test_every_unquantized_model_has_a_plan() -> None:
    assert set(PLANS) == {name for name, truth in TRUTH.items() if truth.scheme == "16bit"}
    assert settings_text(DEFAULT) == AWQ


@pytest.mark.parametrize("name", marked([*PLANS]))
def test_the_default_recipe(name: str, tmp_path: Path) -> None:
    folder, plan = write_model(name, tmp_path), PLANS[name]
    problem = recipe_problem(folder, DEFAULT)
    recipes = working_recipes(folder, DEFAULT)
    assert tuple(map(settings_text, recipes)) == plan.recipes
    if recipes == (DEFAULT,):
        assert problem is None
    else:
        right_refusal(problem, plan.reason, plan.recipes)


def right_refusal(problem: str | None, reason: str, recipes: tuple[str, ...]) -> None:
    """The reason, and every recipe that works and no other; without one, what to do instead."""
    assert problem is not None
    assert reason in problem
    assert re.findall(r"method: .*?(?=, or with|$)", problem) == list(recipes)
    if not recipes:
        assert "; " in problem


@pytest.mark.parametrize("name", quantizable())
def test_what_is_quantized_and_what_is_ignored(name: str) -> None:
    """Patterns match every linear that stays in 16 bit, and none that is quantized."""
    shapes = {tensor: shape for tensor, (_, shape) in tensors(name).items()}
    architecture = read_architecture(published_config(name), shapes)
    quantized = set(architecture.linears)
    assert len(quantized) == PLANS[name].linears
    matrices = {
        name.removesuffix(".weight")
        for name, shape in shapes.items()
        if name.endswith(".weight") and len(shape) == 2
    }
    left = {name for name in matrices - quantized if name.rpartition(".")[2] not in LOOKED_UP}
    patterns = [re.compile(each.removeprefix("re:")) for each in architecture.ignore]
    assert {name for name in left | quantized if any(p.match(name) for p in patterns)} == left


@pytest.mark.parametrize("name", marked(QUANTIZED))
def test_a_quantized_model_takes_no_recipe(name: str, tmp_path: Path) -> None:
    problem = recipe_problem(write_model(name, tmp_path), DEFAULT)
    assert problem is not None
    assert problem.startswith("the model is quantized already")
    assert problem.endswith("leave the recipe out and serve it as stored")
