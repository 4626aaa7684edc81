"""How the weights are stored, from the names, dtypes and shapes of the tensors.

A module is quantized if its weight is packed, integer or 8-bit float; the layouts are those of
compressed-tensors, AutoAWQ ("gemm"), AutoGPTQ and the FP8 checkpoints.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from whet.checkpoint.headers import TensorHeader
from whet.core.errors import CheckpointError
from whet.core.records import StoredWeights

_IN_LAYER: Final = re.compile(r"(?:^|\.)(?:(?:layers|h|blocks)\.(\d+)|midlayer)\.")
"""``midlayer`` is the one layer of a published EAGLE-3 head."""
_NOT_DECODER: Final = re.compile(r"vision|visual|audio|image|multi_modal")
_MATRICES: Final = frozenset({"weight_packed", "qweight", "weight"})
_SIDE: Final = frozenset(
    {"weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape", "weight_g_idx"}
    | {"scales", "qzeros", "g_idx"}
)
_BUFFERS: Final = frozenset(
    {"inv_freq", "input_scale", "input_global_scale", "weight_global_scale", "k_scale", "v_scale"}
    | {"d2t", "t2d"}  # the tokens of an EAGLE-3 head's smaller vocabulary
)
_FLOATS: Final[Mapping[str, str]] = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_PLAIN: Final[Mapping[str, str]] = {"F16": "16bit", "BF16": "16bit", "F32": "32bit"}
_EIGHT: Final[Mapping[str, str]] = {"I8": "W8A8-INT8", "F8_E4M3": "FP8", "F8_E5M2": "FP8"}
_WORD_BITS: Final = 32
_MATRIX: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """One matrix as stored; ``inputs`` is K, ``parameters`` the logical O·K, scales not counted.

    ``group_size`` is None where a row has one scale.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """The classified tensors of a checkpoint. ``linears`` are those of the decoder's layers."""

    linears: tuple[Linear, ...]
    parameters: int
    layers: frozenset[int]
    has_head: bool
    dtype: str


def take_inventory(headers: Mapping[str, TensorHeader], *, tied: bool | None) -> Inventory:
    """Classify and count every tensor; ``CheckpointError`` for an unknown form."""
    modules: dict[str, dict[str, TensorHeader]] = defaultdict(dict)
    for name, header in headers.items():
        module, _, part = name.rpartition(".")
        modules[module][part] = header
    linears: list[Linear] = []
    parameters = 0
    floats: Counter[str] = Counter()
    for module, parts in modules.items():
        linear, rest = _split(module, parts)
        whole = [] if linear is None else [parts[key] for key in ("weight",) if key in parts]
        for header in (*rest, *whole):
            floats[_FLOATS.get(header.dtype, "")] += header.elements
        if linear is not None and _in_decoder(module):
            linears.append(linear)
        if tied and module.endswith("lm_head"):
            continue  # a tied head that was saved twice is still one matrix
        parameters += sum(header.elements for header in rest)
        parameters += linear.parameters if linear is not None else 0
    floats.pop("", None)
    return Inventory(
        linears=tuple(linears),
        parameters=parameters,
        layers=frozenset(int(hit[1] or 0) for name in headers if (hit := _layer(name))),
        has_head=any(module.endswith("lm_head") for module in modules),
        dtype=floats.most_common(1)[0][0] if floats else "float16",
    )


def summarize(inventory: Inventory) -> StoredWeights:
    """The decoder's linear layers in one record; the quantized ones name the scheme."""
    quantized = [linear for linear in inventory.linears if linear.quantized]
    schemes = {linear.scheme for linear in quantized or inventory.linears}
    weights = sum(linear.parameters for linear in inventory.linears)
    stored = sum(linear.stored_bytes for linear in inventory.linears)
    return StoredWeights(
        scheme=schemes.pop() if len(schemes) == 1 else "mixed",
        dtype=inventory.dtype,
        group_size=_group_size(quantized),
        bits_per_weight=8 * stored / weights,
        quantized_modules=len(quantized),
        unquantized_modules=len(inventory.linears) - len(quantized),
    )


def _group_size(quantized: list[Linear]) -> int | None:
    """The group size that all of them share, or None.

    A layer with one group a row looks the same channel-wise and grouped by any size from K up.
    """
    sizes = {linear.group_size for linear in quantized if linear.group_size is not None}
    rows = [linear.inputs for linear in quantized if linear.group_size is None]
    if len(sizes) != 1:
        return None
    size = sizes.pop()
    return size if all(inputs <= size for inputs in rows) else None


def _layer(name: str) -> re.Match[str] | None:
    return None if _NOT_DECODER.search(name) else _IN_LAYER.search(name)


def _in_decoder(module: str) -> bool:
    return _layer(module + ".") is not None


def _split(
    module: str, parts: Mapping[str, TensorHeader]
) -> tuple[Linear | None, list[TensorHeader]]:
    """The matrix of a module, if it has one, and its other parameters (biases, norms)."""
    linear = _packed(module, parts) or _old(module, parts) or _unpacked(module, parts)
    matrix = _MATRICES if linear is not None else frozenset()
    rest = [part for key, part in parts.items() if key not in matrix | _SIDE | _BUFFERS]
    for header in rest:
        if header.dtype not in _FLOATS:
            raise _unknown(header)
    return linear, rest


def _packed(module: str, parts: Mapping[str, TensorHeader]) -> Linear | None:
    """compressed-tensors ``pack-quantized``: int32 [O, ⌈K·bits/32⌉], scale [O, K/g], shape [2]."""
    packed = parts.get("weight_packed")
    if packed is None:
        return None
    scale, shape = parts.get("weight_scale"), parts.get("weight_shape")
    if scale is None or shape is None or packed.dtype != "I32" or len(packed.shape) != _MATRIX:
        raise _unknown(packed)
    outputs, inputs = _read_shape(shape)
    bits = _WORD_BITS // math.ceil(inputs / packed.shape[1])
    return _linear(module, parts, f"W{bits}A16", (outputs, inputs), groups=scale.shape[-1])


def _old(module: str, parts: Mapping[str, TensorHeader]) -> Linear | None:
    """AutoAWQ packs outputs (int32 [K, O·bits/32]), AutoGPTQ inputs (int32 [K·bits/32, O])."""
    words = parts.get("qweight")
    if words is None:
        return None
    scales, zeros = parts.get("scales"), parts.get("qzeros")
    if scales is None or zeros is None or words.dtype != "I32" or len(scales.shape) != _MATRIX:
        raise _unknown(words)
    groups, outputs = scales.shape
    bits = round(_WORD_BITS * zeros.shape[1] / outputs)
    packs_outputs = words.shape[1] != outputs
    inputs = words.shape[0] if packs_outputs else words.shape[0] * _WORD_BITS // bits
    return _linear(module, parts, f"W{bits}A16", (outputs, inputs), groups=groups)


def _unpacked(module: str, parts: Mapping[str, TensorHeader]) -> Linear | None:
    weight = parts.get("weight")
    if weight is None or len(weight.shape) != _MATRIX:
        return None
    plain = _PLAIN.get(weight.dtype)
    scale = parts.get("weight_scale") or parts.get("weight_scale_inv")
    scheme = plain or (_EIGHT.get(weight.dtype) if scale is not None else None)
    if scheme is None:
        raise _unknown(weight)
    return _linear(module, parts, scheme, (weight.shape[0], weight.shape[1]), groups=1)


def _linear(
    module: str,
    parts: Mapping[str, TensorHeader],
    scheme: str,
    shape: tuple[int, int],
    *,
    groups: int,
) -> Linear:
    return Linear(
        name=module,
        scheme=scheme,
        group_size=math.ceil(shape[1] / groups) if groups > 1 else None,
        inputs=shape[1],
        parameters=shape[0] * shape[1],
        stored_bytes=sum(
            part.size_bytes for key, part in parts.items() if key in _MATRICES | _SIDE
        ),
    )


def _read_shape(header: TensorHeader) -> tuple[int, int]:
    """The logical [O, K] that ``weight_shape`` holds: 16 bytes, the only data read here."""
    if header.dtype != "I64" or header.shape != (_MATRIX,):
        raise _unknown(header)
    with header.file.open("rb") as file:
        file.seek(header.start)
        raw = file.read(header.size_bytes)
    outputs, inputs = (int.from_bytes(raw[at : at + 8], "little") for at in (0, 8))
    if outputs < 1 or inputs < 1:
        raise _unknown(header)
    return outputs, inputs


def _unknown(header: TensorHeader) -> CheckpointError:
    return CheckpointError(
        f"the tensor {header.name!r} of {header.file} ({header.dtype} {list(header.shape)}) is "
        "stored in a form that whet cannot read; give a 16-bit, compressed-tensors, AWQ, GPTQ or "
        "FP8 checkpoint"
    )
