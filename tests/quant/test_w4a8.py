"""4-bit weights with FP8 activations: a W4A16 checkpoint whose config.json says more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from whet.checkpoint import read_facts
from whet.checkpoint.stored import read_claim, with_activations
from whet.core.records.model import StoredWeights
from whet.core.spec import RecipeSpec
from whet.demo import pair_paths
from whet.quant import quantize
from whet.quant.rounding import format_of, make_grid, quantization_config, stored_parts
from whet.quant.suitability import recipe_problem

INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}


@pytest.mark.parametrize("size", [32, 64])
def test_only_groups_of_128_are_taken(size: int) -> None:
    with pytest.raises(ValidationError, match="groups of 128"):
        RecipeSpec(scheme="W4A8_FP8", group_size=size)


def test_it_is_not_mixed() -> None:
    with pytest.raises(ValidationError, match="activations in 8"):
        RecipeSpec(scheme="W4A8_FP8", mixed={"bits_per_weight": 5})


def test_its_tensors_are_those_of_w4a16_and_its_config_adds_the_activations() -> None:
    plain, grid = (make_grid(name, 128, torch.bfloat16) for name in ("W4A16", "W4A8_FP8"))
    assert stored_parts(grid, 256, 512) == stored_parts(plain, 256, 512)
    assert grid.stored_bits(256, 512) == plain.stored_bits(256, 512)
    assert format_of(grid) == "pack-quantized"
    written = quantization_config(grid, ignore=["lm_head"], kv_cache=False)
    [group] = written.model_dump(mode="json")["config_groups"].values()
    assert {key: group["input_activations"][key] for key in INPUTS} == INPUTS
    weights = group["weights"]
    assert (weights["num_bits"], weights["group_size"], weights["symmetric"]) == (4, 128, True)
    assert RecipeSpec(scheme="W4A8_FP8").stored_scheme == "W4A8_FP8"


def stored(group_size: int = 128, scheme: str = "W4A16") -> StoredWeights:
    return StoredWeights(
        scheme=scheme,
        dtype="bfloat16",
        group_size=group_size,
        bits_per_weight=4.1,
        quantized_modules=7,
        unquantized_modules=0,
    )


@pytest.mark.parametrize(
    ("inputs", "weights", "scheme"),
    [
        (INPUTS, stored(), "W4A8_FP8"),
        (INPUTS, stored(64), "W4A8_FP8-G64"),
        ({**INPUTS, "type": "int"}, stored(), "W4A16"),
        (None, stored(), "W4A16"),
        (INPUTS, stored(scheme="FP8"), "FP8"),
    ],
)
def test_it_is_recognised_by_the_config(
    inputs: dict[str, object] | None, weights: StoredWeights, scheme: str, tmp_path: Path
) -> None:
    groups = {"group_0": {"weights": {"num_bits": 4}, "input_activations": inputs}}
    config = {
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}
    }
    assert with_activations(read_claim(tmp_path, config), weights).scheme == scheme


def test_a_float16_model_is_refused(tmp_path: Path) -> None:
    target, _ = pair_paths()
    folder = tmp_path / "half"
    shutil.copytree(target, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("dtype", None)
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float16"}))
    recipe = RecipeSpec(scheme="W4A8_FP8", method="rtn")
    assert "bfloat16" in (recipe_problem(folder, recipe) or "")
    assert recipe_problem(target, recipe) is None


def test_a_checkpoint_is_written_and_read(tmp_path: Path) -> None:
    target, _ = pair_paths()
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "The kettle boils."}\n' * 8, encoding="utf-8")
    recipe = RecipeSpec(scheme="W4A8_FP8", method="rtn")
    made = quantize(target, tmp_path / "out", recipe, calibration=text)
    found = read_facts(Path(made.path)).stored
    assert (found.scheme, found.group_size) == ("W4A8_FP8", 128)
