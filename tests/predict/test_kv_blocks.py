"""Blocks of hybrid models. The bytes are vLLM 0.32's own, from ``get_kv_cache_groups`` with these
shapes and ``_max_memory_usage_bytes_from_groups``; ``tests/zoo`` has those of published models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.predict.builders import cpu, gpu, variant
from tests.records import model
from whet.core.records.engine import Variant
from whet.core.records.model import KvLayers, ModelFacts, StateLayers
from whet.core.records.plan import MemoryPlan
from whet.predict.kv_blocks import Kind, kinds_of, share_pool
from whet.predict.memory import Demand, plan_memory
from whet.predict.settings import read_settings

IN_FLIGHT = 16_384


def gemma(**changes: int) -> ModelFacts:
    """Gemma-3-27b's cache: 10 full layers, 52 of a window of 1,024."""
    full = KvLayers(layers=10, kv_heads=16, bytes_per_token=8192)
    near = replace(full, layers=52, window=1024)
    return model(kv_bytes_per_token=81_920, kv_layers=(full, near), max_position=131_072, **changes)


def qwen_next() -> ModelFacts:
    """Qwen3-Next's: 12 full layers of 2 heads of 256, 36 states of a gated delta net."""
    full = KvLayers(layers=12, kv_heads=2, bytes_per_token=2048)
    states = StateLayers(layers=36, bytes_per_request=1_097_728, half_bytes=1_048_576, cached=2)
    return model(kv_bytes_per_token=24_576, kv_layers=(full,), states=states)


def plan(
    this: Variant, facts: ModelFacts, *, batch: int = 1, tokens: int = 4096, draft: bool = False
) -> MemoryPlan:
    helper = model(weight_bytes=10**9, kv_bytes_per_token=32_768, kv_heads=8)
    return plan_memory(
        this,
        target=facts,
        stored=facts,
        draft=helper if draft else None,
        device=gpu(40),
        demand=Demand(max_batch=batch, tokens_per_request=tokens),
    )


@pytest.mark.parametrize(
    ("states", "size"), [(1, 147_062_784), (2, 187_170_816)], ids=["plain", "prefix cache"]
)
def test_a_state_lengthens_the_blocks_of_attention(states: int, size: int) -> None:
    """A state of 1,097,728 bytes needs blocks of 544 tokens of 2,048 bytes."""
    kinds = [Kind(layers=12, width=2048), Kind(layers=36, width=1_097_728, state=True)]
    pool = share_pool(kinds, block=16, states=states)
    assert pool.block_bytes == 12 * 544 * 2048
    assert pool.blocks(4096, in_flight=IN_FLIGHT) * pool.block_bytes == size


def test_a_prefix_cache_keeps_two_states() -> None:
    plain = variant(max_model_len=4096)
    one = plan(plain, qwen_next()).kv_request_bytes
    two = plan(replace(plain, prefix_cache=True), qwen_next()).kv_request_bytes
    assert (one, two) == (147_062_784, 187_170_816)


def test_pages_of_two_widths() -> None:
    """Gemma-4: blocks of the full layers hold 32 tokens, those of the windows 16."""
    kinds = [Kind(layers=5, width=4096), Kind(layers=25, width=8192, window=1024)]
    pool = share_pool(kinds, block=16, states=1)
    assert {each.block for each in pool.groups} == {16, 32}
    assert pool.blocks(32_768, in_flight=IN_FLIGHT) * pool.block_bytes == 4_239_523_840


def test_kinds_of_nearly_equal_count_are_padded() -> None:
    """gpt-oss with a head: 13 full layers and 12 of a window make two groups of 13."""
    kinds = [Kind(layers=13, width=2048), Kind(layers=12, width=2048, window=128)]
    pool = share_pool(kinds, block=16, states=1)
    assert (len(pool.groups), pool.block_bytes) == (2, 13 * 16 * 2048)


def test_windows_need_less_than_the_whole_prompt_while_they_decode() -> None:
    """In a batch only the tokens in flight come on top: not for each request anew."""
    facts, this = gemma(), variant(max_model_len=131_072, max_num_batched_tokens=2048)
    one, two = (plan(this, facts, batch=batch, tokens=100_000) for batch in (16, 17))
    more = two.required_bytes - one.required_bytes
    assert one.fits is False
    assert 10 * 8192 * 100_000 < more < 1.02 * facts.kv_bytes(100_000)
    assert one.kv_request_bytes > more


def test_the_offered_length_of_a_hybrid_fits_and_more_does_not() -> None:
    facts = gemma(weight_bytes=30 * 10**9)
    found = plan(variant(), facts)
    length = found.fit_max_model_len
    assert not found.fits
    assert length is not None
    assert plan(variant(max_model_len=length), facts).fits
    assert not plan(variant(max_model_len=length + 16), facts).fits
    assert f"set max_model_len to at most {length}" in str(found.reason)


def test_the_offered_batch_of_a_hybrid_fits_and_one_more_does_not() -> None:
    this, facts = variant(max_model_len=8192), gemma(weight_bytes=30 * 10**9)
    batch = plan(this, facts, batch=500).fit_batch_size
    assert batch is not None
    assert plan(this, facts, batch=batch).fits
    assert not plan(this, facts, batch=batch + 1).fits


def test_without_the_hybrid_manager_windows_keep_everything() -> None:
    off = variant(max_model_len=32_768, disable_hybrid_kv_cache_manager=True)
    assert plan(off, gemma(), tokens=32_768).kv_request_bytes == 62 * 8192 * 32_768


def test_a_small_gemma_as_vllm_reported_it_on_a_cpu() -> None:
    """vLLM 0.32 with 1 GiB, blocks of 128 and 2,048 tokens a step: ``CPU KV cache size: 313,592
    tokens`` at 8,192 tokens a request (2 layers of full attention, 12 of a window of 1,024)."""
    full = KvLayers(layers=2, kv_heads=2, bytes_per_token=512)
    near = replace(full, layers=12, window=1024)
    facts = model(kv_bytes_per_token=1024, kv_layers=(full, near), weight_bytes=10**7)
    found = plan_memory(
        variant(
            max_model_len=8192, max_num_batched_tokens=2048, env={"VLLM_CPU_KVCACHE_SPACE": "1"}
        ),
        target=facts,
        stored=facts,
        draft=None,
        device=cpu(),
        demand=Demand(max_batch=1, tokens_per_request=8192),
    )
    assert found.kv_tokens == 313_592


@pytest.mark.parametrize(("caching", "tokens"), [(False, 1_720_740), (True, 1_266_204)])
def test_a_small_granite_as_vllm_reported_it_on_a_cpu(caching: bool, tokens: int) -> None:
    """vLLM 0.32, 1 GiB: one layer of attention, 7 of Mamba-2 with 8 heads of 64 and a state of 32,
    which a CPU keeps in float32; with a prefix cache three states a request."""
    full = KvLayers(layers=1, kv_heads=2, bytes_per_token=512)
    half = 8 * 64 * 32 * 2
    states = StateLayers(layers=7, bytes_per_request=576 * 3 * 2 + half, half_bytes=half, cached=3)
    facts = model(kv_bytes_per_token=512, kv_layers=(full,), states=states, weight_bytes=10**7)
    found = plan_memory(
        replace(
            variant(max_model_len=8192, env={"VLLM_CPU_KVCACHE_SPACE": "1"}), prefix_cache=caching
        ),
        target=facts,
        stored=facts,
        draft=None,
        device=cpu(),
        demand=Demand(max_batch=1, tokens_per_request=8192),
    )
    assert found.kv_tokens == tokens


def test_devices_share_heads_and_states() -> None:
    settings = read_settings(
        variant(tensor_parallel_size=4), target=qwen_next(), device=gpu(count=4)
    )
    full, state = kinds_of(qwen_next(), settings)
    assert full.width == 1024  # 2 heads on 4 devices: each holds one
    assert state.width == 1_097_728 // 4


def test_a_draft_beside_a_hybrid_target() -> None:
    """Its layers keep every token, and their blocks are of the pool's size."""
    this = variant(max_model_len=4096, speculate=True)
    found = plan(this, gemma(), draft=True)
    assert found.kv_bytes_per_token == 81_920 + 32_768
    assert found.kv_request_bytes > plan(this, gemma()).kv_request_bytes


def test_mtp_layers_are_loaded_where_they_speculate() -> None:
    facts = model(mtp_bytes=10**9)
    plain = plan(variant(), facts)
    this = variant(speculate=True)
    assert this.speculation is not None
    mtp = replace(this, speculation=replace(this.speculation, method="mtp", draft_path=None))
    assert plain.weight_bytes == facts.weight_bytes - 10**9
    assert plan(mtp, facts).draft_weight_bytes == 10**9
