"""The layouts in which weights are stored, each written out by hand as its library writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.checkpoint_factory import (
    llama_shapes,
    tiny_config,
    write_hollow,
    write_json,
    write_tokenizer,
)
from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError

Tensors = dict[str, NDArray[Any]]
Layout = Callable[[int, int], Tensors]
PARAMETERS = 372_352  # 2·300·128 + 5·128 + 2·(3·128·128 + 3·256·128), by hand
LINEAR = 294_912


def zeros(dtype: str, *shape: int) -> NDArray[Any]:
    return np.zeros(shape, dtype)


def compressed(bits: int, group: int, *, asymmetric: bool = False) -> Layout:
    def layout(outputs: int, inputs: int) -> Tensors:
        parts: Tensors = {
            "weight_packed": zeros("int32", outputs, inputs * bits // 32),
            "weight_scale": zeros("float16", outputs, inputs // group if group else 1),
            "weight_shape": np.array([outputs, inputs], "int64"),
        }
        if asymmetric:
            parts["weight_zero_point"] = zeros("int32", outputs * bits // 32, inputs // group)
        return parts

    return layout


def awq(outputs: int, inputs: int) -> Tensors:
    return {
        "qweight": zeros("int32", inputs, outputs // 8),
        "qzeros": zeros("int32", inputs // 64, outputs // 8),
        "scales": zeros("float16", inputs // 64, outputs),
    }


def gptq(outputs: int, inputs: int) -> Tensors:
    return {
        "qweight": zeros("int32", inputs // 8, outputs),
        "qzeros": zeros("int32", inputs // 32, outputs // 8),
        "scales": zeros("float16", inputs // 32, outputs),
        "g_idx": zeros("int32", inputs),
    }


def int8(outputs: int, inputs: int) -> Tensors:
    return {
        "weight": zeros("int8", outputs, inputs),
        "weight_scale": zeros("float16", outputs, 1),
        "bias": zeros("float16", outputs),
    }


CLAIM_4 = {"quant_method": "compressed-tensors"}


def write_stored(path: Path, layout: Layout, *, claim: Any = CLAIM_4, only: str = "") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    config = tiny_config(write_tokenizer(path))
    tensors: Tensors = {}
    for name, shape in llama_shapes(config).items():
        if ".layers." in name and len(shape) == 2 and only in name:
            module = name.removesuffix(".weight")
            parts = layout(shape[0], shape[1])
            tensors |= {f"{module}.{part}": value for part, value in parts.items()}
        else:
            tensors[name] = zeros("float16", *shape)
    save_file(tensors, path / "model.safetensors")
    write_json(path / "config.json", config | ({"quantization_config": claim} if claim else {}))
    return path


@pytest.mark.parametrize(
    ("layout", "scheme", "group_size", "bits"),
    [
        # bits a weight: 4 + 16/128 + 128 bits of weight_shape on 14 modules ÷ 294,912 weights
        (compressed(4, 128), "W4A16", 128, 4.125 + 14 * 128 / LINEAR),
        (compressed(4, 32), "W4A16", 32, 4.5 + 14 * 128 / LINEAR),
        (compressed(4, 64, asymmetric=True), "W4A16", 64, 4.3125 + 14 * 128 / LINEAR),
        (compressed(8, 128), "W8A16", 128, 8.125 + 14 * 128 / LINEAR),
        (awq, "W4A16", 64, 4 + 16 / 64 + 4 / 64),
        (int8, "W8A8-INT8", None, 8 + 16 * 2 * 1024 / LINEAR),  # 1,024 outputs a layer
    ],
)
def test_layouts(
    tmp_path: Path, layout: Layout, scheme: str, group_size: int | None, bits: float
) -> None:
    facts = read_facts(write_stored(tmp_path, layout))
    assert facts.stored.scheme == scheme
    assert facts.stored.group_size == group_size
    assert facts.stored.bits_per_weight == pytest.approx(bits, abs=1e-9)
    assert (facts.stored.quantized_modules, facts.stored.unquantized_modules) == (14, 0)
    assert facts.stored.dtype == "float16"
    assert facts.linear_parameters == LINEAR
    assert facts.linear_inputs == (128, 256)
    biases = 2 * 1024 if layout is int8 else 0
    assert facts.parameters == PARAMETERS + biases


def test_gptq_packs_along_the_inputs(tmp_path: Path) -> None:
    facts = read_facts(write_stored(tmp_path, gptq))
    assert (facts.stored.scheme, facts.stored.group_size) == ("W4A16", 32)
    assert facts.parameters == PARAMETERS


def test_channelwise_has_no_group(tmp_path: Path) -> None:
    facts = read_facts(write_stored(tmp_path, compressed(8, 0)))
    assert (facts.stored.scheme, facts.stored.group_size) == ("W8A16", None)


def test_some_layers_left_at_16_bits(tmp_path: Path) -> None:
    facts = read_facts(write_stored(tmp_path, compressed(4, 128), only="mlp"))
    assert facts.stored.scheme == "W4A16"
    assert (facts.stored.quantized_modules, facts.stored.unquantized_modules) == (6, 8)


def test_two_schemes_are_mixed(tmp_path: Path) -> None:
    def layout(outputs: int, inputs: int) -> Tensors:
        return compressed(8 if inputs == 256 else 4, 128)(outputs, inputs)

    assert read_facts(write_stored(tmp_path, layout)).stored.scheme == "mixed"


def test_a_folder_saved_but_not_quantized(tmp_path: Path) -> None:
    def plain(outputs: int, inputs: int) -> Tensors:
        return {"weight": zeros("float16", outputs, inputs)}

    with pytest.raises(CheckpointError, match=r"saved without being quantized; quantize it again"):
        read_facts(write_stored(tmp_path, plain))


def test_quantized_tensors_that_config_does_not_tell_of(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"14 linear layers .* no quantization_config"):
        read_facts(write_stored(tmp_path, compressed(4, 128), claim=None))


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"bits": 8, "group_size": 128}, "claims bits 8, but the tensors are stored with 4"),
        (
            {"config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 64}}}},
            "claims group size 64, but the tensors are stored with 128",
        ),
    ],
)
def test_a_claim_with_the_wrong_numbers(tmp_path: Path, claim: Any, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_facts(write_stored(tmp_path, compressed(4, 128), claim=claim))


Shapes = dict[str, tuple[str, tuple[int, ...]]]


def nvfp4_of_compressed_tensors(outputs: int, inputs: int) -> Shapes:
    return {
        "weight_packed": ("U8", (outputs, inputs // 2)),
        "weight_scale": ("F8_E4M3", (outputs, inputs // 16)),
        "weight_global_scale": ("F32", (1,)),
        "input_global_scale": ("F32", (1,)),
    }


def nvfp4_of_modelopt(outputs: int, inputs: int) -> Shapes:
    return {
        "weight": ("U8", (outputs, inputs // 2)),
        "weight_scale": ("F8_E4M3", (outputs, inputs // 16)),
        "weight_scale_2": ("F32", ()),
        "input_scale": ("F32", ()),
    }


def nvfp4_without_input_scales(outputs: int, inputs: int) -> Shapes:
    parts = nvfp4_of_compressed_tensors(outputs, inputs)
    return {name: part for name, part in parts.items() if name != "input_global_scale"}


def mxfp4_of_compressed_tensors(outputs: int, inputs: int) -> Shapes:
    return {
        "weight_packed": ("U8", (outputs, inputs // 2)),
        "weight_scale": ("U8", (outputs, inputs // 32)),
    }


def nf4(outputs: int, inputs: int) -> Shapes:
    """bitsandbytes: blocks of 64, whose scales are quantized in blocks of 256."""
    return {
        "weight": ("U8", (outputs * inputs // 2, 1)),
        "weight.absmax": ("U8", (outputs * inputs // 64,)),
        "weight.quant_map": ("F32", (16,)),
        "weight.nested_absmax": ("F32", (outputs * inputs // 64 // 256,)),
        "weight.nested_quant_map": ("F32", (256,)),
        "weight.quant_state.bitsandbytes__nf4": ("U8", (91,)),
    }


def int8_of_bitsandbytes(outputs: int, inputs: int) -> Shapes:
    return {
        "weight": ("I8", (outputs, inputs)),
        "SCB": ("F32", (outputs,)),
        "weight_format": ("U8", ()),
    }


def blocks_of_fp8(outputs: int, inputs: int) -> Shapes:
    return {
        "weight": ("F8_E4M3", (outputs, inputs)),
        "weight_scale_inv": ("F32", (-(-outputs // 128), inputs // 128)),
    }


def write_shapes(path: Path, layout: Callable[[int, int], Shapes], claim: Any = CLAIM_4) -> Path:
    """As ``write_stored``, without data, so in dtypes that NumPy lacks."""
    config = tiny_config(300)
    tensors: Shapes = {}
    for name, shape in llama_shapes(config).items():
        if ".layers." in name and len(shape) == 2:
            parts = layout(shape[0], shape[1])
            tensors |= {
                f"{name.removesuffix('.weight')}.{key}": value for key, value in parts.items()
            }
        else:
            tensors[name] = ("BF16", shape)
    return write_hollow(path, config | ({"quantization_config": claim} if claim else {}), tensors)


@pytest.mark.parametrize(
    ("layout", "scheme", "group_size", "bits"),
    [
        (nvfp4_of_compressed_tensors, "NVFP4", 16, 4.5),
        (nvfp4_of_modelopt, "NVFP4", 16, 4.5),
        (nvfp4_without_input_scales, "NVFP4A16", 16, 4.5),
        (mxfp4_of_compressed_tensors, "MXFP4", 32, 4.25),
        # the tables of each of 14 modules weigh much beside such small matrices
        (nf4, "NF4", 64, 4 + 8 / 64 + 32 / 64 / 256 + 14 * (272 * 32 + 91 * 8) / LINEAR),
        (int8_of_bitsandbytes, "W8A8-INT8", None, 8.0),
        (blocks_of_fp8, "FP8_BLOCK", None, 8.0),
    ],
)
def test_formats_of_four_and_eight_bits(
    tmp_path: Path,
    layout: Callable[[int, int], Shapes],
    scheme: str,
    group_size: int | None,
    bits: float,
) -> None:
    facts = read_facts(write_shapes(tmp_path, layout))
    assert (facts.stored.scheme, facts.stored.group_size) == (scheme, group_size)
    assert facts.stored.bits_per_weight == pytest.approx(bits, rel=0.05)
    assert facts.linear_parameters == LINEAR
    assert facts.parameters == PARAMETERS
    assert facts.linear_inputs == (() if scheme == "NF4" else (128, 256))


def test_the_claim_of_modelopt_is_a_file_of_its_own(tmp_path: Path) -> None:
    write_shapes(tmp_path, nvfp4_of_modelopt, claim=None)
    with pytest.raises(CheckpointError, match=r"config\.json has no quantization_config"):
        read_facts(tmp_path)
    claim = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
    write_json(tmp_path / "hf_quant_config.json", {"quantization": claim})
    assert read_facts(tmp_path).stored.scheme == "NVFP4"
    write_json(tmp_path / "hf_quant_config.json", {"quantization": claim | {"group_size": 32}})
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json claims group size 32"):
        read_facts(tmp_path)


@pytest.mark.parametrize(("inputs", "scheme"), [({"num_bits": 4}, "MXFP4-W4A4"), (None, "MXFP4")])
def test_mxfp4_activations_have_no_tensors_and_stand_in_the_config(
    tmp_path: Path, inputs: Any, scheme: str
) -> None:
    group = {"weights": {"num_bits": 4, "group_size": 32}, "input_activations": inputs}
    claim = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    write_shapes(tmp_path, mxfp4_of_compressed_tensors, claim=claim)
    assert read_facts(tmp_path).stored.scheme == scheme


@pytest.mark.parametrize(
    ("gate_up", "down"),
    [((4, 512, 128), (4, 128, 256)), ((4, 128, 512), (4, 256, 128))],
    ids=["[E, O, K]", "[E, K, O]"],
)
def test_fused_experts_are_linear_layers(
    tmp_path: Path, gate_up: tuple[int, ...], down: tuple[int, ...]
) -> None:
    """4 experts of 3·256·128 in each of 2 layers, 2 of them used by a token."""
    config = tiny_config(300) | {"num_local_experts": 4, "num_experts_per_tok": 2}
    tensors: Shapes = {
        name: ("BF16", shape) for name, shape in llama_shapes(config).items() if "mlp" not in name
    }
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts"
        tensors[f"{experts}.gate_up_proj"] = ("BF16", gate_up)
        tensors[f"{experts}.down_proj"] = ("BF16", down)
        tensors[f"{experts}.down_proj_bias"] = ("BF16", (4, 128))
    facts = read_facts(write_hollow(tmp_path, config, tensors))
    expert, attention = 3 * 256 * 128, 2 * 3 * 128 * 128
    assert facts.linear_parameters == 2 * 4 * expert + attention
    assert facts.linear_inputs == (128, 256)
    assert facts.stored.unquantized_modules == 2 * (4 + 2)
    assert facts.stored.bits_per_weight == 16.0
    assert facts.active_parameters == facts.parameters - 2 * 2 * (expert + 128)


def test_the_experts_of_gpt_oss_in_mxfp4(tmp_path: Path) -> None:
    """32 weights in 16 bytes and an exponent: 4.25 bits."""
    config = tiny_config(300) | {"quantization_config": {"quant_method": "mxfp4"}}
    tensors: Shapes = {
        name: ("BF16", shape) for name, shape in llama_shapes(config).items() if "mlp" not in name
    }
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts"
        for name, outputs, inputs in (("gate_up_proj", 512, 128), ("down_proj", 128, 256)):
            tensors[f"{experts}.{name}_blocks"] = ("U8", (4, outputs, inputs // 32, 16))
            tensors[f"{experts}.{name}_scales"] = ("U8", (4, outputs, inputs // 32))
            tensors[f"{experts}.{name}_bias"] = ("BF16", (4, outputs))
    facts = read_facts(write_hollow(tmp_path, config, tensors))
    assert (facts.stored.scheme, facts.stored.group_size) == ("MXFP4", 32)
    assert facts.stored.quantized_modules == 4
    assert facts.linear_parameters == 2 * 4 * 3 * 256 * 128 + 2 * 3 * 128 * 128


def test_a_packed_shape_of_32_bits(tmp_path: Path) -> None:
    """Kimi-K2's INT4 files."""

    def layout(outputs: int, inputs: int) -> Tensors:
        parts = compressed(4, 64)(outputs, inputs)
        return {**parts, "weight_shape": parts["weight_shape"].astype("int32")}

    stored = read_facts(write_stored(tmp_path, layout)).stored
    assert (stored.scheme, stored.group_size) == ("W4A16", 64)


MIXTURE = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 256}
_EXPERT = 128 * 256


@pytest.mark.parametrize(
    ("tensors", "idle"),
    [
        ({"moe.{}.up.weight": ("BF16", (256, 128))}, 3 * _EXPERT),
        ({"feed_forward.w1.{}.weight": ("BF16", (256, 128))}, 3 * _EXPERT),
        ({"moe.down_proj.weight": ("BF16", (4, 128, 256))}, 3 * _EXPERT),
        ({"mlp.experts.down_proj": ("BF16", (4, 256, 128))}, 3 * _EXPERT),
        # LongCat's two MLPs are no experts
        ({"mlps.0.up.weight": ("BF16", (256, 128)), "mlps.1.up.weight": ("BF16", (256, 128))}, 0),
    ],
)
def test_experts_by_structure_whatever_their_name(
    tmp_path: Path, tensors: Shapes, idle: int
) -> None:
    active = 2 if not idle else 1
    config = tiny_config(300) | MIXTURE | {"num_experts_per_tok": active}
    shapes: Shapes = {
        name: ("BF16", shape)
        for name, shape in llama_shapes(config).items()
        if "mlp" not in name or ".0." in name
    }
    for name, form in tensors.items():
        for expert in range(4) if "{}" in name else (0,):
            shapes[f"model.layers.1.{name.format(expert)}"] = form
    facts = read_facts(write_hollow(tmp_path, config, shapes))
    expected = facts.parameters - idle if idle else None
    assert facts.active_parameters == expected


def test_routers_in_32_bits_do_not_make_a_mixed_checkpoint(tmp_path: Path) -> None:
    """ERNIE 4.5."""
    config = tiny_config(300)
    shapes: Shapes = {name: ("BF16", shape) for name, shape in llama_shapes(config).items()}
    for layer in range(2):
        shapes[f"model.layers.{layer}.mlp.gate.weight"] = ("F32", (8, 128))
    assert read_facts(write_hollow(tmp_path, config, shapes)).stored.scheme == "16bit"


@pytest.mark.parametrize("dtype", ["I64", "I32"])
def test_a_table_beside_a_plain_matrix_is_no_weight(tmp_path: Path, dtype: str) -> None:
    """DeepSeek-V4's experts by token id."""
    config = tiny_config(300)
    shapes: Shapes = {name: ("BF16", shape) for name, shape in llama_shapes(config).items()}
    shapes["model.layers.0.mlp.gate.weight"] = ("BF16", (8, 128))
    before = read_facts(write_hollow(tmp_path / "a", config, shapes)).parameters
    shapes["model.layers.0.mlp.gate.tid2eid"] = (dtype, (300, 2))
    assert read_facts(write_hollow(tmp_path / "b", config, shapes)).parameters == before


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    def blocks(outputs: int, inputs: int) -> Tensors:
        return {"weight": zeros("uint8", outputs * inputs // 2, 1)}

    with pytest.raises(CheckpointError, match=r"proj\.weight.*U8.*form that whet cannot read"):
        read_facts(write_stored(tmp_path, blocks))


def test_a_packed_weight_without_its_scale(tmp_path: Path) -> None:
    def half(outputs: int, inputs: int) -> Tensors:
        return {"weight_packed": zeros("int32", outputs, inputs // 8)}

    with pytest.raises(CheckpointError, match="weight_packed"):
        read_facts(write_stored(tmp_path, half))
