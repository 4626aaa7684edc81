"""Tiny checkpoints that arrive quantized: MXFP4 experts (gpt-oss) and FP8 blocks (DeepSeek, Qwen).

Each is written from a tiny 16-bit checkpoint, in the names, shapes and ``quantization_config`` of
the published ones, with the weights that an engine multiplies by in a second, ordinary folder.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

_BLOCK: Final = 128
_MX_GROUP: Final = 32
_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The sizes of a 4-bit float; the fourth bit is the sign (OCP Microscaling formats, 5.3.3)."""
_EXPERTS: Final = re.compile(r"(.*\.experts\.(?:gate_up|down)_proj)$")
_LINEAR: Final = re.compile(r"model\.layers\.\d+\..*_proj(?:_with_mqa)?\.weight$")
_ATTENTION: Final = ("model.layers.*.self_attn", "model.layers.*.mlp.router")
_CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "mxfp4": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [*_ATTENTION, "model.embed_tokens", "lm_head"],
    },
    "fp8-block": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [_BLOCK, _BLOCK],
    },
}
FORMS: Final = tuple(_CONFIGS)
_WRONG: Final = {
    "mxfp4": r"layers.1.mlp.experts.down_proj_scales",
    "fp8-block": r"layers.1.*\.down_proj\.weight_scale_inv",
}
"""Scales whose fault a comparison must notice."""


def write_stored(source: Path, form: str, folder: Path, dequantized: Path) -> None:
    """Write ``source`` in the form into ``folder``, and its weights in 16 bit beside."""
    from safetensors.torch import load_file, save_file

    split = _mxfp4 if form == "mxfp4" else _fp8_block
    stored: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for file in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            parts, weight = split(name, tensor)
            stored |= parts
            plain[name] = weight
    for out, tensors in ((folder, stored), (dequantized, plain)):
        shutil.copytree(source, out, ignore=shutil.ignore_patterns("*.safetensors*"))
        own = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(own, out / "model.safetensors", metadata={"format": "pt"})
    config = folder / "config.json"
    values = json.loads(config.read_text()) | {"quantization_config": _CONFIGS[form]}
    config.write_text(json.dumps(values))


def _fp8_block(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """E4M3 with a scale for every 128 × 128 block, as DeepSeek-V3 stores it."""
    if not _LINEAR.match(name):
        return {name: weight}, weight
    outputs, inputs = weight.shape
    rows, columns = -(-outputs // _BLOCK), -(-inputs // _BLOCK)
    padded = torch.zeros(rows * _BLOCK, columns * _BLOCK)
    padded[:outputs, :inputs] = weight.float()
    peaks = padded.view(rows, _BLOCK, columns, _BLOCK).abs().amax(dim=(1, 3)).clamp(min=1e-12)
    scales = peaks / torch.finfo(torch.float8_e4m3fn).max
    spread = scales.repeat_interleave(_BLOCK, 0).repeat_interleave(_BLOCK, 1)[:outputs, :inputs]
    codes = (weight.float() / spread).to(torch.float8_e4m3fn)
    parts = {name: codes, f"{name}_scale_inv": scales}
    return parts, (codes.float() * spread).to(weight.dtype)


def _mxfp4(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """4-bit floats with a power of two for every 32 inputs, as gpt-oss stores its experts."""
    if not _EXPERTS.match(name):
        return {name: weight}, weight
    rows = weight.float().transpose(1, 2)  # [E, O, K]: blocks run along the inputs
    groups = rows.reshape(*rows.shape[:2], -1, _MX_GROUP)
    peak = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30)
    exponent = peak.log2().floor() - 2  # the largest power of two in the grid is 4 = 2²
    scaled = groups / exponent.exp2()
    sizes = torch.tensor(_E2M1)
    edges = (sizes[1:] + sizes[:-1]) / 2
    codes = torch.bucketize(scaled.abs().contiguous(), edges)
    values = sizes[codes] * scaled.sign() * exponent.exp2()
    nibbles = (codes + 8 * (scaled < 0)).to(torch.uint8)
    parts = {
        f"{name}_blocks": nibbles[..., 0::2] | (nibbles[..., 1::2] << 4),
        f"{name}_scales": (exponent.squeeze(-1) + 127).to(torch.uint8),
    }
    return parts, values.view_as(rows).transpose(1, 2).to(weight.dtype)


def write_wrong(folder: Path, form: str, out: Path) -> Path:
    """A copy with wrong scales in layer 1: rows in reverse, or the first blocks' doubled.

    Blocks of random weights have nearly one scale, so that their order says nothing.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, out)
    file = out / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if re.search(_WRONG[form], name):
            if form == "mxfp4":
                tensors[name] = tensor.flip(1).contiguous()
            else:
                tensor[0] *= 2
    save_file(tensors, file, metadata={"format": "pt"})
    return out
