"""Which linears read the same input, and what stands before them that can absorb a scale."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.errors import QuantizationError


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitMap:
    """One fused unit of a decoder layer; names are relative to the layer.

    ``fold`` is the norm, or with ``fold_is_linear`` the linear, that takes 1/s. The first
    ``unclipped`` linears keep their full range: clipping q or k moves attention far off (llm-awq).
    """

    name: str
    linears: tuple[str, ...]
    fold: str
    fold_is_linear: bool = False
    unclipped: int = 0


UNITS: Final = (
    UnitMap(
        name="qkv",
        linears=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        fold="input_layernorm",
        unclipped=2,
    ),
    UnitMap(name="o", linears=("self_attn.o_proj",), fold="self_attn.v_proj", fold_is_linear=True),
    UnitMap(
        name="gate_up", linears=("mlp.gate_proj", "mlp.up_proj"), fold="post_attention_layernorm"
    ),
    UnitMap(name="down", linears=("mlp.down_proj",), fold="mlp.up_proj", fold_is_linear=True),
)
_KNOWN: Final = ("llama", "mistral", "qwen2", "qwen3")
_LAYER: Final = "model.layers.{index}."
_REASONS: Final = (
    (r"gemma.*|qwen3_next.*", "its norms multiply by 1 + w, which needs its own folding rule"),
    (
        r".*moe.*|mixtral|deepseek.*",
        "it routes tokens to experts, whose inputs need their own scales",
    ),
)


def require_known(model_type: str) -> None:
    """Raise ``QuantizationError`` naming what is missing for an architecture without a map."""
    if model_type in _KNOWN:
        return
    reason = next(
        (why for pattern, why in _REASONS if re.fullmatch(pattern, model_type)),
        "there is no map of which linears share an input",
    )
    raise QuantizationError(
        f"the architecture {model_type!r} cannot be quantized yet: {reason}; choose a checkpoint "
        f"of {', '.join(_KNOWN)}, or serve this one in 16 bit"
    )


def layer_prefix(index: int) -> str:
    """``model.layers.3.``"""
    return _LAYER.format(index=index)


def linear_names(layers: int) -> list[str]:
    """Every linear of the decoder that is quantized, in the order in which it is written."""
    return [
        layer_prefix(index) + linear
        for index in range(layers)
        for unit in UNITS
        for linear in unit.linears
    ]


def require_shapes(
    shapes: Mapping[str, Sequence[int]], linears: Sequence[str], group_size: int
) -> None:
    """Every linear's weight is there and its inputs are whole groups, or ``QuantizationError``."""
    for name in linears:
        shape = shapes.get(f"{name}.weight")
        if shape is None:
            raise QuantizationError(
                f"the checkpoint has no {name}.weight, which its architecture needs; "
                "download the checkpoint again"
            )
        if shape[1] % group_size:
            raise QuantizationError(
                f"{name} has {shape[1]} inputs, not a multiple of the group size {group_size}; "
                "choose a group size of 32 or 64 that divides it"
            )
