"""What layers keep of a request, for families whose shapes differ from one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_json
from whet.checkpoint.config import read_shape
from whet.checkpoint.kv_layout import KvLayout
from whet.core.errors import CheckpointError

BASE: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 4096,
    "vocab_size": 1000,
    "max_position_embeddings": 65_536,
}
KV = 2 * 4 * 128 * 2


def layout(path: Path, **config: Any) -> KvLayout:
    write_json(path / "config.json", BASE | config)
    return read_shape(path).kv


def states(kv: KvLayout) -> tuple[int, int] | None:
    return kv.states and (kv.states.layers, kv.states.bytes_per_request)


def windows(kv: KvLayout) -> list[tuple[int, int | None]]:
    return sorted((each.layers, each.window) for each in kv.layers if each.window is not None)


def test_a_window_of_every_layer(tmp_path: Path) -> None:
    """Mistral-7B v0.1; Qwen2 has the key and does not use it."""
    kv = layout(tmp_path, model_type="mistral", sliding_window=4096)
    assert (kv.growing, windows(kv)) == (0, [(8, 4096)])
    kv = layout(tmp_path, model_type="qwen2", sliding_window=4096, use_sliding_window=False)
    assert (kv.growing, windows(kv)) == (8 * KV, [])
    kv = layout(tmp_path, model_type="mistral", sliding_window=65_536)
    assert (kv.growing, windows(kv)) == (8 * KV, [])


def test_qwen_2_has_windows_above_the_first_layers(tmp_path: Path) -> None:
    on = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 6}
    kv = layout(tmp_path, model_type="qwen2", **on)
    assert (kv.growing, windows(kv)) == (6 * KV, [(2, 4096)])


def test_layers_that_share_the_cache_of_earlier_ones(tmp_path: Path) -> None:
    """Gemma-3n: every fifth layer is full, and the last layers write no cache of their own."""
    kv = layout(
        tmp_path, model_type="gemma3n_text", num_hidden_layers=30, num_kv_shared_layers=10,
        sliding_window=512, intermediate_size=[4096] * 30,
    )  # fmt: skip
    assert (kv.growing, windows(kv)) == (4 * KV, [(16, 512)])


def test_the_pattern_of_nemotron_h(tmp_path: Path) -> None:
    """Mamba-2: 3 inputs of the convolution at 16 bits, heads · width · state at 32."""
    mamba = {"mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 2}
    state = (8 * 64 + 2 * 2 * 128) * 3 * 2 + 8 * 64 * 128 * 4
    known = layout(
        tmp_path,
        model_type="nemotron_h",
        hybrid_override_pattern="M-M*M-M*",
        conv_kernel=4,
        **mamba,
    )
    assert (known.growing, states(known)) == (2 * KV, (4, state))
    by_hand = layout(
        tmp_path, model_type="unknown_h", hybrid_override_pattern="M-M*MEM*", conv_kernel=4,
        mamba_ssm_cache_dtype="float32", **mamba,
    )  # fmt: skip
    assert by_hand == known


def test_mamba_1_of_jamba(tmp_path: Path) -> None:
    kv = layout(
        tmp_path, model_type="jamba", attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16,
        mamba_d_conv=4, mamba_expand=2,
    )  # fmt: skip
    assert (kv.growing, states(kv)) == (KV, (7, 4096 * 3 * 2 + 4096 * 16 * 2))


def test_convolutions_of_lfm_2(tmp_path: Path) -> None:
    kinds = ["conv", "conv", "full_attention", "conv"] * 2
    kv = layout(tmp_path, model_type="lfm2", layer_types=kinds, conv_L_cache=3)
    assert (kv.growing, states(kv)) == (2 * KV, (6, 2048 * 2 * 2))


def test_layers_with_attention_and_a_state(tmp_path: Path) -> None:
    kv = layout(
        tmp_path, model_type="falcon_h1", mamba_d_ssm=2048, mamba_n_heads=32, mamba_d_head=64,
        mamba_d_state=64, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=1,
    )  # fmt: skip
    assert (kv.growing, states(kv)) == (8 * KV, (8, (2048 + 128) * 3 * 2 + 2048 * 64 * 2))


def test_blocks_of_nemotron_nas(tmp_path: Path) -> None:
    """Each block has its own group size, or no attention; its MLP is 2/3 · mult · hidden."""
    sizes = [8, 8, None, 4, 8, None, 16, 8]
    blocks = [
        {
            "attention": {"n_heads_in_group": size, "no_op": size is None},
            "ffn": {"ffn_mult": 2.625, "no_op": False},
        }
        for size in sizes
    ]
    write_json(
        tmp_path / "config.json",
        BASE
        | {"model_type": "nemotron-nas", "block_configs": blocks}
        | {"num_key_value_heads": None, "intermediate_size": None},
    )
    shape = read_shape(tmp_path)
    heads = {(each.layers, each.kv_heads) for each in shape.kv.layers}
    assert heads == {(4, 2), (1, 4), (1, 1)}
    assert shape.kv.growing == (4 * 2 + 4 + 1) * 2 * 128 * 2
    assert shape.intermediate_size == 3584


@pytest.mark.parametrize("kinds", [["full_attention"], "full", None, [3] * 8])
def test_kinds_that_do_not_fit_count_as_full_attention(tmp_path: Path, kinds: Any) -> None:
    assert layout(tmp_path, model_type="unknown", layer_types=kinds).growing == 8 * KV


GLM_5: dict[str, Any] = {
    "model_type": "unknown",
    "num_hidden_layers": 78,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
}
LATENT, INDEX = 576 * 2, 128 + 4


@pytest.mark.parametrize(
    ("config", "indexers"),
    [
        ({}, 78),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, 21),
        ({"indexer_types": ["full", "full", *["shared"] * 76]}, 2),
        ({"index_topk_pattern": "FS" * 39}, 39),
        ({"index_topk_freq": 2}, 40),
    ],
    ids=["each", "glm-5.2", "types", "pattern", "offset"],
)
def test_layers_that_reuse_an_earlier_choice_keep_no_index_key(
    tmp_path: Path, config: dict[str, Any], indexers: int
) -> None:
    """As vLLM 0.32 builds them; transformers' class says the same of GLM-5.2's own keys."""
    for kind in ("unknown", "glm_moe_dsa"):
        kv = layout(tmp_path, **{**GLM_5, "num_experts_per_tok": 8, "model_type": kind, **config})
        assert kv.growing == 78 * LATENT + indexers * INDEX


def test_pooled_index_keys_and_a_latent_without_rotary_part(tmp_path: Path) -> None:
    """GLM-5-next keeps one key for 16 tokens: 132 / 16 bytes, and heads of which nothing turns."""
    own = {"num_hidden_layers": 4, "qk_rope_head_dim": 0, "index_kpool": 16, "head_dim": 0}
    assert layout(tmp_path, **{**GLM_5, **own}).growing == 4 * (1024 + 9)


def test_index_keys_beside_ordinary_attention(tmp_path: Path) -> None:
    """MiniMax-M3: one key of 128 numbers in the layers that are sparse."""
    sparse = {"sparse_attention_freq": [0, 0, 0, 1, 1, 1, 1, 1], "sparse_index_dim": 128}
    kv = layout(tmp_path, model_type="unknown", sparse_attention_config=sparse)
    assert kv.growing == 8 * KV + 5 * 256


@pytest.mark.parametrize("kind", ["mimo_v2_flash", "mimo_v2"])
def test_two_head_counts_and_narrower_values(tmp_path: Path, kind: str) -> None:
    """MiMo-V2: 9 × 2,560 and 39 × 5,120 bytes; its pattern names the windows."""
    pattern = [0, *([1, 1, 1, 1, 0] + [1] * 5) * 4][:8]
    kv = layout(
        tmp_path, model_type=kind, head_dim=192, v_head_dim=128, hybrid_layer_pattern=pattern,
        swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128, sliding_window_size=128,
        n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=128,
    )  # fmt: skip
    full = pattern.count(0)
    assert kv.growing == full * 2560
    assert [
        (each.layers, each.kv_heads, each.bytes_per_token, each.window)
        for each in kv.layers
        if each.window
    ] == [(8 - full, 8, 5120, 128)]


def test_a_kind_of_layer_with_heads_of_its_own(tmp_path: Path) -> None:
    """Step-3.5."""
    kinds = ["full_attention", *["sliding_attention"] * 3] * 2
    other = {
        "attention_type": "sliding_attention", "num_attention_groups": 2, "head_dim": 64,
    }  # fmt: skip
    kv = layout(
        tmp_path, model_type="unknown", layer_types=kinds, sliding_window=512,
        attention_other_setting=other,
    )  # fmt: skip
    assert kv.growing == 2 * KV
    assert [each.bytes_per_token for each in kv.layers if each.window] == [2 * 2 * 64 * 2]


def test_blocks_that_do_not_name_their_attention(tmp_path: Path) -> None:
    """Nemotron-3-Puzzle: its blocks differ in their experts alone."""
    kinds = ["mamba", "moe", "attention", "moe"] * 2
    kv = layout(
        tmp_path, model_type="unknown", layers_block_type=kinds,
        block_configs=[{"block_type": kind} for kind in kinds],
        mamba_num_heads=8, mamba_head_dim=64, ssm_state_size=128, n_groups=2, conv_kernel=4,
    )  # fmt: skip
    assert kv.growing == 2 * KV


def test_what_a_class_computes_is_read(tmp_path: Path) -> None:
    """Layers of Nemotron-3-Ultra and LongCat, the longest sequence of Kimi-Linear."""
    kinds = ["mamba", "moe", "attention", "moe"]
    write_json(
        tmp_path / "config.json",
        {**BASE, "model_type": "nemotron_h", "num_hidden_layers": None, "layers_block_type": kinds},
    )
    assert (read_shape(tmp_path).layers, read_shape(tmp_path).kv.growing) == (4, KV)
    longcat = {
        **{key: value for key, value in BASE.items() if key not in ("num_hidden_layers",)},
        "model_type": "longcat_flash", "num_layers": 14, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "num_key_value_heads": 16,
    }  # fmt: skip
    write_json(tmp_path / "config.json", longcat)
    shape = read_shape(tmp_path)
    assert (shape.layers, shape.blocks, shape.kv.growing) == (28, 14, 28 * LATENT)
    kimi = {**BASE, "model_type": "kimi_linear", "max_position_embeddings": None}
    for kind in ("kimi_linear", "nobodys"):
        write_json(tmp_path / "config.json", {**kimi, "model_type": kind, "model_max_length": 4096})
        assert read_shape(tmp_path).max_position == 4096


def test_the_known_decoder_of_an_unknown_model(tmp_path: Path) -> None:
    """Kimi-K3 wraps Kimi-Linear: its kinds of layers are in a table of their own."""
    attention = {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7], "head_dim": 128,
                 "num_heads": 16, "short_conv_kernel_size": 4}  # fmt: skip
    text = {**BASE, "model_type": "kimi_linear", "linear_attn_config": attention,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64}  # fmt: skip
    write_json(tmp_path / "config.json", {"model_type": "kimi_k9", "text_config": text})
    kv = read_shape(tmp_path).kv
    assert kv.growing == 2 * LATENT
    assert states(kv) == (6, 3 * 2048 * 3 * 2 + 2048 * 128 * 4)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "deepseek_v4", "compress_ratios": [0, 4] * 4},
        {"model_type": "unknown", "layer_types": ["compressed_sparse_attention"] * 8},
    ],
)
def test_a_compressed_cache_is_refused_by_name(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="compresses its KV cache"):
        layout(tmp_path, **config)
