"""What each layer keeps of a request: keys and values, a window of them, or a state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from whet.core.errors import CheckpointError
from whet.core.records.model import KvLayers, StateLayers

KV_BYTES: Final = 2  # engines store the KV cache in 16 bits by default
_HYBRID: Final = frozenset({"hybrid", "hybrid_sliding"})
"""Layers with attention and a state, as in Zamba-2, Falcon-H1 and ZAYA1."""
_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention", "hybrid_sliding"})
_STATEFUL: Final = _HYBRID | {"linear_attention", "mamba", "conv", "recurrent"}
_WITHOUT_KV: Final = _STATEFUL - _HYBRID | {"moe", "mlp", "none"}
_PATTERN: Final = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
"""Nemotron-H's ``hybrid_override_pattern``."""
_INDEX_GROUP: Final = 128
"""Elements of the sparse indexer's FP8 key that share a float32 scale (DeepSeek-V3.2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KvLayout:
    """Layers by what they keep: keys and values, or a state."""

    layers: tuple[KvLayers, ...]
    states: StateLayers | None

    @property
    def growing(self) -> int:
        """KV bytes a token at 16 bits of the layers that keep every token."""
        return sum(
            each.layers * each.bytes_per_token for each in self.layers if each.window is None
        )


def read_layout(
    config: Mapping[str, Any], *, kv_heads: int, head_dim: int, max_position: int
) -> KvLayout:
    """The layout that a decoder's whole configuration describes.

    Attention keeps ``kv_heads`` keys and values a token and layer. A window as long as the
    longest sequence is left out. ``CheckpointError`` for a compressed cache, as DeepSeek-V4's.
    """
    kinds = layer_kinds(config)
    if config.get("compress_ratios") or any("compressed" in kind for kind in kinds):
        raise CheckpointError(
            f"the attention of {config.get('model_type')!r} compresses its KV cache, and whet does "
            "not know how large that is",
            fix="measure a running server of it (whet bench, whet quality)",
        )
    own = kinds[: len(kinds) - _number(config, "num_kv_shared_layers")]
    window = _number(config, "sliding_window", "sliding_window_size")
    layers: Counter[tuple[int, int, int | None, bool]] = Counter()
    for index, kind in enumerate(own):
        if kind in _WITHOUT_KV:
            continue
        chunked = kind == "chunked_attention"
        tokens = _number(config, "attention_chunk_size") if chunked else window
        bounded = tokens if kind in _WINDOWED and 0 < tokens < max_position else None
        for heads, width in _widths(config, index, kind, kv_heads, head_dim):
            layers[(heads, width, bounded, chunked and bounded is not None)] += 1
    states = sum(kind in _STATEFUL for kind in kinds)
    return KvLayout(
        layers=tuple(
            KvLayers(
                layers=count, kv_heads=heads, bytes_per_token=width, window=size, chunked=chunk
            )
            for (heads, width, size, chunk), count in layers.items()
        ),
        states=_states(config, states) if states else None,
    )


def layer_kinds(config: Mapping[str, Any]) -> list[str]:
    """The kind of each layer, by transformers' names; unknown names mean full attention."""
    count = int(config["num_hidden_layers"])
    pattern, blocks = config.get("hybrid_override_pattern"), config.get("block_configs")
    kinds = config.get("layer_types") or config.get("layers_block_type")
    windows = config.get("hybrid_layer_pattern")  # MiMo-V2
    if isinstance(windows, list):
        kinds = ["sliding_attention" if each else "full_attention" for each in windows]
    if not isinstance(kinds, list) and isinstance(pattern, str):
        kinds = [_PATTERN.get(letter, "full_attention") for letter in pattern]
    if isinstance(kinds, list) and len(kinds) == count:
        return [str(kind) for kind in kinds]
    if isinstance(blocks, list) and len(blocks) == count:
        return ["full_attention" if _group(block) else "none" for block in blocks]
    bounded = _number(config, "sliding_window") and config.get("use_sliding_window") is not False
    return ["sliding_attention" if bounded else "full_attention"] * count


def _widths(
    config: Mapping[str, Any], index: int, kind: str, kv_heads: int, head_dim: int
) -> Iterator[tuple[int, int]]:
    """Heads over which a layer's cache can be split, and its bytes a token at 16 bits.

    Latent attention keeps ``kv_lora_rank + qk_rope_head_dim`` numbers (DeepSeek-V2, section 2.1).
    """
    if (latent := latent_width(config)) is not None:
        yield 1, latent * KV_BYTES
    else:
        heads, keys, values = _heads(config, index, kind, kv_heads, head_dim)
        yield heads, heads * (keys + values) * KV_BYTES
    if key := _index_key(config, index):
        yield 1, key


def _heads(
    config: Mapping[str, Any], index: int, kind: str, kv_heads: int, head_dim: int
) -> tuple[int, int, int]:
    """KV heads of a layer, and the widths of a key and of a value.

    Gemma-4's full layers, MiMo-V2's windows, a kind of Step-3.5's layers and the blocks of
    Nemotron-NAS have their own; MiMo-V2's values are narrower than its keys.
    """
    names, other = ("", "", ""), config.get("attention_other_setting")
    if kind in _WINDOWED:
        names = ("swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim")
    elif kind == "full_attention":
        shared = config.get("attention_k_eq_v") is False
        names = ("" if shared else "num_global_key_value_heads", "global_head_dim", "")
    if isinstance(other, dict) and other.get("attention_type") == kind:
        config, names = other, ("num_attention_groups", "head_dim", "")
    blocks = config.get("block_configs")
    if isinstance(blocks, list) and len(blocks) > index and (group := _group(blocks[index])):
        kv_heads = int(config["num_attention_heads"]) // group
    heads, own, values = (_number(config, name) for name in names)
    keys = own or head_dim
    return heads or kv_heads, keys, values or (own or _number(config, "v_head_dim") or keys)


def _index_key(config: Mapping[str, Any], index: int) -> int:
    """Bytes a token of a sparse indexer's key; 0 for a layer that reuses an earlier one's choice.

    DeepSeek-V3.2 keeps it in FP8 with its scales, and MiniMax-M3 in 16 bits. The layers are those
    that vLLM 0.32 builds an indexer for (``deepseek_v2.py``, ``minimax_m3``).
    """
    sparse = config.get("sparse_attention_config")
    if isinstance(sparse, dict):
        layers = sparse.get("sparse_attention_freq")
        has_key = not isinstance(layers, list) or index >= len(layers) or bool(layers[index])
        return KV_BYTES * _number(sparse, "sparse_index_dim") if has_key else 0
    key = _number(config, "index_head_dim")
    if latent_width(config) is None or not key:
        return 0
    kinds = config.get("indexer_types") or config.get("index_topk_pattern")
    if isinstance(kinds, list | str) and index < len(kinds):
        reuses = str(kinds[index]).lower().startswith("s")
    else:
        offset = config.get("index_skip_topk_offset", 2)
        offset = offset if isinstance(offset, int) else 2
        reuses = max(index - offset + 1, 0) % (_number(config, "index_topk_freq") or 1) != 0
    pooled = _number(config, "index_kpool") or 1  # GLM-5-next keeps one for so many tokens
    return 0 if reuses else math.ceil((key + 4 * (key // _INDEX_GROUP)) / pooled)


def latent_width(config: Mapping[str, Any]) -> int | None:
    """Cached numbers a token and layer of multi-head latent attention; None without it."""
    rank, rope = _number(config, "kv_lora_rank"), config.get("qk_rope_head_dim")
    return rank + rope if rank and type(rope) is int and rope >= 0 else None


def _group(block: Any) -> int:
    """Query heads a KV head of a Nemotron-NAS block; 0 where it has no attention."""
    attention = block.get("attention") if isinstance(block, dict) else None
    size = attention.get("n_heads_in_group") if isinstance(attention, dict) else None
    return size if isinstance(size, int) and size > 0 else 0


def _states(config: Mapping[str, Any], layers: int) -> StateLayers:
    """The last inputs of each layer's convolution in 16 bits, and its recurrence.

    Shapes are those of vLLM's ``MambaStateShapeCalculator``. The recurrence has the bits that
    config.json names (Qwen3.5, Nemotron-H), else 16, and 32 in Kimi's delta attention.
    """
    named = config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")
    size, cached = 4 if named == "float32" else 2, 2
    kernel = _number(
        config, "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_L_cache"
    )
    hidden = int(config["hidden_size"])
    if values := _number(config, "linear_num_value_heads"):  # gated delta net
        key = _number(config, "linear_key_head_dim")
        width = values * _number(config, "linear_value_head_dim")
        inputs, state = 2 * _number(config, "linear_num_key_heads") * key + width, width * key
    elif heads := _number(config, "linear_num_heads"):  # Kimi delta attention
        width = heads * _number(config, "linear_head_dim")
        inputs, state, size = 3 * width, width * _number(config, "linear_head_dim"), 4
    elif heads := _number(config, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads"):
        width = heads * _number(config, "mamba_d_head", "mamba_head_dim", "mamba_headdim")
        groups = _number(config, "mamba_n_groups", "n_groups", "mamba_ngroups")
        state_size = _number(config, "mamba_d_state", "ssm_state_size")
        inputs, state = width + 2 * groups * state_size, width * state_size
        cached = 3  # Mamba-2 also has one at the end of the prompt
    elif state_size := _number(config, "mamba_d_state"):  # Mamba-1
        inputs = _number(config, "mamba_expand") * hidden
        state = inputs * state_size
    elif kernel:  # a short convolution alone
        inputs, state = hidden, 0
    else:  # lightning attention: a square matrix a head
        inputs, state = 0, hidden * _number(config, "head_dim")
    return StateLayers(
        layers=layers,
        bytes_per_request=inputs * max(kernel - 1, 0) * 2 + state * size,
        half_bytes=state * size if size == KV_BYTES else 0,
        cached=cached,
    )


def _number(config: Mapping[str, Any], *keys: str) -> int:
    """Return the first positive whole number under one of ``keys``, or 0."""
    return next((each for each in map(config.get, keys) if type(each) is int and each > 0), 0)
