"""Memory: published figures, and that every number which is offered as a mend really mends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.predict.builders import cpu, gpu, variant
from tests.records import model
from whet.checkpoint import read_facts
from whet.core.errors import UsageError
from whet.core.provenance import Device
from whet.core.records.engine import Speculation, Variant
from whet.core.records.model import ModelFacts
from whet.core.records.plan import MemoryPlan
from whet.core.spec import RecipeSpec
from whet.core.units import GB, GIB
from whet.predict.disk import bits_per_weight, predict_checkpoint
from whet.predict.kv_blocks import growing_bytes, kinds_of
from whet.predict.memory import (
    Demand,
    activation_bytes,
    graph_bytes,
    loaded_bytes,
    plan_memory,
)
from whet.predict.settings import read_settings


def plan(
    this: Variant,
    *,
    device: Device,
    target: ModelFacts | None = None,
    draft: ModelFacts | None = None,
    batch: int = 1,
    tokens: int = 512,
    free: int | None = None,
) -> MemoryPlan:
    facts = target or model()
    demand = Demand(max_batch=batch, tokens_per_request=tokens, free_bytes=free)
    return plan_memory(this, target=facts, stored=facts, draft=draft, device=device, demand=demand)


def qwen3_32b() -> ModelFacts:
    """64 layers of (8192+1024+1024)·5120 + 5120·8192 + 3·5120·25600; 151936·5120 twice beside."""
    linear = 64 * (10_240 * 5120 + 5120 * 8192 + 3 * 5120 * 25600)
    return model(
        parameters=32_762_123_264,
        weight_bytes=65_524_246_528,
        linear_parameters=linear,
        linear_inputs=(5120, 8192, 25600),
    )


def test_qwen3_32b_in_4_bits_weighs_what_is_published() -> None:
    """19.3 GB with zero points (the published AWQ, 0.5195 bytes); symmetric scales save 1%."""
    facts = qwen3_32b()
    assert bits_per_weight(4, 128) == 4.125
    rest = 2 * (facts.parameters - (facts.linear_parameters or 0))
    with_zeros = rest + 0.5195 * (facts.linear_parameters or 0)
    assert with_zeros / GB == pytest.approx(19.3, abs=0.05)
    served = predict_checkpoint(facts, RecipeSpec(), Path("/awq"))
    assert served.weight_bytes / GB == pytest.approx(19.2, abs=0.05)
    assert (served.stored.scheme, served.stored.group_size) == ("W4A16", 128)


def test_a_tiny_model_is_foreseen_to_the_byte(tmp_path: Path) -> None:
    """294,912 weights at 4.25 bits, 14 shapes of 16 bytes, 77,440 others at 2 bytes."""
    facts = read_facts(write_tiny_llama(tmp_path))
    served = predict_checkpoint(facts, RecipeSpec(group_size=64), tmp_path / "awq")
    assert served.weight_bytes == 156_672 + 224 + 154_880


@pytest.mark.parametrize(
    ("recipe", "stored", "bits"),
    [
        ({"scheme": "W8A16"}, "W8A16", 8 + 16 / 128),
        ({"scheme": "W8A8"}, "W8A8-INT8", 8 + 16 / 5120),
        ({"scheme": "FP8"}, "FP8", 8.0),
        ({"mixed": {"bits_per_weight": 5.5}}, "W4A16", 5.5),
    ],
)
def test_every_scheme_is_foreseen(recipe: dict[str, Any], stored: str, bits: float) -> None:
    facts = qwen3_32b()
    served = predict_checkpoint(facts, RecipeSpec.model_validate(recipe), Path("/x"))
    assert served.stored.scheme == stored
    assert served.stored.bits_per_weight == pytest.approx(bits)
    rest = 2 * (facts.parameters - (facts.linear_parameters or 0))
    expected = rest + bits / 8 * (facts.linear_parameters or 0)
    assert served.weight_bytes == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("layers", "kv_heads", "context", "gigabytes"),
    [(80, 8, 4096, 1.34), (32, 40, 8192, 5.4), (32, 8, 8192, 1.1)],
)
def test_kv_of_figures_that_are_often_copied_wrong(
    layers: int, kv_heads: int, context: int, gigabytes: float
) -> None:
    facts = model(kv_bytes_per_token=2 * layers * kv_heads * 128 * 2, kv_heads=kv_heads)
    settings = read_settings(variant(), target=facts, device=gpu())
    total = growing_bytes(kinds_of(facts, settings)) * context
    assert total / GB == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(("parallel", "share"), [(1, 1), (4, 4), (8, 8), (16, 8)])
def test_kv_heads_are_replicated_where_there_are_too_few(parallel: int, share: int) -> None:
    facts = model(kv_heads=8, kv_bytes_per_token=131_072)
    settings = read_settings(
        variant(tensor_parallel_size=parallel), target=facts, device=gpu(count=16)
    )
    assert growing_bytes(kinds_of(facts, settings)) == 131_072 // share


def test_latent_kv_is_not_split() -> None:
    facts = model(mla=True, kv_bytes_per_token=70_272, kv_heads=128)
    settings = read_settings(variant(tensor_parallel_size=8), target=facts, device=gpu(count=8))
    assert growing_bytes(kinds_of(facts, settings)) == 70_272


@pytest.mark.parametrize(
    ("args", "per_token", "weights"),
    [
        ({}, 524_288, 1),
        ({"kv_cache_dtype": "fp8"}, 262_144, 1),
        ({"dtype": "float32"}, 1_048_576, 2),
        ({"--kv-cache-dtype": "fp8_e5m2", "dtype": "float32"}, 262_144, 2),
    ],
)
def test_dtypes(args: dict[str, Any], per_token: int, weights: int) -> None:
    found = plan(variant(**args), device=gpu(80))
    assert found.kv_bytes_per_token == per_token
    assert found.weight_bytes == weights * 13_476_831_232


def test_engines_share_experts_and_each_has_its_attention() -> None:
    facts = model(weight_bytes=60 * GB, expert_parameters=28 * GB, experts=128)
    for parallel, expected in ((1, 60), (4, 4 + 56 / 4)):
        settings = read_settings(
            variant(data_parallel_size=parallel), target=facts, device=gpu(80, count=8)
        )
        assert loaded_bytes(facts, settings) == expected * GB


def test_engines_divide_the_batch() -> None:
    args = {"max_model_len": 1024, "data_parallel_size": 4}
    plan = plan_memory(
        variant(**args),
        target=model(),
        stored=model(),
        draft=None,
        device=gpu(24, count=4),
        demand=Demand(max_batch=256, tokens_per_request=1024),
    )
    assert plan.tokens_needed == 64 * 1024
    assert plan.reason is not None
    assert "batch 256 of 1024 tokens each, divided among 4 engines" in plan.reason
    fitting = plan.fit_batch_size or 0
    assert fitting % 4 == 0
    assert f"keep concurrencies to at most {fitting}" in plan.reason


def test_7b_at_16_bits_on_24_gib() -> None:
    """0.92 · 24 GiB − 12.55 GiB of weights leaves under 9.53 GiB; at 0.5 MiB a token < 19,517."""
    found = plan(variant(max_model_len=4096), device=gpu(24), batch=4, tokens=2048)
    assert found.fits
    assert 10_000 < found.kv_tokens < 19_517
    assert found.kv_tokens % 16 == 0
    spent = found.weight_bytes + found.activation_bytes + found.kv_pool_bytes
    assert spent == found.limit_bytes


def test_activations_are_near_what_an_engine_reported() -> None:
    """vLLM 0.26 on an H100: 1.74 GiB of peak activation for a 7B shape with a small vocabulary."""
    facts = model(intermediate_size=14336, vocab_size=8192)
    settings = read_settings(variant(), target=facts, device=gpu(80, name="NVIDIA H100"))
    assert activation_bytes(facts, settings) / GIB == pytest.approx(1.74, rel=0.1)


@pytest.mark.parametrize(
    ("args", "tokens"),
    [
        ({}, 512),
        ({"max_cudagraph_capture_size": 1024}, 1024),
        ({"cudagraph_capture_sizes": "[1, 2, 768]"}, 768),
        (
            {"compilation_config": '{"cudagraph_capture_sizes":[1,2048],"cudagraph_mode":"FULL"}'},
            2048,
        ),
        ({"compilation_config": '{"max_cudagraph_capture_size":640}'}, 640),
        ({"compilation_config": '{"cudagraph_mode":"FULL"}'}, 512),
        ({"max_cudagraph_capture_size": 1024, "enforce_eager": True}, 0),
        ({"compilation_config": '{"cudagraph_mode":"NONE"}'}, 0),
    ],
)
def test_the_longest_step_with_a_graph(args: dict[str, Any], tokens: int) -> None:
    settings = read_settings(variant(**args), target=model(), device=gpu(80))
    assert settings.graph_tokens == tokens


def test_graphs_of_long_steps_take_memory_as_an_engine_reported() -> None:
    """vLLM 0.26 on an H100: 3.3 to 4.4 GiB with graphs of up to 2,048 tokens, 0.5 to 0.8 without
    (7B shape, a head)."""
    facts = model(intermediate_size=14336, vocab_size=4096)
    long = variant(max_cudagraph_capture_size=2048)
    settings = read_settings(long, target=facts, device=gpu(80))
    assert 2.6 < graph_bytes(facts, settings) / GIB < 3.8
    assert graph_bytes(facts, read_settings(variant(), target=facts, device=gpu(80))) == 0
    more = [plan(each, device=gpu(80)).activation_bytes for each in (long, variant())]
    assert more[0] > more[1]


def test_weights_alone_are_too_large() -> None:
    found = plan(variant(), device=gpu(12))
    assert not found.fits
    assert found.kv_tokens == 0
    assert found.fit_max_model_len is None
    assert found.fit_batch_size is None
    assert found.reason is not None
    assert "12.6 GiB" in found.reason
    assert "use a larger device" in found.reason


def test_the_offered_length_fits_and_one_block_more_does_not() -> None:
    long = model(max_position=131_072)
    found = plan(variant(), device=gpu(24), target=long)
    assert not found.fits
    length = found.fit_max_model_len
    assert length is not None
    assert f"max_model_len to at most {length}" in str(found.reason)
    assert plan(variant(max_model_len=length), device=gpu(24), target=long).fits
    assert not plan(variant(max_model_len=length + 16), device=gpu(24), target=long).fits


def test_the_offered_batch_fits_and_one_more_does_not() -> None:
    found = plan(variant(), device=gpu(24), batch=64, tokens=1024)
    batch = found.fit_batch_size
    assert batch is not None
    assert f"concurrencies to at most {batch}" in str(found.reason)
    assert plan(variant(), device=gpu(24), batch=batch, tokens=1024).fits
    assert not plan(variant(), device=gpu(24), batch=batch + 1, tokens=1024).fits


def test_a_low_utilization_is_named() -> None:
    low = variant(gpu_memory_utilization=0.65)
    found = plan(low, device=gpu(24), batch=4, tokens=1024)
    assert not found.fits
    assert "give the KV cache more memory (gpu_memory_utilization)" in str(found.reason)


def test_a_neighbour_on_the_gpu() -> None:
    """The engine refuses to start where less is free than the utilization asks for."""
    found = plan(variant(), device=gpu(24), free=20 * GIB)
    assert not found.fits
    assert "only 20 GiB are free; set it to 0.83" in str(found.reason)
    again = variant(device_memory_utilization=0.83)
    assert plan(again, device=gpu(24), free=20 * GIB).fits


def test_the_draft_takes_weights_and_kv() -> None:
    draft = model(weight_bytes=2_000_000_000, kv_bytes_per_token=32_768)
    without = plan(variant(), device=gpu(), draft=draft)
    found = plan(variant(speculate=True), device=gpu(), draft=draft)
    assert without.draft_weight_bytes is None
    assert found.draft_weight_bytes == 2_000_000_000
    assert found.kv_bytes_per_token == 524_288 + 32_768


def test_proposed_tokens_take_a_block_of_their_own() -> None:
    """512 tokens fill 32 blocks of 16; four proposed tokens need one block more a request."""
    plain = plan(variant(max_model_len=16), device=gpu(), batch=10, tokens=512)
    found = plan(variant(speculate=True, max_model_len=16), device=gpu(), batch=10, tokens=512)
    assert (plain.tokens_needed, found.tokens_needed) == (5120, 5280)


def test_on_a_cpu_the_environment_sizes_the_pool() -> None:
    this = variant(env={"VLLM_CPU_KVCACHE_SPACE": "4"})
    found = plan(this, device=cpu(), free=22 * GIB)
    assert found.kv_pool_bytes == 4 * GIB
    assert found.kv_tokens == 8192  # 4 GiB at 0.5 MiB each
    assert found.fits


def test_on_a_cpu_a_pool_beyond_the_free_memory() -> None:
    this = variant(env={"VLLM_CPU_KVCACHE_SPACE": "12"})
    found = plan(this, device=cpu(), free=20 * GIB)
    assert not found.fits
    assert "set VLLM_CPU_KVCACHE_SPACE to at most " in str(found.reason)
    smaller = variant(env={"VLLM_CPU_KVCACHE_SPACE": "2"})
    assert plan(smaller, device=cpu(), free=20 * GIB).fits


def test_on_a_cpu_a_pool_that_is_too_small() -> None:
    this = variant(env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    found = plan(this, device=cpu(), free=22 * GIB)
    assert "give the KV cache more memory (VLLM_CPU_KVCACHE_SPACE)" in str(found.reason)


def test_the_process_environment_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    assert plan(variant(), device=cpu(), free=22 * GIB).kv_pool_bytes == 3 * GIB


def test_on_a_cpu_without_a_stated_pool_only_free_memory_counts() -> None:
    """0.92 of 24 GiB is more than the 18 that are free, and no reason to refuse."""
    found = plan(variant(), device=cpu(), free=18 * GIB)
    assert found.fits
    assert found.limit_bytes == 18 * GIB
    assert "leave no room" in str(plan(variant(), device=cpu(), free=12 * GIB).reason)


def test_flags_that_are_no_numbers() -> None:
    with pytest.raises(UsageError, match="max_model_len must be a number, not 'long'"):
        plan(variant(max_model_len="long"), device=gpu())
    with pytest.raises(UsageError, match="whole number of GiB, not '4GB'"):
        plan(variant(env={"VLLM_CPU_KVCACHE_SPACE": "4GB"}), device=cpu(), free=GIB)


def test_a_pipeline_holds_a_share_of_the_layers_on_each_device() -> None:
    # Llama-2-7B: 13,476,831,232 bytes and 524,288 bytes of KV a token, over two stages.
    halves = read_settings(variant(pipeline_parallel_size=2), target=model(), device=gpu())
    assert loaded_bytes(model(), halves) == 6_738_415_616
    assert growing_bytes(kinds_of(model(), halves)) == 262_144


def test_a_head_counts_with_what_it_stores(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 5000)
    head = Speculation(method="eagle3", num_tokens=4, draft_path=str(tmp_path))
    plain, card = variant(), gpu(80)
    assert plan(plain, device=card).draft_weight_bytes is None
    assert plan(replace(plain, speculation=head), device=card).draft_weight_bytes == 5000
    elsewhere = replace(head, draft_path="owner/head")
    assert plan(replace(plain, speculation=elsewhere), device=card).draft_weight_bytes is None
