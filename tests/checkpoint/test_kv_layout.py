"""What layers keep of a request, for families whose shapes differ from one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_json
from whet.checkpoint.config import read_shape
from whet.checkpoint.kv_layout import KvLayout

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
