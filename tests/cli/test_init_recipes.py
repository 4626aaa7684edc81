"""``whet init`` writes recipes that can be made of the model, and none of a quantized one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint_factory import tiny_config, write_hollow, write_tiny_llama, write_tokenizer
from tests.cli.stage import Whet
from tests.cli.test_check_device import SEVEN_B
from tests.cli.test_init_from_log import write_log
from whet.core.errors import QuantizationError
from whet.core.spec import load_spec
from whet.quant.suitability import recipe_problem

CARD = ("--traffic", "log.jsonl", "--device", "H100 SXM")


def seven_b(folder: Path, **change: object) -> Path:
    """A 7B with headers alone."""
    return write_hollow(folder, tiny_config(write_tokenizer(folder)) | SEVEN_B | change)


def in_fp8(folder: Path) -> Path:
    """A model whose linear layers are stored in FP8 with blocks of 128."""
    folder.mkdir(parents=True)
    vocab = write_tokenizer(folder)
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = tiny_config(vocab) | {"quantization_config": block, "max_position_embeddings": 4096}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("BF16", (vocab, 128)),
        "model.norm.weight": ("BF16", (128,)),
        "lm_head.weight": ("BF16", (vocab, 128)),
    }
    linears = {
        "self_attn.q_proj": (128, 128),
        "self_attn.k_proj": (64, 128),
        "self_attn.v_proj": (64, 128),
        "self_attn.o_proj": (128, 128),
        "mlp.gate_proj": (256, 128),
        "mlp.up_proj": (256, 128),
        "mlp.down_proj": (128, 256),
    }
    for layer in range(2):
        for name, (rows, columns) in linears.items():
            prefix = f"model.layers.{layer}.{name}"
            tensors[f"{prefix}.weight"] = ("F8_E4M3", (rows, columns))
            blocks = (-(-rows // 128), -(-columns // 128))
            tensors[f"{prefix}.weight_scale_inv"] = ("F32", blocks)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = ("BF16", (128,))
    return write_hollow(folder, config, tensors)


def test_a_quantized_model_is_measured_as_stored(whet: Whet, tmp_path: Path) -> None:
    in_fp8(tmp_path / "model")
    write_log(tmp_path / "log.jsonl")
    said = whet("init", "--model", "./model", *CARD)
    assert said.code == 0, said.err
    assert "it is quantized already (FP8_BLOCK): measured as stored, without recipes" in said.out
    spec = load_spec(tmp_path / "whet.yaml")
    assert spec.recipes == {}
    assert (spec.baseline, list(spec.variants)) == ("stored", ["stored", "stored+cache"])
    checked = whet("check", "--device", "H100 SXM")
    assert (checked.code, checked.err) == (0, "")
    assert "the baseline is the target as stored (FP8_BLOCK), not in 16 bit" in checked.out


@pytest.mark.parametrize(
    ("change", "names", "recipe"),
    [
        ({}, ["fp8", "awq"], "awq W4A16 g128"),
        ({"intermediate_size": 10944}, ["fp8", "awq"], "awq W4A16 g64"),
        ({"model_type": "nobodys"}, ["fp8", "int4"], "rtn W4A16 g128"),
        ({"intermediate_size": 10952}, ["fp8"], None),
    ],
    ids=["usual", "smaller groups", "round to nearest", "no groups"],
)
def test_the_recipes_are_those_that_can_be_made(
    whet: Whet, tmp_path: Path, change: dict[str, object], names: list[str], recipe: str | None
) -> None:
    model = seven_b(tmp_path / "model", **change)
    write_log(tmp_path / "log.jsonl")
    said = whet("init", "--model", "./model", *CARD)
    assert said.code == 0, said.err
    spec = load_spec(tmp_path / "whet.yaml")
    assert list(spec.variants)[2:] == [f"{name}+cache" for name in names]
    assert all(recipe_problem(model, each) is None for each in spec.recipes.values())
    four_bits = [each.title for name, each in spec.recipes.items() if name != "fp8"]
    assert four_bits == ([] if recipe is None else [recipe])
    assert whet("check", "--device", "H100 SXM").code == 0


def test_quantize_says_what_check_says(whet: Whet, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "odd", intermediate_size=320)
    said = whet("quantize", "./odd", "out")
    assert said.sentence(QuantizationError.exit_code).endswith(
        "has 320 inputs, not a multiple of the group size 128; use a recipe with method: awq, "
        "scheme: W4A16, group_size: 64"
    )
