"""Quantized checkpoints of a tiny Llama, packed by compressed-tensors itself and not by whet."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from torch import Tensor

FP8_CACHE = {
    "num_bits": 8,
    "type": "float",
    "strategy": "tensor",
    "symmetric": True,
    "dynamic": False,
}


def write_stored(
    source: Path, out: Path, name: str, *, input_scale: float = 0.05, kv_scale: float | None = None
) -> Path:
    """``source`` rounded to nearest by the library's preset ``name`` (``W8A8``, ``FP8`` …)."""
    copy_beside(source, out)
    scheme = preset_name_to_scheme(name, ["Linear"])
    assert scheme.weights is not None
    form = infer_module_format(torch.nn.Linear, scheme).value
    compressor: Any = BaseCompressor.get_value_from_registry(form)
    tensors: dict[str, Tensor] = {}
    for key, weight in load_file(source / "model.safetensors").items():
        if not key.endswith("_proj.weight"):
            tensors[key] = weight
            continue
        scale, _ = calculate_qparams(*_range(weight, scheme.weights), scheme.weights)
        state = {"weight": weight, "weight_scale": scale.to(weight.dtype)}
        if scheme.input_activations is not None and not scheme.input_activations.dynamic:
            state["input_scale"] = torch.tensor([input_scale], dtype=weight.dtype)
        packed = compressor.compress(state, scheme)
        tensors |= {key.removesuffix("weight") + k: v.contiguous() for k, v in packed.items()}
    config = json.loads((source / "config.json").read_text())
    quantization = QuantizationConfig(
        config_groups={"group_0": scheme},
        format=form,
        quantization_status="compressed",
        ignore=["lm_head"],
    )
    plain = json.loads(quantization.model_dump_json())
    if kv_scale is not None:
        plain["kv_cache_scheme"] = FP8_CACHE
        for layer in range(config["num_hidden_layers"]):
            for side in ("k", "v"):
                name = f"model.layers.{layer}.self_attn.{side}_scale"
                tensors[name] = torch.tensor([kv_scale], dtype=torch.float16)
    write(out, tensors, {**config, "quantization_config": plain})
    return out


def write_plain(source: Path, out: Path, **change: Tensor) -> Path:
    """``source`` in float32 with some tensors replaced (dots in names written as ``__``)."""
    copy_beside(source, out)
    tensors = {k: v.float() for k, v in load_file(source / "model.safetensors").items()}
    tensors |= {name.replace("__", "."): tensor.float() for name, tensor in change.items()}
    config = json.loads((source / "config.json").read_text())
    write(out, tensors, {**config, "dtype": "float32"})
    return out


def copy_beside(source: Path, out: Path) -> None:
    out.mkdir(parents=True)
    for file in source.glob("*.json"):
        shutil.copy(file, out)


def write(out: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    (out / "config.json").write_text(json.dumps(config))
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def _range(weight: Tensor, args: QuantizationArgs) -> tuple[Tensor, Tensor]:
    if args.strategy == "tensor":
        return weight.min().view(1), weight.max().view(1)
    if args.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    groups = weight.view(weight.shape[0], -1, args.group_size)
    return groups.amin(-1), groups.amax(-1)
