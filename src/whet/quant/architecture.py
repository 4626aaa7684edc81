"""Which linears read the same input, and which norm or linear before them can absorb a scale."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from whet.checkpoint.formats import FLOATS
from whet.checkpoint.headers import TensorHeader
from whet.core.errors import QuantizationError
from whet.quant.families import FAMILIES, UNFOLDABLE, Family

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitMap:
    """Linears of a decoder layer that engines fuse; names are relative to the layer.

    ``fold`` is the norm, or with ``fold_is_linear`` the linear, that takes 1/s; None where none is
    known. Of a linear only the last ``fold_rows`` outputs are read, all of them where it is 0.
    ``beside`` names the linears in 16 bit that read the same norm, such as a router: they take s.
    The first ``unclipped`` linears keep their full range: clipping q or k changes attention too
    much (llm-awq). Units of one ``block`` have one scheme in an engine; by default it is the unit.
    ``expert`` is the number of the expert that a unit belongs to.
    """

    name: str
    linears: tuple[str, ...]
    fold: str | None = None
    fold_is_linear: bool = False
    fold_rows: int = 0
    beside: tuple[str, ...] = ()
    unclipped: int = 0
    block: str = ""
    expert: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """The decoder of one checkpoint.

    ``units`` are those of each layer, ``prefixes`` the start of their names. ``norm_offset`` is 1
    where a norm multiplies by 1 + w. ``unfolded`` is the reason why no scale can be folded, None
    where one can. ``head`` is a speculation head, which text alone does not run. ``ignore`` are the
    patterns of everything that stays in 16 bit.
    """

    model_type: str
    prefixes: tuple[str, ...]
    units: tuple[tuple[UnitMap, ...], ...]
    norm_offset: float
    unfolded: str | None
    head: bool
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


_IN_LAYER: Final = re.compile(
    r"^(?P<prefix>(?:.*\.)?(?:layers\.(?P<number>\d+)|midlayer)\.)(?P<rest>.+)\.weight$"
)
_LAYER: Final = re.compile(r"(^|\.)layers\.\d+\.")
_OTHER_PART: Final = re.compile(r"vision|visual|vit\b|audio|image|multi_modal|(^|\.)mtp\.")
"""Parts of a checkpoint beside its text decoder; they stay in 16 bit."""
_FROM_TARGET: Final = "fc"
"""The linear of an EAGLE head that reads the hidden states of its target."""
HEAD_INPUTS: Final = (
    "a speculation head (EAGLE) reads the hidden states of its target, which calibration text "
    "alone does not give"
)
_ROUTERS: Final = frozenset({"gate", "router", "shared_expert_gate", "wg", "indexer"})
_NOT_LINEAR: Final = frozenset(
    {"embed_tokens", "head", "eh_proj", "conv1d", "in_proj_ba", "in_proj_a", "in_proj_b"}
)
_NO_LINEAR: Final = ("embed_tokens", "embeddings", "word_embeddings", "wte", "lm_head", "fc")
"""Matrices outside the layers that engines do not look up, or by another pattern."""
_FUSED: Final = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "qkv_proj": "qkv", "q_a_proj": "qkv_a",
    "gate_proj": "gate_up", "up_proj": "gate_up", "gate_up_proj": "gate_up",
    "w1": "gate_up", "w3": "gate_up", "w2": "down",
}  # fmt: skip
"""The unit of a linear, by the last part of its name, in the order of an engine's stack."""
_ORDER: Final = {"qkv": 0, "o": 1, "gate_up": 2, "down": 3}
_LATENT: Final = "kv_a_proj_with_mqa"
CACHED: Final = ("v_proj", "qkv_proj")
"""The linears that make the values of a KV cache."""
_READ_ATTENTION_NORM: Final = frozenset({"q_proj", "qkv_proj", "q_a_proj", _LATENT})
_BEFORE: Final = {
    "o_proj": (("v_proj", ""), ("qkv_proj", "values")),
    "down_proj": (("up_proj", ""), ("gate_up_proj", "half")),
    "w2": (("w3", ""),),
}
"""The linear before a linear, and the part of its outputs that is read where it is fused."""
_EXPERT: Final = re.compile(r"^(?P<experts>.*\bexperts)\.(?P<number>\d+)\.")
_NUMBERED: Final = re.compile(r"^(?P<of>.*?)\.(?P<number>\d+)\.")
_UNKNOWN: Final = "whet does not know which layer precedes its linears"
_SUPPORTED: Final = "Llama, Mistral, Qwen, Gemma, Granite, Phi-3 or a mixture of experts like these"


def read_architecture(config: Mapping[str, Any], shapes: Shapes) -> Architecture:
    """The map of a checkpoint from its config.json and the shapes of its tensors.

    An architecture without a family, and a speculation head, gets its units from the tensors'
    names, without folds. ``QuantizationError`` where even that is impossible: no decoder layers, or
    experts that are stored in one tensor.
    """
    text = config.get("text_config")
    text = {**config, **text} if isinstance(text, dict) else config
    model_type = str(text.get("model_type"))
    layers = _layers(shapes, text.get("num_hidden_layers"))
    prefixes = tuple(sorted(layers, key=_number))
    head = f"{_FROM_TARGET}.weight" in shapes
    family = None if head else FAMILIES.get(model_type)
    _require_decoder(model_type, prefixes)
    _require_plain_experts(model_type, shapes)
    units = {prefix: _units(layers[prefix], family, text) for prefix in prefixes}
    why = (why for start, why in UNFOLDABLE.items() if model_type.startswith(start))
    architecture = Architecture(
        model_type=model_type,
        prefixes=prefixes,
        units=tuple(units.values()),
        norm_offset=0.0 if family is None else family.norm_offset,
        unfolded=next(why, _UNKNOWN) if family is None else None,
        head=head,
        ignore=(),
    )
    return replace(architecture, ignore=_ignored(shapes, architecture))


def require_cached(architecture: Architecture) -> None:
    """Raise ``QuantizationError`` where no linear makes the values of a cache alone."""
    if not any(linear.endswith(CACHED) for linear in architecture.linears):
        raise QuantizationError(
            f"{architecture.model_type!r} layers store no keys and values of their own, which an "
            "FP8 KV cache with scales needs",
            fix="leave kv_cache out",
        )


def require_groups(shapes: Shapes, linears: Sequence[str], group_size: int) -> None:
    """Every linear's inputs are whole groups, or ``QuantizationError``."""
    for name in linears:
        inputs = shapes[f"{name}.weight"][1]
        if inputs % group_size:
            raise QuantizationError(
                f"{name} has {inputs} inputs, not a multiple of the group size {group_size}",
                fix="choose a group size of 32 or 64 that divides it",
            )


def linear_dtype(headers: Mapping[str, TensorHeader], linears: Sequence[str]) -> str:
    """The dtype of the linears, as safetensors calls it; ``QuantizationError`` for several."""
    dtypes = {headers[f"{linear}.weight"].dtype for linear in linears}
    if len(dtypes) != 1 or not dtypes <= FLOATS.keys():
        raise QuantizationError(
            f"the linear layers are stored as {', '.join(sorted(dtypes))}",
            fix=f"one of {', '.join(FLOATS)} for all of them is needed: convert the checkpoint",
        )
    return dtypes.pop()


def _layers(shapes: Shapes, count: object) -> dict[str, dict[str, Sequence[int]]]:
    """The tensors of each decoder layer, by their names within it, in the order of the file.

    Layers from ``count`` on are for multi-token prediction.
    """
    layers: dict[str, dict[str, Sequence[int]]] = defaultdict(dict)
    for name, shape in shapes.items():
        match = _IN_LAYER.match(name)
        if match is None or _OTHER_PART.search(name):
            continue
        if isinstance(count, int) and int(match["number"] or 0) >= count:
            continue
        layers[match["prefix"]][match["rest"]] = shape
    return dict(layers)


def _require_decoder(model_type: str, prefixes: Sequence[str]) -> None:
    stems = {re.split(r"layers\.|midlayer", prefix)[0] for prefix in prefixes}
    if len(stems) != 1:
        what = "no decoder layers" if not stems else f"layers of several parts ({sorted(stems)})"
        raise QuantizationError(
            f"the architecture {model_type!r} cannot be quantized: its checkpoint has {what}",
            fix=f"choose a text model, of {_SUPPORTED} for all methods",
        )


def _require_plain_experts(model_type: str, shapes: Shapes) -> None:
    """Experts in one tensor would stay in 16 bit, and an engine would look for packed ones."""
    for name, shape in shapes.items():
        in_decoder = _LAYER.search(name) and not _OTHER_PART.search(name)
        if len(shape) == 3 and in_decoder and "conv" not in name:
            raise QuantizationError(
                f"the architecture {model_type!r} cannot be quantized: {name} holds all experts of "
                "a layer, a form that engines read in 16 bit only",
                fix="serve it with quantization: fp8, choose a checkpoint whose experts are stored "
                "one by one, or name one that llm-compressor made as weights",
            )


def _units(
    layer: Mapping[str, Sequence[int]], family: Family | None, config: Mapping[str, Any]
) -> tuple[UnitMap, ...]:
    """Linears of one parent that engines fuse are one unit, every other is its own."""
    grouped: dict[str, list[str]] = defaultdict(list)
    matrices = {linear: shape for linear, shape in layer.items() if len(shape) == 2}
    left = _left(matrices)
    for linear in matrices:
        if linear not in left:
            grouped[_unit_name(linear, layer)].append(linear)
    units = [_unit(name, tuple(sorted(each, key=_in_order))) for name, each in grouped.items()]
    units.sort(key=lambda unit: _ORDER.get(unit.name, len(_ORDER)))
    if family is None:
        return tuple(units)
    return tuple(_folded(unit, layer, family, (config, left)) for unit in units)


def _unit_name(linear: str, layer: Mapping[str, object]) -> str:
    parent, _, leaf = linear.rpartition(".")
    short = _FUSED.get(leaf, leaf.removesuffix("_proj"))
    if f"{parent}.{_LATENT}" in layer and leaf in ("q_proj", _LATENT):
        # vLLM fuses the two ways into the latents where queries have one too.
        short = "q" if leaf == "q_proj" else "kv_a"
        short = "qkv_a" if f"{parent}.q_a_proj" in layer else short
    return short if parent in ("self_attn", "mlp") else f"{parent}.{short}".lstrip(".")


def _in_order(linear: str) -> int:
    """Queries, keys, values; gate, up: as engines stack them."""
    leaf = linear.rpartition(".")[2]
    return [*_FUSED, leaf].index(leaf)


def _unit(name: str, linears: tuple[str, ...]) -> UnitMap:
    if (expert := _EXPERT.match(linears[0])) is None:
        return UnitMap(name=name, linears=linears, block=name)
    block, number = expert["experts"], int(expert["number"])
    return UnitMap(name=name, linears=linears, block=block, expert=number)


def _folded(
    unit: UnitMap,
    layer: Mapping[str, Sequence[int]],
    family: Family,
    of_layer: tuple[Mapping[str, Any], Sequence[str]],
) -> UnitMap:
    """The unit with the norm or linear before it.

    ``of_layer`` is the config and the matrices that stay in 16 bit.
    """
    config, left = of_layer
    parent, _, leaf = unit.linears[0].rpartition(".")
    if leaf in _READ_ATTENTION_NORM:
        unclipped = max(1, len(unit.linears) - ("v_proj" in unit.linears[-1]))
        return replace(unit, fold=family.attention_norm, unclipped=unclipped)
    if leaf in ("q_b_proj", "kv_b_proj"):
        return replace(unit, fold=f"{parent}.{leaf.replace('b_proj', 'a_layernorm')}")
    if leaf in ("gate_proj", "gate_up_proj", "w1"):
        block = parent.partition(".experts")[0].partition(".shared_expert")[0]
        beside = tuple(name for name in left if name.startswith(f"{block}."))
        return replace(unit, fold=family.mlp_norm, beside=beside if family.mlp_norm else ())
    for before, part in _BEFORE.get(leaf, ()):
        if (name := f"{parent}.{before}") in layer:
            rows = layer[name][0] // 2
            if part == "values":
                heads = int(config["num_attention_heads"])
                head_dim = config.get("head_dim") or int(config["hidden_size"]) // heads
                rows = int(config.get("num_key_value_heads") or heads) * int(head_dim)
            return replace(unit, fold=name, fold_is_linear=True, fold_rows=rows if part else 0)
    return unit


def _left(matrices: Mapping[str, Sequence[int]]) -> list[str]:
    """Routers, gates of one number, and what only looks like a linear: never quantized.

    A router has a row for each of the numbered experts next to it, whatever its name.
    """
    numbers: dict[str, set[str]] = defaultdict(set)
    for numbered in filter(None, map(_NUMBERED.match, matrices)):
        numbers[numbered["of"]].add(numbered["number"])
    rows = {(of.rpartition(".")[0], len(each)) for of, each in numbers.items()}
    return [
        name
        for name, shape in matrices.items()
        if not _ROUTERS.isdisjoint(parts := name.split("."))
        or parts[-1] in _NOT_LINEAR
        or shape[0] == 1
        or (".".join(parts[:-1]), shape[0]) in rows
    ]


def _ignored(shapes: Shapes, architecture: Architecture) -> tuple[str, ...]:
    """Patterns of every matrix that is not quantized, as engines match them.

    Within a layer by name, whatever the layer; a whole part of the model (a vision tower, layers
    for multi-token prediction) by its first name, because engines rename what is inside.
    """
    quantized = set(architecture.linears)
    nested = any(name.endswith(".lm_head.weight") for name in shapes)
    patterns = dict.fromkeys(("lm_head", "re:.*lm_head$") if nested else ("lm_head",))
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        left = len(shape) == 2 and module != name and module not in quantized
        if left and module.rpartition(".")[2] not in _NO_LINEAR:
            patterns[_pattern(module, architecture.prefixes)] = None
    if architecture.head:  # engines prepend a name of their own
        patterns[f"re:.*{_FROM_TARGET}$"] = None
    return tuple(patterns)


def _pattern(module: str, prefixes: Sequence[str]) -> str:
    match = _IN_LAYER.match(f"{module}.weight")
    if match is not None and match["prefix"] in prefixes:
        rest = re.sub(r"\\d\+", "[0-9]+", re.escape(re.sub(r"\d+", r"\\d+", match["rest"])))
        return rf"re:.*\.{rest}$"
    if match is not None and not _OTHER_PART.search(module):
        return rf"re:.*layers\.{match['number']}\..*"
    part = module.removeprefix("model.").partition(".")[0]
    return rf"re:.*{re.escape(part)}\..*"


def _number(prefix: str) -> int:
    number = prefix.rstrip(".").rpartition(".")[2]
    return int(number) if number.isdigit() else 0
