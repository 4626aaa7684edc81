"""Which linears read the same input, and what stands before them that can absorb a scale."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from whet.core.errors import QuantizationError

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitMap:
    """One fused unit of a decoder layer; names are relative to the layer.

    ``fold`` is the norm, or with ``fold_is_linear`` the linear, that takes 1/s; None where nothing
    is known to. The first ``unclipped`` linears keep their full range: clipping q or k moves
    attention far off (llm-awq).
    """

    name: str
    linears: tuple[str, ...]
    fold: str | None = None
    fold_is_linear: bool = False
    unclipped: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """The decoder of one checkpoint.

    ``units`` are those of each layer, ``prefixes`` what their names start with. ``norm_offset`` is
    1 where a norm multiplies by 1 + w. ``missing`` says why inputs cannot be measured and scales
    not folded, None where they can. ``left`` names the linears that stay in 16 bit.
    """

    model_type: str
    prefixes: tuple[str, ...]
    units: tuple[tuple[UnitMap, ...], ...]
    norm_offset: float
    missing: str | None
    left: tuple[str, ...]

    @property
    def linears(self) -> list[str]:
        """Every linear that is quantized, by its full name."""
        return [
            prefix + linear
            for prefix, units in zip(self.prefixes, self.units, strict=True)
            for unit in units
            for linear in unit.linears
        ]


def _dense(before_mlp: str) -> tuple[UnitMap, ...]:
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
        UnitMap(name="gate_up", linears=("mlp.gate_proj", "mlp.up_proj"), fold=before_mlp),
        UnitMap(name="down", linears=("mlp.down_proj",), fold="mlp.up_proj", fold_is_linear=True),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    units: tuple[UnitMap, ...]
    norm_offset: float = 0.0


_LLAMA: Final = _Known(units=_dense("post_attention_layernorm"))
_GEMMA: Final = _Known(units=_dense("post_attention_layernorm"), norm_offset=1.0)
_GEMMA2: Final = _Known(units=_dense("pre_feedforward_layernorm"), norm_offset=1.0)
_KNOWN: Final = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2,
}
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
"""The linear of an EAGLE head that takes in its target's hidden states."""
_HEAD_INPUTS: Final = (
    "a speculation head (EAGLE) reads its target's hidden states, which no text of its own brings"
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


def read_architecture(config: Mapping[str, Any], shapes: Shapes) -> Architecture:
    """The map of a checkpoint from its config.json and its tensors' shapes.

    An architecture without a map, and a speculation head, gets its units from the tensors' names,
    which is enough to round to nearest. Raises ``QuantizationError`` where not even that can be.
    """
    model_type = str(config.get("model_type"))
    layers = _layers(shapes)
    if f"{_FROM_TARGET}.weight" in shapes:
        found = _by_names(model_type, layers, _HEAD_INPUTS)
        # Engines put a name of their own before it.
        return replace(found, left=(*found.left, f"re:.*{_FROM_TARGET}$"))
    known = _KNOWN.get(model_type)
    if known is None:
        return _by_names(model_type, layers)
    complete = [
        prefix
        for prefix in layers
        if all(linear in layers[prefix] for unit in known.units for linear in unit.linears)
    ]
    if lacking := sorted(set(layers) - set(complete), key=_number):
        wanted = [linear for unit in known.units for linear in unit.linears]
        missing = next(linear for linear in wanted if linear not in layers[lacking[0]])
        raise QuantizationError(
            f"the checkpoint has no {lacking[0]}{missing}.weight, which its architecture needs; "
            "download the checkpoint again"
        )
    prefixes = tuple(sorted(layers, key=_number))
    return Architecture(
        model_type=model_type,
        prefixes=prefixes,
        units=tuple(known.units for _ in prefixes),
        norm_offset=known.norm_offset,
        missing=None,
        left=("lm_head",),
    )


def require_measurable(architecture: Architecture, why: str) -> None:
    """Raise ``QuantizationError`` where inputs are needed (``why``) and there is no map."""
    if architecture.missing is not None:
        raise QuantizationError(
            f"{why} needs the inputs of {architecture.model_type!r} layers, but "
            f"{architecture.missing}; round to nearest instead (--method rtn with W4A16, or "
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
    found: dict[str, dict[str, Sequence[int]]] = defaultdict(dict)
    for name, shape in shapes.items():
        match = _IN_LAYER.match(name)
        if match and len(shape) == 2:
            found[match["prefix"]][match["rest"]] = shape
    return dict(found)


def _by_names(
    model_type: str, layers: Mapping[str, Mapping[str, object]], reason: str | None = None
) -> Architecture:
    reason = reason or next(
        (why for pattern, why in _REASONS if re.fullmatch(pattern, model_type)),
        "there is no map of which of its linears share an input and what stands before them",
    )
    stems = {re.split(r"layers\.|midlayer", prefix)[0] for prefix in layers}
    if len(stems) != 1:
        what = "no decoder layers" if not stems else f"layers of several parts ({sorted(stems)})"
        raise QuantizationError(
            f"the architecture {model_type!r} cannot be quantized: its checkpoint has {what}; "
            f"choose a text model, of {_SUPPORTED} for all methods"
        )
    prefixes = tuple(sorted(layers, key=_number))
    left = [
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
        missing=reason,
        left=("lm_head", *left),
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
