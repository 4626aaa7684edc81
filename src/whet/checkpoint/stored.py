"""How the weights are stored, by their tensors, and what the checkpoint says of it.

A module is quantized if its weight is packed, integer or a float of 8 or 4 bits; ``formats.py`` has
the layouts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_json_if_any
from whet.checkpoint.formats import (
    BUFFERS,
    FLOATS,
    MATRICES,
    Linear,
    is_side,
    read_linear,
    split_name,
    unknown_form,
)
from whet.checkpoint.headers import TensorHeader
from whet.core.errors import CheckpointError
from whet.core.records.model import StoredWeights

_MODELOPT: Final = "hf_quant_config.json"
_BITS: Final[Mapping[str, int]] = {
    "W4A16": 4, "W4A8_FP8": 4, "W8A16": 8, "W8A8-INT8": 8, "FP8": 8, "FP8_BLOCK": 8, "NF4": 4,
    **dict.fromkeys(("NVFP4", "NVFP4A16", "MXFP4", "MXFP4-W4A4"), 4),
}  # fmt: skip
_W4A8_GROUP: Final = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationClaim:
    """What ``quantization_config`` states: the method, and every bit width and group size in it.

    ``activation_bits`` are those of the inputs, ``file`` is where it is written.
    """

    method: str
    bits: frozenset[int]
    group_sizes: frozenset[int]
    file: str
    activation_bits: frozenset[int] = frozenset()
    float_activations: bool = False


def read_claim(path: Path, config: Mapping[str, Any]) -> QuantizationClaim | None:
    """The claim in config.json, else in the file that NVIDIA's ModelOpt writes beside it."""
    claim, file = config.get("quantization_config"), "config.json"
    if not isinstance(claim, dict):
        claim, file = read_json_if_any(path / _MODELOPT).get("quantization"), _MODELOPT
    if not isinstance(claim, dict):
        return None
    groups = claim.get("config_groups")
    parts = [each for each in groups.values() if isinstance(each, dict)] if groups else []
    weights = [part.get("weights") for part in parts]
    schemes = [claim, *(each for each in weights if isinstance(each, dict))]
    inputs = [each for part in parts if isinstance(each := part.get("input_activations"), dict)]
    method = "modelopt" if file == _MODELOPT else str(claim.get("quant_method", "unnamed"))
    return QuantizationClaim(
        method=method,
        bits=_ints(schemes, ("num_bits", "bits", "w_bit")),
        group_sizes=frozenset(
            size for size in _ints(schemes, ("group_size", "q_group_size")) if size > 0
        ),
        file=file,
        activation_bits=_ints(inputs, ("num_bits",)),
        float_activations=any(each.get("type") == "float" for each in inputs),
    )


def with_activations(claim: QuantizationClaim | None, stored: StoredWeights) -> StoredWeights:
    """The scheme of activations that are rounded at run time and have no tensors.

    MXFP4 with 4 bits, or 4-bit integers with FP8, whose other group sizes than 128 are named.
    """
    bits = frozenset[int]() if claim is None else claim.activation_bits
    if stored.scheme == "MXFP4" and 4 in bits:
        return replace(stored, scheme="MXFP4-W4A4")
    if stored.scheme == "W4A16" and claim is not None and 8 in bits and claim.float_activations:
        group = "" if stored.group_size == _W4A8_GROUP else f"-G{stored.group_size}"
        return replace(stored, scheme=f"W4A8_FP8{group}")
    return stored


def require_true_claim(path: Path, claim: QuantizationClaim | None, stored: StoredWeights) -> None:
    """Refuse a folder whose ``quantization_config`` contradicts its tensors."""
    config = path / ("config.json" if claim is None else claim.file)
    if claim is None:
        if stored.quantized_modules > 0:
            raise CheckpointError(
                f"{stored.quantized_modules} linear layers of {path} are stored as "
                f"{stored.scheme}, but {config} has no quantization_config, so an engine would "
                "misread them",
                fix="download the checkpoint again",
            )
        return
    if stored.quantized_modules == 0:
        raise CheckpointError(
            f"{config} says that the weights are quantized ({claim.method}), but every linear "
            f"layer is stored as {stored.dtype}: the folder was saved without being quantized",
            fix="quantize it again, or remove quantization_config to serve it as it is",
        )
    for what, claimed, actual in (
        ("bits", claim.bits, _BITS.get(stored.scheme)),
        ("group size", claim.group_sizes, stored.group_size),
    ):
        if actual is not None and claimed and actual not in claimed:
            raise CheckpointError(
                f"{config} claims {what} {' and '.join(map(str, sorted(claimed)))}, but the "
                f"tensors are stored with {actual}",
                fix="restore the config.json that was written with these weights",
            )


def _ints(schemes: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> frozenset[int]:
    values = [scheme.get(key) for scheme in schemes for key in keys]
    return frozenset(value for value in values if isinstance(value, int))


_IN_LAYER: Final = re.compile(r"(?:^|\.)(?:(?:layers|h|blocks)\.(\d+)|midlayer)\.")
"""``midlayer`` is the one layer of a published EAGLE-3 head."""
_NOT_DECODER: Final = re.compile(r"vision|visual|audio|image|multi_modal")
_PREDICTS_MORE: Final = re.compile(r"(?:^|\.)mtp(?:_layers)?\.")
_TABLES: Final = frozenset({"I64", "U64", "BOOL"})
_INTEGERS: Final = frozenset({"I32", "U32", "I16", "U16", "I8", "U8"})
"""Types of lookup tables, such as the experts of each token id in DeepSeek-V4."""
_NUMBERED: Final = re.compile(r"\.(\d+)(?:\.|$)")
_STACK: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """The classified tensors of a checkpoint. ``linears`` are those of the decoder's layers.

    Layers that predict further tokens (MTP) are counted apart and are in no other field.
    ``experts`` are the parameters of routed experts by their number in a layer; shared ones are
    not in it.
    """

    linears: tuple[Linear, ...]
    parameters: int
    layers: frozenset[int]
    has_head: bool
    dtype: str
    experts: Mapping[int, int]
    mtp_parameters: int
    mtp_bytes: int


def take_inventory(
    headers: Mapping[str, TensorHeader],
    *,
    tied: bool | None,
    layers: int,
    hidden: int,
    experts_per_token: int | None,
) -> Inventory:
    """Classify and count every tensor; ``CheckpointError`` for an unknown form.

    ``layers``, ``hidden`` and ``experts_per_token`` are config.json's: a layer beyond the last is
    one for MTP.
    """
    modules: dict[str, dict[str, TensorHeader]] = defaultdict(dict)
    for name, header in headers.items():
        module, part = split_name(name)
        modules[module][part] = header
    experts = _count_experts(modules, experts_per_token or 0)
    of_experts: Counter[int] = Counter()
    linears: list[Linear] = []
    counts: Counter[str] = Counter()
    floats: Counter[str] = Counter()
    for module, parts in modules.items():
        linear, rest = _split(module, parts, hidden)
        number = sum(header.elements for header in rest) + (linear.parameters if linear else 0)
        layer = _layer(module + ".")
        beyond = layer is not None and layer[1] is not None and int(layer[1]) >= layers
        if beyond or _PREDICTS_MORE.search(module + "."):
            counts["mtp"] += number
            counts["mtp_bytes"] += sum(header.size_bytes for header in parts.values())
            continue
        whole = [] if linear is None else [parts[key] for key in ("weight", "") if key in parts]
        for header in (*rest, *whole):
            floats[FLOATS.get(header.dtype, "")] += header.elements
        if linear is not None and layer is not None:
            linears.append(linear)
        if tied and module.endswith("lm_head"):
            continue  # a tied head that was saved twice is still one matrix
        counts["all"] += number
        if linear is not None and module in experts:
            of_experts[experts[module]] += number
    floats.pop("", None)
    return Inventory(
        linears=tuple(linears),
        parameters=counts["all"],
        layers=frozenset(int(hit[1] or 0) for name in headers if (hit := _layer(name))),
        has_head=any(module.endswith("lm_head") for module in modules),
        dtype=floats.most_common(1)[0][0] if floats else "float16",
        experts=of_experts,
        mtp_parameters=counts["mtp"],
        mtp_bytes=counts["mtp_bytes"],
    )


def _count_experts(
    modules: Mapping[str, Mapping[str, TensorHeader]], active: int
) -> dict[str, int]:
    """Map each module of a routed expert to the number of experts in its layer.

    They are numbered within the layer or stored in one tensor, and more than the ``active`` ones
    of a token; LongCat's two attentions and MLPs are numbered too.
    """
    siblings: dict[str, set[str]] = defaultdict(set)
    parent: dict[str, str] = {}
    counts: dict[str, int] = {}
    for module, parts in modules.items():
        if (layer := _layer(module + ".")) is None:
            continue
        stack = next((parts[key] for key in ("", "weight", "_blocks") if key in parts), None)
        if stack is not None and len(stack.shape) >= _STACK and 1 not in stack.shape[1:]:
            counts[module] = stack.shape[0]
        elif number := _NUMBERED.search(module, layer.end() - 1):
            parent[module] = module[: number.start()]
            siblings[parent[module]].add(number[1])
    counts |= {module: len(siblings[above]) for module, above in parent.items()}
    return {module: count for module, count in counts.items() if count > active > 0}


def summarize(inventory: Inventory) -> StoredWeights:
    """The decoder's linear layers in one record; the quantized ones name the scheme."""
    quantized = [linear for linear in inventory.linears if linear.quantized]
    sizes: Counter[str] = Counter()
    for linear in quantized or inventory.linears:
        sizes[linear.scheme] += linear.parameters
    if not quantized:  # some routers are in 32 bit where the rest is in 16
        sizes = Counter(dict(sizes.most_common(1)))
    weights = sum(linear.parameters for linear in inventory.linears)
    stored = sum(linear.stored_bytes for linear in inventory.linears)
    return StoredWeights(
        scheme=next(iter(sizes)) if len(sizes) == 1 else "mixed",
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


def _split(
    module: str, parts: Mapping[str, TensorHeader], hidden: int
) -> tuple[Linear | None, list[TensorHeader]]:
    """The matrix of a module, if it has one, and its other parameters (biases, norms)."""
    linear = read_linear(module, parts, hidden=hidden)
    matrix = MATRICES if linear is not None else frozenset()
    rest = [part for key, part in parts.items() if key not in matrix | BUFFERS and not is_side(key)]
    plain = linear is not None and not linear.quantized
    for header in rest:
        # 64-bit integers hold no packed weights, nor do integers next to a plain matrix.
        table = header.dtype in _TABLES or (plain and header.dtype in _INTEGERS)
        if header.dtype not in FLOATS and not table:
            raise unknown_form(header)
    return linear, [header for header in rest if header.dtype in FLOATS]
