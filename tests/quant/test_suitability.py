"""Whether a recipe can be made of a model: by its headers, with a recipe that works instead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import tiny_config, write_hollow, write_tiny_llama, write_tokenizer
from whet.core.errors import CheckpointError
from whet.core.spec import RecipeSpec
from whet.quant.suitability import recipe_problem, settings_text, working_recipes


def recipe(**words: Any) -> RecipeSpec:
    method = {} if "scheme" in words else {"method": "awq"}
    return RecipeSpec.model_validate({**method, **words})


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    """A folder whose experts are one tensor of three dimensions."""
    folder = tmp_path / "experts"
    config = tiny_config(write_tokenizer(folder)) | {"model_type": "gpt_oss"}
    tensors = {"model.embed_tokens.weight": ("BF16", (300, 128))}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        tensors[f"{prefix}.self_attn.q_proj.weight"] = ("BF16", (128, 128))
        tensors[f"{prefix}.mlp.experts.gate_up_proj"] = ("BF16", (4, 128, 512))
    return write_hollow(folder, config, tensors)


def test_what_can_be_made(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    for words in ({}, {"scheme": "W8A8"}, {"scheme": "FP8_DYNAMIC", "kv_cache": "fp8"}):
        assert recipe_problem(folder, recipe(**words)) is None
        assert working_recipes(folder, recipe(**words)) == (recipe(**words),)


def test_groups_that_do_not_divide_name_those_that_do(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, intermediate_size=320)
    assert recipe_problem(folder, recipe()) == (
        "model.layers.0.mlp.down_proj has 320 inputs, not a multiple of the group size 128; use a "
        "recipe with method: awq, scheme: W4A16, group_size: 64"
    )
    assert recipe_problem(folder, recipe(group_size=64)) is None
    assert recipe_problem(folder, recipe(scheme="FP8_DYNAMIC")) is None


def test_no_group_divides(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, intermediate_size=272)
    said = recipe_problem(folder, recipe(group_size=32))
    assert said is not None
    assert said.endswith("; use a recipe with method: rtn, scheme: FP8_DYNAMIC")
    (other,) = working_recipes(folder, recipe())
    assert settings_text(other) == "method: rtn, scheme: FP8_DYNAMIC"


@pytest.mark.parametrize("words", [{}, {"scheme": "W8A8"}], ids=["awq", "smooth"])
def test_an_architecture_without_folds_can_be_rounded(
    tmp_path: Path, words: dict[str, str]
) -> None:
    folder = write_tiny_llama(tmp_path, model_type="nobodys")
    said = recipe_problem(folder, recipe(**words))
    assert said is not None
    assert said.endswith(
        "; use a recipe with method: rtn, scheme: FP8_DYNAMIC, or with method: rtn, scheme: "
        "W4A16, group_size: 128"
    )
    assert "--method" not in said
    for other in working_recipes(folder, recipe(**words)):
        assert recipe_problem(folder, other) is None


@pytest.mark.parametrize("method", ["awq", "rtn"])
def test_nothing_can_be_made(experts: Path, method: str) -> None:
    assert recipe_problem(experts, recipe(method=method)) is not None
    assert working_recipes(experts, recipe(method=method)) == ()


def test_a_quantized_model(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for key in ("quantization_config", "text_config"):
        inner = {"quant_method": "fp8"}
        extra = {key: inner if key == "quantization_config" else {"quantization_config": inner}}
        (folder / "config.json").write_text(json.dumps(config | extra))
        said = recipe_problem(folder, recipe(scheme="FP8_DYNAMIC"))
        assert said is not None
        assert said.startswith("the model is quantized already")
        assert "give the 16-bit checkpoint" in said


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors"])
def test_a_folder_that_cannot_be_read(tmp_path: Path, damage: str) -> None:
    folder = write_tiny_llama(tmp_path)
    (folder / damage).write_text("{")
    with pytest.raises(CheckpointError):
        recipe_problem(folder, recipe())


def test_torch_is_not_needed() -> None:
    code = "import sys, whet.quant.suitability; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
