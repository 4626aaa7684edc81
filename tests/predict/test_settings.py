"""What the engine would refuse: settings of the scheduler, devices, adapters."""

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
from whet.predict.feasibility import assess_variants
from whet.predict.settings import read_settings


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


def test_a_plain_variant_has_no_problem() -> None:
    assert problems(variant()) == []


def test_a_cpu_serves_128_at_once_unless_told_otherwise() -> None:
    settings = read_settings(variant(), target=model(), device=cpu())
    assert (settings.batched_tokens, settings.max_seqs) == (2048, 128)
    split = read_settings(variant(tensor_parallel_size=2), target=model(), device=cpu())
    assert (split.batched_tokens, split.max_seqs) == (4096, 256)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"max_num_batched_tokens": 64, "max_num_seqs": 128}, "is below max_num_seqs 128"),
        ({"max_num_seqs": 4000}, "max_num_batched_tokens 2048 is below max_num_seqs 4000"),
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
