"""How the weights are stored, from the names, dtypes and shapes of the tensors.

A module is quantized if its weight is packed, integer or a float of 8 or 4 bits; ``formats.py`` has
the layouts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
from whet.core.records.model import StoredWeights

_IN_LAYER: Final = re.compile(r"(?:^|\.)(?:(?:layers|h|blocks)\.(\d+)|midlayer)\.")
"""``midlayer`` is the one layer of a published EAGLE-3 head."""
_NOT_DECODER: Final = re.compile(r"vision|visual|audio|image|multi_modal")
_PREDICTS_MORE: Final = re.compile(r"(?:^|\.)mtp(?:_layers)?\.")
_EXPERT: Final = re.compile(r"(?:^|\.)(?:experts(?:\.|$)|block_sparse_moe\.(?:in|out)put_linear)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """The classified tensors of a checkpoint. ``linears`` are those of the decoder's layers.

    Layers that predict further tokens (MTP) are counted apart and are in no other field.
    ``expert_parameters`` are those of routed experts; shared ones are not.
    """

    linears: tuple[Linear, ...]
    parameters: int
    layers: frozenset[int]
    has_head: bool
    dtype: str
    expert_parameters: int
    mtp_parameters: int
    mtp_bytes: int


def take_inventory(
    headers: Mapping[str, TensorHeader], *, tied: bool | None, layers: int, hidden: int
) -> Inventory:
    """Classify and count every tensor; ``CheckpointError`` for an unknown form.

    ``layers`` and ``hidden`` are config.json's: a layer beyond the last is one for MTP.
    """
    modules: dict[str, dict[str, TensorHeader]] = defaultdict(dict)
    for name, header in headers.items():
        module, part = split_name(name)
        modules[module][part] = header
    linears: list[Linear] = []
    counts: Counter[str] = Counter()
    floats: Counter[str] = Counter()
    for module, parts in modules.items():
        linear, rest = _split(module, parts, hidden)
        number = sum(header.elements for header in rest) + (linear.parameters if linear else 0)
        if _is_mtp(module, layers):
            counts["mtp"] += number
            counts["mtp_bytes"] += sum(header.size_bytes for header in parts.values())
            continue
        whole = [] if linear is None else [parts[key] for key in ("weight", "") if key in parts]
        for header in (*rest, *whole):
            floats[FLOATS.get(header.dtype, "")] += header.elements
        if linear is not None and _layer(module + ".") is not None:
            linears.append(linear)
        if tied and module.endswith("lm_head"):
            continue  # a tied head that was saved twice is still one matrix
        counts["all"] += number
        counts["experts"] += number if _EXPERT.search(module) else 0
    floats.pop("", None)
    return Inventory(
        linears=tuple(linears),
        parameters=counts["all"],
        layers=frozenset(int(hit[1] or 0) for name in headers if (hit := _layer(name))),
        has_head=any(module.endswith("lm_head") for module in modules),
        dtype=floats.most_common(1)[0][0] if floats else "float16",
        expert_parameters=counts["experts"],
        mtp_parameters=counts["mtp"],
        mtp_bytes=counts["mtp_bytes"],
    )


def _is_mtp(module: str, layers: int) -> bool:
    hit = _layer(module + ".")
    beyond = hit is not None and hit[1] is not None and int(hit[1]) >= layers
    return beyond or _PREDICTS_MORE.search(module + ".") is not None


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


def _split(
    module: str, parts: Mapping[str, TensorHeader], hidden: int
) -> tuple[Linear | None, list[TensorHeader]]:
    """The matrix of a module, if it has one, and its other parameters (biases, norms)."""
    linear = read_linear(module, parts, hidden=hidden)
    matrix = MATRICES if linear is not None else frozenset()
    rest = [part for key, part in parts.items() if key not in matrix | BUFFERS and not is_side(key)]
    for header in rest:
        if header.dtype not in FLOATS:
            raise unknown_form(header)
    return linear, rest
