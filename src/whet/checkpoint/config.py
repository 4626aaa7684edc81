"""The shape of a decoder-only model from ``config.json``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_json, read_json_if_any
from whet.core.errors import CheckpointError

KV_BYTES: Final = 2  # engines store the KV cache in 16 bits by default
_NO_KV: Final = frozenset({"linear_attention", "mamba", "conv", "recurrent"})
_ALREADY_SCALED: Final = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
)
_INT_KEYS: Final = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_DEFAULTED: Final = ("num_key_value_heads", "max_position_embeddings")


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationClaim:
    """What ``quantization_config`` states: the method, and every bit width and group size in it."""

    method: str
    bits: frozenset[int]
    group_sizes: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The decoder's shape. ``tied_embeddings`` is None where config.json does not set it."""

    architecture: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    kv_bytes_per_token: int
    mla: bool
    experts: int | None
    tied_embeddings: bool | None
    claim: QuantizationClaim | None


def read_shape(path: Path) -> ModelShape:
    """The shape in ``path/config.json``; ``CheckpointError`` where a required key is missing."""
    outer = read_json(path / "config.json")
    refuse_remote_code(path, outer)
    text = outer.get("text_config")
    config = {**outer, **text} if isinstance(text, dict) else outer
    if any(config.get(key) is None for key in (*_INT_KEYS, *_DEFAULTED)):
        config = {**_class_defaults(path), **{k: v for k, v in config.items() if v is not None}}
    for key in _INT_KEYS:
        _whole(path, config, key, None)
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    tied = config.get("tie_word_embeddings")
    kv_heads = _whole(path, config, "num_key_value_heads", heads)
    # The quotient is only a fallback: for Qwen3-32B it gives 80, and the heads are 128 wide.
    head_dim = _whole(path, config, "head_dim", max(hidden // heads, 1))
    return ModelShape(
        architecture=_architecture(outer, config),
        hidden_size=hidden,
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=_intermediate(path, config),
        vocab_size=int(config["vocab_size"]),
        max_position=_max_position(path, config),
        kv_bytes_per_token=_kv_bytes(config, kv_heads=kv_heads, head_dim=head_dim),
        mla=_mla_width(config) is not None,
        experts=_experts(config),
        tied_embeddings=tied if isinstance(tied, bool) else None,
        claim=_claim(outer, config),
    )


def refuse_remote_code(path: Path, config: dict[str, Any]) -> None:
    """Refuse a checkpoint that asks the loader to run Python of its own (``auto_map``)."""
    tokenizer = read_json_if_any(path / "tokenizer_config.json")
    for name, data in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        if data.get("auto_map"):
            raise CheckpointError(
                f"{path / name} asks to run code from the checkpoint (auto_map), and whet runs "
                "none; if the engine knows this architecture itself, remove the key auto_map from "
                "the file"
            )


def _class_defaults(path: Path) -> dict[str, Any]:
    """The decoder's configuration as transformers completes it, as engines read it.

    Gemma 3, for one, leaves out what its class has as a default. Empty where transformers cannot
    read the file.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        defaults: dict[str, Any] = config.get_text_config().to_dict()
    except (OSError, ValueError, TypeError, LookupError, AttributeError, StrictDataclassError):
        return {}
    return defaults


def _whole(path: Path, config: dict[str, Any], key: str, default: int | None) -> int:
    """A positive whole number; ``default`` where the key is missing or null."""
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(
            f"{path / 'config.json'}: {key} must be a positive whole number, not {value!r}; give a "
            "decoder-only model in the Hugging Face layout (Llama, Mistral, Qwen, Gemma …)"
        )
    return value


def _architecture(outer: dict[str, Any], config: dict[str, Any]) -> str:
    names = outer.get("architectures")
    return str(names[0] if isinstance(names, list) and names else config.get("model_type", "?"))


def _intermediate(path: Path, config: dict[str, Any]) -> int:
    """The width of the MLP, or of one expert in mixture-of-experts layers."""
    keys = ("moe_intermediate_size", "intermediate_size") if _experts(config) else ()
    for key in (*keys, "intermediate_size"):
        if isinstance(value := config.get(key), int) and value > 0:
            return value
    raise CheckpointError(
        f"{path / 'config.json'} has no intermediate_size; give a decoder-only model in the "
        "Hugging Face layout (Llama, Mistral, Qwen, Gemma …)"
    )


def _experts(config: dict[str, Any]) -> int | None:
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if isinstance(value := config.get(key), int) and value > 1:
            return value
    return None


def _mla_width(config: dict[str, Any]) -> int | None:
    """Cached elements per token and layer of multi-head latent attention: latent + rotary part."""
    rank, rope = config.get("kv_lora_rank"), config.get("qk_rope_head_dim")
    if not isinstance(rank, int) or not isinstance(rope, int) or min(rank, rope) < 1:
        return None
    return rank + rope


def _kv_bytes(config: dict[str, Any], *, kv_heads: int, head_dim: int) -> int:
    """Bytes of KV cache per token at 16 bits: ``2 · layers · kv_heads · head_dim · 2``.

    MLA stores ``layers · (kv_lora_rank + qk_rope_head_dim) · 2`` (DeepSeek-V2, section 2.1). Layers
    of linear attention store a state of fixed size and count as 0.
    """
    kinds = config.get("layer_types")
    layers = int(config["num_hidden_layers"])
    if isinstance(kinds, list) and len(kinds) == layers:
        layers = sum(str(kind) not in _NO_KV for kind in kinds)
    width = _mla_width(config)
    return layers * KV_BYTES * (2 * kv_heads * head_dim if width is None else width)


def _max_position(path: Path, config: dict[str, Any]) -> int:
    """The longest sequence, rotary scaling included, as vLLM derives it.

    Only linear and dynamic scaling multiply; with other kinds the config has the scaled length.
    """
    length = config.get("max_position_embeddings")
    if not isinstance(length, int) or length < 1:
        raise CheckpointError(
            f"{path / 'config.json'} has no max_position_embeddings; add the model's longest "
            "sequence"
        )
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    scaling = rope if isinstance(rope, dict) else {}
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = scaling.get("factor")
    stated = str(kind) in _ALREADY_SCALED or "gemma3" in str(config.get("model_type"))
    if kind is None or stated or not isinstance(factor, int | float) or not math.isfinite(factor):
        return length
    return max(int(length * factor), length)


def _claim(outer: dict[str, Any], config: dict[str, Any]) -> QuantizationClaim | None:
    claim = outer.get("quantization_config") or config.get("quantization_config")
    if not isinstance(claim, dict):
        return None
    groups = claim.get("config_groups")
    values = groups.values() if isinstance(groups, dict) else ()
    weights = [group.get("weights") for group in values if isinstance(group, dict)]
    schemes = [claim, *(each for each in weights if isinstance(each, dict))]
    bits = _ints(schemes, ("num_bits", "bits", "w_bit"))
    sizes = _ints(schemes, ("group_size", "q_group_size"))
    return QuantizationClaim(
        method=str(claim.get("quant_method", "unnamed")),
        bits=bits,
        group_sizes=frozenset(size for size in sizes if size > 0),
    )


def _ints(schemes: list[dict[str, Any]], keys: tuple[str, ...]) -> frozenset[int]:
    values = [scheme.get(key) for scheme in schemes for key in keys]
    return frozenset(value for value in values if isinstance(value, int))
