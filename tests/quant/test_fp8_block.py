"""FP8 weights with a scale for each block of 128 × 128, and FP8 inputs in groups of 128."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import FloatQuantizationCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from tests.checkpoint_factory import write_tiny_llama
from tests.quant.tiny_models import write_tiny
from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError, QuantizationError
from whet.core.spec import RecipeSpec
from whet.demo import pair_paths
from whet.quant import quantize
from whet.quant.architecture import read_architecture, require_blocks
from whet.quant.packing import pack, stored_parts, unpack
from whet.quant.rounding import make_grid
from whet.quant.suitability import recipe_problem, settings_text, working_recipes

RECIPE = RecipeSpec(scheme="FP8_BLOCK")
WIDE: dict[str, Any] = {"hidden_size": 256, "head_dim": 128}


@pytest.mark.parametrize("method", ["awq", "gptq", "smoothquant"])
def test_it_is_only_rounded_to_nearest(method: str) -> None:
    with pytest.raises(ValidationError, match="FP8_BLOCK is made by rtn"):
        RecipeSpec.model_validate({"scheme": "FP8_BLOCK", "method": method})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {**WIDE, "intermediate_size": 320},
            "gate_proj is 320 × 256, and FP8_BLOCK needs whole blocks",
        ),
        ({**WIDE, "head_dim": 64}, "k_proj is 64 × 256, and FP8_BLOCK needs whole blocks"),
        ({"head_dim": 128}, "q_proj is 256 × 128, and FP8_BLOCK needs whole blocks"),
    ],
)
def test_what_is_not_whole_blocks_is_refused_with_a_recipe_that_works(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    folder = write_tiny_llama(tmp_path, **config)
    said = recipe_problem(folder, RECIPE) or ""
    assert words in said
    assert "; use a recipe with method: rtn, scheme: FP8_DYNAMIC" in said
    assert settings_text(working_recipes(folder, RECIPE)[0]) == "method: rtn, scheme: FP8_DYNAMIC"


@pytest.mark.parametrize(("kv_heads", "heads"), [(1, 6), (2, 4)])
def test_parts_of_a_fused_matrix_are_whole_blocks_too(kv_heads: int, heads: int) -> None:
    matrices = {
        "self_attn.qkv_proj": (512, 256),
        "self_attn.o_proj": (256, 64 * heads),
        "mlp.gate_up_proj": (512, 256),
        "mlp.down_proj": (256, 256),
        "input_layernorm": (256,),
        "post_attention_layernorm": (256,),
    }
    shapes = {f"model.layers.0.{name}.weight": shape for name, shape in matrices.items()}
    config = {
        "model_type": "phi3",
        "hidden_size": 256,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 64,
    }
    architecture = read_architecture(config, shapes)
    if kv_heads == 2:
        require_blocks(architecture, shapes)
        return
    with pytest.raises(QuantizationError, match="qkv_proj is 512 × 256"):
        require_blocks(architecture, shapes)


def test_every_block_has_one_scale_as_the_library_writes_it() -> None:
    torch.manual_seed(0)
    grid = make_grid("FP8_BLOCK", 128, torch.float32)
    weight = torch.randn(384, 512)
    weight[130, 260] = 90.0
    stored = pack(weight, grid.qparams(weight), grid)
    forms = {name: (each.dtype, tuple(each.shape)) for name, each in stored.items()}
    assert forms == stored_parts(grid, 384, 512)
    blocks = weight.abs().unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).amax(dim=(1, 3))
    assert torch.allclose(stored["weight_scale"], blocks / 448)
    preset = preset_name_to_scheme("FP8_BLOCK", ["Linear"])
    theirs = FloatQuantizationCompressor.compress(
        {"weight": weight, "weight_scale": stored["weight_scale"]}, preset
    )
    assert torch.equal(theirs["weight"].float(), stored["weight"].float())
    by_hand = stored["weight"].float() * stored["weight_scale"].repeat_interleave(
        128, 0
    ).repeat_interleave(128, 1)
    assert torch.equal(unpack(stored, grid), by_hand)
    assert grid.stored_bits(384, 512) == 384 * 512 * 8 + 12 * 32
    assert torch.equal(grid.round(weight, grid.qparams(weight)), by_hand)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled target, quantized."""
    folder = tmp_path_factory.mktemp("fp8_block")
    text = folder / "text.jsonl"
    text.write_text('{"text": "The kettle boils."}\n' * 8, encoding="utf-8")
    return Path(quantize(pair_paths()[0], folder / "out", RECIPE, calibration=text).path)


def test_a_checkpoint_is_written_and_read(made: Path) -> None:
    facts = read_facts(made)
    assert (facts.stored.scheme, facts.stored.group_size) == ("FP8_BLOCK", None)
    assert facts.stored.bits_per_weight == pytest.approx(8.001, abs=1e-3)
    config = json.loads((made / "config.json").read_text())["quantization_config"]
    [group] = config["config_groups"].values()
    assert config["format"] == "float-quantized"
    assert (group["weights"]["strategy"], group["weights"]["block_structure"]) == (
        "block",
        [128, 128],
    )
    inputs = group["input_activations"]
    assert (inputs["strategy"], inputs["group_size"], inputs["dynamic"]) == ("group", 128, True)


def test_transformers_reads_the_same_weights(made: Path) -> None:
    config = CompressedTensorsConfig(run_compressed=False)
    model = AutoModelForCausalLM.from_pretrained(made, quantization_config=config)
    tensors = load_file(made / "model.safetensors")
    weights = model.state_dict()
    name = "model.layers.3.mlp.down_proj"
    scale = tensors[f"{name}.weight_scale"].float()
    ours = tensors[f"{name}.weight"].float() * scale.repeat_interleave(128, 0).repeat_interleave(
        128, 1
    )
    assert torch.allclose(weights[f"{name}.weight"].float(), ours, rtol=2**-7)


@pytest.mark.parametrize(
    ("scheme", "strategy", "words"),
    [
        ("FP8_BLOCK", "channel", "claims FP8 scales of rows, but the tensors have those of blocks"),
        ("FP8_DYNAMIC", "block", "claims FP8 scales of blocks, but the tensors have those of rows"),
    ],
)
def test_a_config_of_other_scales_is_refused(
    tmp_path: Path, scheme: str, strategy: str, words: str
) -> None:
    source = write_tiny_llama(tmp_path / "source", **WIDE)
    text = tmp_path / "text.txt"
    text.write_text("the order was shipped on monday\n" * 20)
    recipe = RecipeSpec.model_validate({"scheme": scheme})
    folder = Path(quantize(source, tmp_path / "out", recipe, calibration=text).path)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    [group] = config["quantization_config"]["config_groups"].values()
    group["weights"]["strategy"] = strategy
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words):
        read_facts(folder)


def test_every_expert_of_a_mixture_has_its_blocks_and_the_router_stays(tmp_path: Path) -> None:
    source = write_tiny("qwen3_moe", tmp_path / "source")
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "The kettle boils."}\n' * 8, encoding="utf-8")
    made = quantize(source, tmp_path / "out", RECIPE, calibration=text)
    assert read_facts(Path(made.path)).stored.scheme == "FP8_BLOCK"
    before, after = (
        load_file(Path(folder) / "model.safetensors") for folder in (source, made.path)
    )
    experts = "model.layers.0.mlp.experts.3"
    for linear in ("gate_proj", "up_proj", "down_proj"):
        scale = after[f"{experts}.{linear}.weight_scale"].float()
        weight = before[f"{experts}.{linear}.weight"].float()
        blocks = weight.abs().unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).amax(dim=(1, 3))
        assert torch.allclose(scale, blocks / 448, rtol=2**-7)
    router = "model.layers.0.mlp.gate.weight"
    assert torch.equal(after[router], before[router])
