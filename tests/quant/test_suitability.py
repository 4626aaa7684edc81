"""Whether a recipe can be made of a model: by its headers, with a recipe that works instead."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from tests.checkpoint_factory import tiny_config, write_hollow, write_tiny_llama, write_tokenizer
from whet.core.errors import CheckpointError
from whet.core.spec import RecipeSpec
from whet.quant import suitability
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


def damage(folder: Path, change: Mapping[str, tuple[int, ...] | None]) -> Path:
    """Give tensors of a checkpoint, by the end of their names, another shape, or leave them out."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in list(tensors):
        for end, shape in change.items():
            if name.endswith(end):
                tensor = tensors.pop(name)
                if shape is not None:
                    tensors[name] = torch.zeros(shape, dtype=tensor.dtype)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("method", ["awq", "gptq", "rtn"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"1.self_attn.k_proj.weight": (32, 128)}, r"k_proj.*\[32, 128\].*says \[64, 128\]"),
        ({"0.self_attn.o_proj.weight": (128, 256)}, r"o_proj.*\[128, 256\].*says \[128, 128\]"),
        ({"1.mlp.down_proj.weight": (128, 192)}, r"down_proj.*\[128, 192\].*says \[128, 256\]"),
        ({"0.input_layernorm.weight": (64,)}, r"layernorm.*\[64\].*says \[128\]"),
        ({"lm_head.weight": (200, 128)}, r"lm_head.*\[200, 128\].*says \[300, 128\]"),
        ({"1.mlp.up_proj.weight": None}, r"no model\.layers\.1\.mlp\.up_proj.*download"),
        ({"1.post_attention_layernorm.weight": None}, r"no .*1\.post_attention.*download"),
        ({"model.norm.weight": None}, r"no model\.norm\.weight.*download"),
    ],
    ids=["k", "o", "down", "norm", "head", "no up", "no norm", "no last norm"],
)
def test_a_damaged_checkpoint_takes_no_recipe(
    tmp_path: Path, method: str, change: dict[str, tuple[int, ...] | None], words: str
) -> None:
    folder = damage(write_tiny_llama(tmp_path), change)
    for read in (recipe_problem, working_recipes):
        with pytest.raises(CheckpointError, match=words):
            read(folder, recipe(method=method))


def test_names_that_its_class_does_not_have_need_a_conversion(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("proj", "m").replace("layernorm", "n"): t for name, t in tensors.items()
    }
    save_file(renamed, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="which its architecture needs; convert"):
        recipe_problem(folder, recipe(method="rtn"))


def test_a_head_that_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ``auto`` runs what follows the layers."""
    folder = write_tiny_llama(tmp_path)
    assert recipe_problem(folder, recipe(method="auto")) is None
    suitability._source.cache_clear()

    def forward(*_args: object, **_more: object) -> None:
        raise ValueError("no such head")

    monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
    said = recipe_problem(folder, recipe(method="auto"))
    assert said is not None
    assert said.startswith(
        "method auto needs the output of 'llama' layers, but transformers cannot"
    )
    assert "run the head of 'llama' alone (ValueError: no such head); use a recipe with" in said
    assert "method: gptq" in said
    assert recipe_problem(folder, recipe(method="awq")) is None


def test_torch_is_not_needed() -> None:
    code = "import sys, whet.quant.suitability; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
