"""The shape of a decoder-only model from ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_json
from whet.checkpoint.kv_layout import KvLayout, latent_width, read_layout
from whet.checkpoint.stored import QuantizationClaim, read_claim
from whet.core.errors import CheckpointError
from whet.core.records.model import ModelFacts

_ALREADY_SCALED: Final = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
)
_INT_KEYS: Final = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_NEEDED: Final = (*_INT_KEYS, "num_key_value_heads", "max_position_embeddings")
_LENGTHS: Final = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)
"""Keys of the longest sequence that vLLM 0.32 reads."""
_ALIKE: Final = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Types whose layers are alike and whose config.json says all that counts: reading it by hand saves
the import of torch, seconds."""
_TEXT_PARTS: Final = ("text_config", "llm_config", "language_config")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE: Final = (
    *("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts"),
    *("moe_k", "moe_topk", "moe_top_k"),
)
_BLOCK: Final = 256
_TOO_LARGE: Final = 2**31
_MOST: Final = {
    "vocab": _TOO_LARGE, "layer": 10_000, "heads": 65_536, "expert": 65_536, "hidden_size": 2**22,
}  # fmt: skip
"""By words of a key; other whole numbers are below 2**31, but for the base of rotary embeddings."""
_SHOWN: Final = 40
_FAULTS: Final = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The decoder's shape. ``tied_embeddings`` is None if config.json has no such key.

    ``blocks`` are the layers that tensors are numbered by: LongCat's have two attentions each, and
    count as two ``layers``.
    """

    architecture: str
    hidden_size: int
    layers: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    kv: KvLayout
    mla: bool
    experts: int | None
    experts_per_token: int | None
    tied_embeddings: bool | None
    claim: QuantizationClaim | None

    def facts(self, path: Path, **more: Any) -> ModelFacts:
        """Return the facts of the checkpoint at ``path``; ``more`` are those of its tensors."""
        named = {each.name for each in fields(ModelFacts)} & {each.name for each in fields(self)}
        return ModelFacts(
            path=str(path.resolve()),
            kv_bytes_per_token=self.kv.growing,
            kv_layers=self.kv.layers,
            states=self.kv.states,
            **{name: getattr(self, name) for name in named} | more,
        )


def read_shape(path: Path) -> ModelShape:
    """The shape in ``path/config.json``; ``CheckpointError`` where a required key is missing.

    What the file leaves out comes from transformers' class of the model, if it has one. Code of the
    checkpoint is never run.
    """
    outer = read_json(path / "config.json")
    _require_bounded(path / "config.json", outer)
    text = next((part for key in _TEXT_PARTS if isinstance(part := outer.get(key), dict)), {})
    file = {**outer, **text}
    config = file | _completed(path, file)
    for key in _INT_KEYS:
        _whole(path, config, key, None)
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    config["head_dim"] = config.get("head_dim") or None  # 0 where no part of a head is rotated
    tied = file.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    # Falcon's "multi-query" is one KV head, whatever its class has as num_kv_heads.
    one = config.get("multi_query") is True and config.get("new_decoder_architecture") is not True
    kv_heads = 1 if one else _whole(path, config, "num_key_value_heads", heads)
    # The quotient is only a fallback: for Qwen3-32B it gives 80, and the heads are 128 wide.
    head_dim = _whole(path, config, "head_dim", max(hidden // heads, 1))
    longest = _max_position(path, config)
    layers = int(config["num_hidden_layers"])
    blocks = _above(config, ("num_layers",), 0) or layers
    names = outer.get("architectures")
    names = names if isinstance(names, list) else []
    return ModelShape(
        architecture=str(names[0] if names else config.get("model_type", "?")),
        hidden_size=hidden,
        layers=layers,
        blocks=blocks if layers % blocks == 0 else layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=_intermediate(path, config),
        vocab_size=int(config["vocab_size"]),
        max_position=longest,
        kv=read_layout(config, kv_heads=kv_heads, head_dim=head_dim, max_position=longest),
        mla=latent_width(config) is not None,
        experts=_above(file, _EXPERTS, 1),
        experts_per_token=_above(config, _ACTIVE, 0),
        tied_embeddings=tied if isinstance(tied, bool) else None,
        claim=read_claim(path, file),
    )


def _require_bounded(file: Path, config: Mapping[str, Any]) -> None:
    """``CheckpointError`` for a number that no model has; work on it would not end."""
    for key, value in config.items():
        if isinstance(value, dict):
            _require_bounded(file, value)
        most = next((most for word, most in _MOST.items() if word in key), _TOO_LARGE)
        sized = isinstance(value, int) and "theta" not in key and "base" not in key
        if (sized or (most < _TOO_LARGE and isinstance(value, float))) and not value <= most:
            raise CheckpointError(
                f"{file} says {key}: {str(value)[:_SHOWN]}, and no model has more than {most:,}",
                fix="restore the config.json of these weights",
            )


def _completed(path: Path, file: dict[str, Any]) -> dict[str, Any]:
    """The decoder's configuration as transformers completes it, as engines read it.

    Empty where transformers does not know the model or cannot read the file, and where the file
    needs no completion.
    """
    whole = all(file.get(key) is not None for key in _NEEDED)
    if whole and str(file.get("model_type")) in _ALIKE and not file.get("use_sliding_window"):
        return {}
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig
    from transformers.utils import logging as untyped

    logging: Any = untyped
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        try:
            config = AutoConfig.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        except ValueError:  # the decoder of an unknown multimodal model may be known
            config = AutoConfig.for_model(
                **{key: value for key, value in file.items() if key not in _TEXT_PARTS}
            )
        text = config.get_text_config()
        if text is not config and not any(key in file for key in _TEXT_PARTS):
            # A decoder alone, where the class has it as a part (Step-3.7).
            text = type(text)(**file)
        return {**text.to_dict(), **_properties(text)}
    except (*_FAULTS, StrictDataclassError):
        return {}
    finally:
        logging.set_verbosity(level)


def _properties(config: Any) -> dict[str, Any]:
    """Return the properties of a transformers class that config.json lacks or names otherwise."""
    from transformers import PretrainedConfig

    own = set(dir(type(config))) - set(dir(PretrainedConfig))
    computed = {name for name in own if isinstance(getattr(type(config), name), property)}
    values = {name: getattr(config, name, None) for name in (*config.attribute_map, *computed)}
    return {name: value for name, value in values.items() if value is not None}


def _whole(path: Path, config: dict[str, Any], key: str, default: int | None) -> int:
    """A positive whole number; ``default`` where the key is missing or null."""
    value = config.get(key)
    value = default if value is None else value
    if type(value) is not int or not 0 < value < _TOO_LARGE:
        raise CheckpointError(
            f"{path / 'config.json'}: {key} must be a positive whole number, not {value!r}, and "
            f"the installed transformers has no default for the type {config.get('model_type')!r}",
            fix="add the key, or give a decoder-only model in the Hugging Face layout",
        )
    return value


def _intermediate(path: Path, config: dict[str, Any]) -> int:
    """The width of the MLP, or of one expert in mixture-of-experts layers."""
    expert = ("moe_intermediate_size",) if _above(config, _EXPERTS, 1) else ()
    keys = (*expert, "intermediate_size", "ffn_hidden_size")
    if (width := _above(config, keys, 0) or _widest_block(config)) is not None:
        return width
    raise CheckpointError(
        f"{path / 'config.json'} has no intermediate_size",
        fix="give a decoder-only model in the Hugging Face layout (Llama, Mistral, Qwen, Gemma …)",
    )


def _widest_block(config: dict[str, Any]) -> int | None:
    """The widest MLP of Nemotron-NAS: ``2/3 · ffn_mult · hidden``, in multiples of 256."""
    blocks = config.get("block_configs")
    blocks = blocks if isinstance(blocks, list) else []
    parts = [each.get("ffn") for each in blocks if isinstance(each, dict)]
    factors = [part.get("ffn_mult") for part in parts if isinstance(part, dict)]
    widest = max((each for each in factors if isinstance(each, int | float)), default=0)
    width = int(2 * widest * int(config["hidden_size"]) / 3)
    return math.ceil(width / _BLOCK) * _BLOCK or None


def _above(config: dict[str, Any], keys: tuple[str, ...], least: int) -> int | None:
    """The first whole number above ``least`` under one of ``keys``; the largest of a list."""
    for value in map(config.get, keys):
        values = value if isinstance(value, list) else [value]
        if whole := [each for each in values if type(each) is int and each > least]:
            return max(whole)
    return None


def _max_position(path: Path, config: dict[str, Any]) -> int:
    """The longest sequence, rotary scaling included, as vLLM derives it.

    Only linear and dynamic scaling multiply; with other kinds the config has the scaled length.
    """
    length = next((config[key] for key in _LENGTHS if config.get(key) is not None), None)
    if not isinstance(length, int) or length < 1:
        raise CheckpointError(
            f"{path / 'config.json'} has no max_position_embeddings",
            fix="add the model's longest sequence",
        )
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    scaling = rope if isinstance(rope, dict) else {}
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = scaling.get("factor")
    stated = str(kind) in _ALREADY_SCALED or "gemma3" in str(config.get("model_type"))
    if kind is None or stated or not isinstance(factor, int | float) or not math.isfinite(factor):
        return length
    if not length * factor < _TOO_LARGE:
        raise CheckpointError(
            f"{path / 'config.json'} scales {length:,} positions by {factor:g}, and no model has "
            f"more than {_TOO_LARGE:,}",
            fix="correct rope_scaling",
        )
    return max(int(length * factor), length)
