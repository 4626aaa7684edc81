"""Published FP8 checkpoints whose scales are of blocks are read."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint_factory import write_tiny_llama
from whet.checkpoint import read_facts
from whet.core.spec import RecipeSpec
from whet.quant import quantize


def write_fp8(folder: Path) -> Path:
    """A tiny FP8 checkpoint with a scale for 128 × 128 weights."""
    source = write_tiny_llama(folder / "source", hidden_size=256, head_dim=128)
    text = folder / "text.jsonl"
    text.write_text('{"text": "the order was shipped on monday"}\n' * 20)
    recipe = RecipeSpec.model_validate({"scheme": "FP8_DYNAMIC"})
    out = Path(quantize(source, folder / "out", recipe, calibration=text).path)
    tensors = load_file(out / "model.safetensors")
    for name in [each for each in tensors if each.endswith("weight_scale")]:
        rows, columns = tensors[name.removesuffix("_scale")].shape
        tensors[name] = torch.ones(-(-rows // 128), -(-columns // 128), dtype=torch.bfloat16)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    [group] = config["quantization_config"]["config_groups"].values()
    group["weights"] |= {"strategy": "block", "block_structure": [128, 128]}
    (out / "config.json").write_text(json.dumps(config))
    return out


def test_scales_of_blocks_are_read(tmp_path: Path) -> None:
    facts = read_facts(write_fp8(tmp_path))
    assert (facts.stored.scheme, facts.stored.group_size) == ("FP8_BLOCK", None)
