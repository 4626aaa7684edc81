"""What is said before a run without stopping it, and what the scheduler would refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.predict.builders import cpu, gpu, variant
from tests.records import model
from whet.core.records.engine import Variant
from whet.core.records.plan import Problem
from whet.core.spec import Spec, parse_spec
from whet.predict import Traffic, advise, assess_variants, fitting_length
from whet.predict.settings import read_settings

QUIET = Traffic(largest_batch=8, p99_tokens=None, longest_tokens=None)


def said(found: Variant, traffic: Traffic = QUIET, **shape: Any) -> tuple[str, ...]:
    return advise(found, target=model(**shape), device=gpu(80), traffic=traffic)


def spec_of(**change: Any) -> Spec:
    data = {
        "name": "t",
        "model": {"target": "/models/target", "draft": "/models/draft"},
        "hardware": {"price_usd_per_hour": 1.0},
        "load": {"concurrency": [1]},
        "workload": {"max_input_tokens": 200, "max_output_tokens": 56},
    }
    return parse_spec(data | change, base=Path("/"))


def problems(found: Variant, *, devices: int = 1, **shape: Any) -> list[Problem]:
    return list(
        assess_variants(
            [found],
            target=model(**shape),
            draft=None,
            device=gpu(80, count=devices),
            spec=spec_of(),
        ).problems
    )


def test_a_plain_variant_needs_no_advice() -> None:
    assert said(variant()) == ()
    assert problems(variant()) == []


@pytest.mark.parametrize(("value", "warned"), [(0.93, False), (0.94, True)])
def test_high_utilization(value: float, warned: bool) -> None:
    found = said(variant(gpu_memory_utilization=value))
    assert bool(found) is warned
    assert all("set it to 0.92" in sentence for sentence in found)
    on_cpu = advise(
        variant(gpu_memory_utilization=value), target=model(), device=cpu(), traffic=QUIET
    )
    assert on_cpu == ()


def test_the_length_that_is_enough() -> None:
    # A tenth above 1,152 is 1,268 and the next step of 128 is 1,280; the longest goes before it.
    assert fitting_length(Traffic(largest_batch=1, p99_tokens=1152, longest_tokens=1200)) == 1280
    assert fitting_length(Traffic(largest_batch=1, p99_tokens=1152, longest_tokens=1281)) == 1408
    assert fitting_length(QUIET) is None


@pytest.mark.parametrize(("length", "warned"), [(1919, False), (1920, True), (4096, True)])
def test_a_length_far_beyond_the_traffic(length: int, warned: bool) -> None:
    traffic = Traffic(largest_batch=8, p99_tokens=1152, longest_tokens=1200)
    found = said(variant(max_model_len=length), traffic)
    assert bool(found) is warned
    if warned:
        (sentence,) = found
        assert f"max_model_len {length:,}, while 99 in 100 requests fit 1,152" in sentence
        assert "set it to 1,280" in sentence


def test_the_models_own_length_counts_where_none_is_set() -> None:
    traffic = Traffic(largest_batch=8, p99_tokens=100, longest_tokens=100)
    (sentence,) = said(variant(), traffic, max_position=131072)
    assert "max_model_len 131,072" in sentence


def test_a_batch_that_queues() -> None:
    traffic = replace(QUIET, largest_batch=64)
    (sentence,) = said(variant(max_num_seqs=32), traffic)
    assert "batch 64 will queue" in sentence
    assert "at least 64" in sentence
    assert said(variant(max_num_seqs=64), traffic) == ()
    assert said(variant(max_num_seqs=32, data_parallel_size=2), traffic) == ()


def test_a_cpu_serves_128_at_once_unless_told_otherwise() -> None:
    settings = read_settings(variant(), target=model(), device=cpu())
    assert (settings.batched_tokens, settings.max_seqs) == (2048, 128)
    split = read_settings(variant(tensor_parallel_size=2), target=model(), device=cpu())
    assert (split.batched_tokens, split.max_seqs) == (4096, 256)


def test_cold_adapters() -> None:
    three = tuple((name, f"/adapters/{name}") for name in "abc")
    (sentence,) = said(replace(variant(), loras=three, max_loras=1))
    assert sentence.startswith("max_loras 1 for 3 adapters: 2 at a time are cold")
    assert said(replace(variant(), loras=three, max_loras=3)) == ()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"max_num_batched_tokens": 64, "max_num_seqs": 128}, "is below max_num_seqs 128"),
        ({"max_num_seqs": 4000}, "max_num_batched_tokens 2048 is below max_num_seqs 4000"),
        (
            {"max_num_batched_tokens": 1024, "enable_chunked_prefill": False},
            "below max_model_len 4096, and without chunked prefill",
        ),
        ({"enable_expert_parallel": True}, "LlamaForCausalLM is dense; leave it out"),
    ],
)
def test_settings_that_the_engine_refuses(args: dict[str, Any], told: str) -> None:
    spec, target = spec_of(), model()
    found = assess_variants([variant(**args)], target=target, draft=None, device=gpu(24), spec=spec)
    (problem,) = found.problems
    assert problem.kind == "settings"
    assert told in problem.message


@pytest.mark.parametrize(
    "args",
    [
        {"max_num_batched_tokens": 64},  # the default of max_num_seqs gives way
        {"enable_chunked_prefill": False},  # a step then has room for the longest prompt
        {"max_num_batched_tokens": 1024, "enable_chunked_prefill": True},
    ],
)
def test_defaults_that_give_way(args: dict[str, Any]) -> None:
    assert problems(variant(**args)) == []


@pytest.mark.parametrize(
    ("args", "devices", "told"),
    [
        ({"pipeline_parallel_size": 2}, 1, "pipeline_parallel_size 2 needs 2 devices"),
        ({"data_parallel_size": 4}, 2, "set it to 2"),
        (
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
            2,
            "tensor_parallel_size 2 × pipeline_parallel_size 2 needs 4 devices and 2 are visible",
        ),
    ],
)
def test_more_devices_than_there_are(args: dict[str, Any], devices: int, told: str) -> None:
    (problem,) = problems(variant(**args), devices=devices)
    assert problem.kind == "device"
    assert told in problem.message


@pytest.mark.parametrize(
    "args",
    [
        {"tensor_parallel_size": 2, "data_parallel_size": 2},
        {"data_parallel_size": 8, "data_parallel_size_local": 4},
        {"tensor_parallel_size": 8, "distributed_executor_backend": "ray"},
    ],
)
def test_devices_that_are_enough_or_elsewhere(args: dict[str, Any]) -> None:
    assert problems(variant(**args), devices=4) == []


def test_experts_may_be_spread() -> None:
    assert problems(variant(enable_expert_parallel=True), experts=8) == []


def test_an_adapter_of_another_model(tmp_path: Path) -> None:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    for folder, width in (("fits", 4096), ("foreign", 2048)):
        (tmp_path / folder).mkdir()
        tensors = {name: np.zeros((8, width), np.float16)}
        save_file(tensors, tmp_path / folder / "adapter_model.safetensors")

    def with_lora(folder: str) -> Variant:
        return replace(variant(), loras=(("a", str(tmp_path / folder)),), max_loras=1)

    assert problems(with_lora("fits")) == []
    (problem,) = problems(with_lora("foreign"))
    assert problem.kind == "shape"
    assert "model.layers.0.self_attn.q_proj reads 2048 values" in problem.message
    assert "read 4096, 11008" in problem.message
