"""The layouts in which one linear layer's weights are stored.

Those of compressed-tensors, AutoAWQ ("gemm"), AutoGPTQ, the FP8 checkpoints, NVIDIA's ModelOpt,
gpt-oss and bitsandbytes, and the fused experts of mixtures. A module's tensors are keyed by what
follows its name (``weight``, ``weight_scale``; for fused experts ``""``, ``_blocks``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from whet.checkpoint.headers import TensorHeader
from whet.core.errors import CheckpointError

Parts = Mapping[str, TensorHeader]
FLOATS: Final[Mapping[str, str]] = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_PLAIN: Final[Mapping[str, str]] = {"F16": "16bit", "BF16": "16bit", "F32": "32bit"}
_EIGHT: Final[Mapping[str, str]] = {"I8": "W8A8-INT8", "F8_E4M3": "FP8", "F8_E5M2": "FP8"}
MATRICES: Final = frozenset({"weight_packed", "qweight", "weight", "", "_blocks"})
SIDE: Final = frozenset(
    {"weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape", "weight_g_idx"}
    | {"scales", "qzeros", "g_idx", "weight_scale_2", "weight_global_scale", "SCB"}
    | {"_scales", "_scale", "_scale_inv"}
    | {"_weight_scale", "_weight_scale_inv", "_weight_scale_2"}
)
BUFFERS: Final = frozenset(
    {"inv_freq", "input_scale", "input_global_scale", "k_scale", "v_scale", "q_scale"}
    | {"_input_scale", "weight_format"}
)
_INPUT_SCALES: Final = frozenset({"input_global_scale", "input_scale", "_input_scale"})
_WORD_BITS: Final = 32
_MATRIX: Final = 2
_STACK: Final = 3
_MX_GROUP: Final = 32
_FP8_BLOCK: Final = 128
_STACK_SCALES: Final = ("_weight_scale", "weight_scale", "_weight_scale_inv", "_scale_inv")
_FUSED: Final = re.compile(r"^(.*\.experts\.[a-z_]*?proj)(_\w+)?$")
_INSIDE: Final = re.compile(r"^(.*)\.(weight\..+)$")
_GROWS: Final = re.compile(r"(?:gate|up|input)\w*$")
"""Expert matrices that read the hidden state; the others write it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """One matrix as stored; ``inputs`` is K, ``parameters`` the logical O·K, scales not counted.

    A stack of experts' matrices counts as one. ``group_size`` is None where a row has one scale,
    ``inputs`` is 0 where the layout does not show it (bitsandbytes).
    """

    name: str
    scheme: str
    group_size: int | None
    inputs: int
    parameters: int
    stored_bytes: int

    @property
    def quantized(self) -> bool:
        """Whether it is stored in fewer than 16 bits a weight."""
        return self.scheme not in _PLAIN.values()


def split_name(tensor: str) -> tuple[str, str]:
    """The module of a tensor, and the tensor's name within it."""
    if fused := _FUSED.match(tensor):
        return fused[1], fused[2] or ""
    if inside := _INSIDE.match(tensor):  # bitsandbytes: weight.absmax
        return inside[1], inside[2]
    module, _, part = tensor.rpartition(".")
    return module, part


def is_side(part: str) -> bool:
    """Whether a tensor goes with a quantized matrix instead of being a parameter."""
    return part in SIDE or part.startswith("weight.")


def read_linear(module: str, parts: Parts, *, hidden: int) -> Linear | None:
    """The matrix of a module, None without one; ``CheckpointError`` for an unknown form.

    ``hidden`` is the model's hidden size: stacked experts are stored as [E, O, K] or [E, K, O].
    """
    return (
        _packed(module, parts)
        or _old(module, parts)
        or _blocks(module, parts)
        or _four_bit_codes(module, parts)
        or _stack(module, parts, hidden)
        or _unpacked(module, parts)
    )


def _packed(module: str, parts: Parts) -> Linear | None:
    """compressed-tensors ``pack-quantized``: int32 [O, ⌈K·bits/32⌉], scale [O, K/g], shape [2]."""
    packed = parts.get("weight_packed")
    if packed is None:
        return None
    scale, shape = parts.get("weight_scale"), parts.get("weight_shape")
    if packed.dtype == "U8" and scale is not None and len(packed.shape) == _MATRIX:
        return _four_bit_float(module, parts, packed, scale)
    if scale is None or shape is None or packed.dtype != "I32" or len(packed.shape) != _MATRIX:
        raise unknown_form(packed)
    outputs, inputs = _read_shape(shape)
    bits = _WORD_BITS // math.ceil(inputs / packed.shape[1])
    return _linear(module, parts, f"W{bits}A16", (outputs, inputs), groups=scale.shape[-1])


def _four_bit_float(
    module: str, parts: Parts, words: TensorHeader, scale: TensorHeader
) -> Linear | None:
    """Two 4-bit floats a byte, U8 [O, K/2]: groups of 16 with an FP8 scale, or of 32 with E8M0."""
    inputs, groups = 2 * words.shape[-1], scale.shape[-1] if scale.shape else 0
    if groups * _MX_GROUP == inputs:
        scheme = "MXFP4"
    elif groups * _MX_GROUP == 2 * inputs and scale.dtype == "F8_E4M3":
        scheme = "NVFP4" if _INPUT_SCALES & parts.keys() else "NVFP4A16"
    else:
        raise unknown_form(words)
    return _linear(module, parts, scheme, (math.prod(words.shape[:-1]), inputs), groups=groups)


def _old(module: str, parts: Parts) -> Linear | None:
    """AutoAWQ packs outputs (int32 [K, O·bits/32]), AutoGPTQ inputs (int32 [K·bits/32, O])."""
    words = parts.get("qweight")
    if words is None:
        return None
    scales, zeros = parts.get("scales"), parts.get("qzeros")
    if scales is None or zeros is None or words.dtype != "I32" or len(scales.shape) != _MATRIX:
        raise unknown_form(words)
    groups, outputs = scales.shape
    bits = round(_WORD_BITS * zeros.shape[1] / outputs)
    packs_outputs = words.shape[1] != outputs
    inputs = words.shape[0] if packs_outputs else words.shape[0] * _WORD_BITS // bits
    return _linear(module, parts, f"W{bits}A16", (outputs, inputs), groups=groups)


def _blocks(module: str, parts: Parts) -> Linear | None:
    """gpt-oss: U8 [E, O, K/32, 16] and the exponents of its groups, U8 [E, O, K/32]."""
    blocks, scales = parts.get("_blocks"), parts.get("_scales")
    if blocks is None:
        return None
    if scales is None or blocks.dtype != "U8" or scales.shape != blocks.shape[:-1]:
        raise unknown_form(blocks)
    groups = scales.shape[-1]
    shape = (math.prod(scales.shape[:-1]), _MX_GROUP * groups)
    return _linear(module, parts, "MXFP4", shape, groups=groups)


def _stack(module: str, parts: Parts, hidden: int) -> Linear | None:
    """All experts of a layer in one tensor; a convolution also has three dimensions, one of 1."""
    stack = parts.get("", parts.get("weight"))
    if stack is None or len(stack.shape) != _STACK or 1 in stack.shape[1:]:
        return None
    scale = next((parts[key] for key in _STACK_SCALES if key in parts), None)
    if stack.dtype == "U8" and scale is not None:
        return _four_bit_float(module, parts, stack, scale)
    scheme = _PLAIN.get(stack.dtype) or _eight_bits(stack, scale)
    if scheme is None:
        raise unknown_form(stack)
    _, rows, columns = stack.shape
    reads = _GROWS.search(module) is not None
    inputs = columns if (columns == hidden) == reads or rows == columns else rows
    outputs = math.prod(stack.shape) // inputs
    return _linear(module, parts, scheme, (outputs, inputs), groups=1)


def _unpacked(module: str, parts: Parts) -> Linear | None:
    weight = parts.get("weight")
    if weight is None or len(weight.shape) != _MATRIX:
        return None
    scale = next(
        (parts[key] for key in ("weight_scale", "weight_scale_inv", "SCB") if key in parts), None
    )
    if weight.dtype == "U8" and scale is not None and "weight_scale_2" in parts:
        return _four_bit_float(module, parts, weight, scale)
    plain = _PLAIN.get(weight.dtype)
    scheme = plain or (_eight_bits(weight, scale) if scale is not None else None)
    if scheme is None:
        raise unknown_form(weight)
    return _linear(module, parts, scheme, (weight.shape[0], weight.shape[1]), groups=1)


def _eight_bits(weight: TensorHeader, scale: TensorHeader | None) -> str | None:
    """The scheme by the dtype, and for FP8 by whether blocks of 128 × 128 have one scale each."""
    scheme = _EIGHT.get(weight.dtype)
    blocks = tuple(math.ceil(size / _FP8_BLOCK) for size in weight.shape[-2:])
    if scheme == "FP8" and scale is not None and scale.shape[-2:] == blocks:
        return "FP8_BLOCK"
    return scheme


def _four_bit_codes(module: str, parts: Parts) -> Linear | None:
    """bitsandbytes NF4: U8 [O·K/2, 1], a scale a block in ``weight.absmax``, and their tables."""
    weight, scales = parts.get("weight"), parts.get("weight.absmax")
    if weight is None or scales is None or not any(key.endswith("__nf4") for key in parts):
        return None
    weights = 2 * weight.elements
    linear = _linear(module, parts, "NF4", (scales.elements, weights // scales.elements), groups=1)
    return replace(linear, group_size=linear.inputs, inputs=0)


def _linear(
    module: str, parts: Parts, scheme: str, shape: tuple[int, int], *, groups: int
) -> Linear:
    return Linear(
        name=module,
        scheme=scheme,
        group_size=math.ceil(shape[1] / groups) if groups > 1 else None,
        inputs=shape[1],
        parameters=shape[0] * shape[1],
        stored_bytes=sum(
            part.size_bytes for key, part in parts.items() if key in MATRICES or is_side(key)
        ),
    )


def _read_shape(header: TensorHeader) -> tuple[int, int]:
    """Read the logical shape [O, K] from ``weight_shape``, which holds two integers."""
    if header.dtype not in ("I64", "I32") or header.shape != (_MATRIX,):
        raise unknown_form(header)
    raw = header.read()
    half = len(raw) // 2
    outputs, inputs = (int.from_bytes(part, "little") for part in (raw[:half], raw[half:]))
    if outputs < 1 or inputs < 1:
        raise unknown_form(header)
    return outputs, inputs


def unknown_form(header: TensorHeader) -> CheckpointError:
    """The error for a tensor of an unknown layout."""
    return CheckpointError(
        f"the tensor {header.name!r} of {header.file} ({header.dtype} {list(header.shape)}) is "
        "stored in a form that whet cannot read",
        fix="give a checkpoint in 16 bits or of "
        "compressed-tensors, AWQ, GPTQ, FP8, NVFP4, MXFP4 or bitsandbytes NF4",
    )
