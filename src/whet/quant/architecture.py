"""Which linears read the same input, and which norm or linear before them can absorb a scale."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from whet.core.errors import QuantizationError

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitMap:
    """One fused unit of a decoder layer; names are relative to the layer.

    ``fold`` is the norm, or with ``fold_is_linear`` the linear, that takes 1/s; None where none is
    known. The first ``unclipped`` linears keep their full range: clipping q or k changes attention
    too much (llm-awq).
    """

    name: str
    linears: tuple[str, ...]
    fold: str | None = None
    fold_is_linear: bool = False
    unclipped: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """The decoder of one checkpoint.

    ``units`` are those of each layer, ``prefixes`` the start of their names. ``norm_offset`` is 1
    where a norm multiplies by 1 + w. ``unmapped`` is the reason why inputs cannot be measured and
    scales cannot be folded, None where they can. ``ignore`` names the linears that stay in 16 bit.
    """

    model_type: str
    prefixes: tuple[str, ...]
    units: tuple[tuple[UnitMap, ...], ...]
    norm_offset: float
    unmapped: str | None
    ignore: tuple[str, ...]

    @property
    def linears(self) -> list[str]:
        """Every linear that is quantized, by its full name."""
        return [
            prefix + linear
            for prefix, units in zip(self.prefixes, self.units, strict=True)
            for unit in units
            for linear in unit.linears
        ]


def _dense(mlp_norm: str) -> tuple[UnitMap, ...]:
    return (
        UnitMap(
            name="qkv",
            linears=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            fold="input_layernorm",
            unclipped=2,
        ),
        UnitMap(
            name="o", linears=("self_attn.o_proj",), fold="self_attn.v_proj", fold_is_linear=True
        ),
        UnitMap(name="gate_up", linears=("mlp.gate_proj", "mlp.up_proj"), fold=mlp_norm),
        UnitMap(name="down", linears=("mlp.down_proj",), fold="mlp.up_proj", fold_is_linear=True),
    )


_LLAMA: Final = (_dense("post_attention_layernorm"), 0.0)
_GEMMA: Final = (_dense("post_attention_layernorm"), 1.0)
_GEMMA2: Final = (_dense("pre_feedforward_layernorm"), 1.0)
_KNOWN: Final = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2,
}
"""The units of a layer and ``norm_offset``, by model type."""
_REASONS: Final = (
    (
        r".*moe.*|mixtral|deepseek.*",
        "it routes tokens to experts, whose inputs are not measured one by one, so scales and "
        "GPTQ are not defined for it here",
    ),
    (r"qwen3_next.*|qwen3_5.*", "a gate is fused into its q_proj, which folding would ruin"),
    (r".*_vl.*|gemma3|mistral3|mllama.*|llava.*", "it is more than a text decoder"),
)
_IN_LAYER: Final = re.compile(
    r"^(?P<prefix>(?:.*\.)?(?:layers\.\d+|midlayer)\.)(?P<rest>.+)\.weight$"
)
_FROM_TARGET: Final = "fc"
"""The linear of an EAGLE head that reads the hidden states of its target."""
_HEAD_INPUTS: Final = (
    "a speculation head (EAGLE) reads the hidden states of its target, which calibration text "
    "alone does not give"
)
_ROUTERS: Final = frozenset({"gate", "router", "shared_expert_gate", "wg"})
_FUSED: Final = {
    "q_proj": "qkv",
    "k_proj": "qkv",
    "v_proj": "qkv",
    "gate_proj": "gate_up",
    "up_proj": "gate_up",
    "w1": "w13",
    "w3": "w13",
}
_SUPPORTED: Final = "Llama, Mistral, Qwen2, Qwen3 and Gemma"


def read_architecture(model_type: str, shapes: Shapes) -> Architecture:
    """The map of a checkpoint from its ``model_type`` and the shapes of its tensors.

    An architecture without a map, and a speculation head, gets its units from the tensors' names,
    which is enough to round to nearest. ``QuantizationError`` where even that is impossible.
    """
    layers = _layers(shapes)
    if f"{_FROM_TARGET}.weight" in shapes:
        head = _by_names(model_type, layers, _HEAD_INPUTS)
        # Engines prepend a name of their own.
        return replace(head, ignore=(*head.ignore, f"re:.*{_FROM_TARGET}$"))
    if model_type not in _KNOWN:
        return _by_names(model_type, layers)
    units, norm_offset = _KNOWN[model_type]
    prefixes = tuple(sorted(layers, key=_number))
    linears = [linear for unit in units for linear in unit.linears]
    for prefix in prefixes:
        if missing := [linear for linear in linears if linear not in layers[prefix]]:
            raise QuantizationError(
                f"the checkpoint has no {prefix}{missing[0]}.weight, which its architecture needs; "
                "download the checkpoint again"
            )
    return Architecture(
        model_type=model_type,
        prefixes=prefixes,
        units=tuple(units for _ in prefixes),
        norm_offset=norm_offset,
        unmapped=None,
        ignore=("lm_head",),
    )


def require_measurable(architecture: Architecture, what: str) -> None:
    """Raise ``QuantizationError`` where ``what`` needs inputs and there is no map."""
    if architecture.unmapped is not None:
        raise QuantizationError(
            f"{what} needs the inputs of {architecture.model_type!r} layers, but "
            f"{architecture.unmapped}; round to nearest instead (--method rtn with W4A16, or "
            f"--scheme FP8_DYNAMIC), or choose a checkpoint of {_SUPPORTED}"
        )


def require_groups(shapes: Shapes, linears: Sequence[str], group_size: int | None) -> None:
    """Every linear's inputs are whole groups, or ``QuantizationError``."""
    for name in linears if group_size else ():
        inputs = shapes[f"{name}.weight"][1]
        if inputs % group_size:  # type: ignore[operator]
            raise QuantizationError(
                f"{name} has {inputs} inputs, not a multiple of the group size {group_size}; "
                "choose a group size of 32 or 64 that divides it"
            )


def _layers(shapes: Shapes) -> dict[str, dict[str, Sequence[int]]]:
    """The matrices of each decoder layer, by their names within it, in the order of the file."""
    layers: dict[str, dict[str, Sequence[int]]] = defaultdict(dict)
    for name, shape in shapes.items():
        match = _IN_LAYER.match(name)
        if match and len(shape) == 2:
            layers[match["prefix"]][match["rest"]] = shape
    return dict(layers)


def _by_names(
    model_type: str, layers: Mapping[str, Mapping[str, object]], reason: str | None = None
) -> Architecture:
    reason = reason or next(
        (why for pattern, why in _REASONS if re.fullmatch(pattern, model_type)),
        "whet does not know which of its linears share an input, and which layer precedes them",
    )
    stems = {re.split(r"layers\.|midlayer", prefix)[0] for prefix in layers}
    if len(stems) != 1:
        what = "no decoder layers" if not stems else f"layers of several parts ({sorted(stems)})"
        raise QuantizationError(
            f"the architecture {model_type!r} cannot be quantized: its checkpoint has {what}; "
            f"choose a text model, of {_SUPPORTED} for all methods"
        )
    prefixes = tuple(sorted(layers, key=_number))
    routers = [
        prefix + linear
        for prefix in prefixes
        for linear in layers[prefix]
        if linear.rpartition(".")[2] in _ROUTERS
    ]
    return Architecture(
        model_type=model_type,
        prefixes=prefixes,
        units=tuple(_units_by_names(layers[prefix]) for prefix in prefixes),
        norm_offset=0.0,
        unmapped=reason,
        ignore=("lm_head", *routers),
    )


def _units_by_names(linears: Mapping[str, object]) -> tuple[UnitMap, ...]:
    """Linears of one parent that engines fuse are one unit, every other is its own."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for linear in linears:
        parent, _, leaf = linear.rpartition(".")
        if leaf not in _ROUTERS:
            grouped[f"{parent}.{_FUSED.get(leaf, leaf)}".lstrip(".")].append(linear)
    return tuple(UnitMap(name=name, linears=tuple(members)) for name, members in grouped.items())


def _number(prefix: str) -> int:
    number = prefix.rstrip(".").rpartition(".")[2]
    return int(number) if number.isdigit() else 0
