"""The layouts in which weights are stored, each written out by hand as its library writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.checkpoint_factory import llama_shapes, tiny_config, write_json, write_tokenizer
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
