"""A situation of a 7B model on one H100, for tests of the playbook and of what is tried."""

from __future__ import annotations

from typing import Any

from tests.records import model
from whet.core.provenance import Device
from whet.core.spec import RecipeSpec
from whet.flow.run.situation import Head, Published, Situation, TrafficShape

TARGET = model(
    parameters=7 * 10**9,
    weight_bytes=14 * 10**9,
    kv_heads=8,
    kv_bytes_per_token=131072,
    vocab_size=4096,
    max_position=8192,
    linear_parameters=None,
    linear_inputs=(),
)


def head(ref: str = "head", method: str = "eagle3") -> Head:
    return Head(ref=ref, method=method, num_tokens=None, source="search.heads", options={})


def situation(**changed: Any) -> Situation:
    """One H100, every recipe, one head, a draft, sampled requests that copy their prompts."""
    facts: dict[str, Any] = {
        "target": TARGET,
        "device": Device(kind="cuda", name="H100", memory_bytes=80 * 10**9, count=1, driver=None),
        "capability": (9, 0),
        "engine": "vllm",
        "version": (0, 33, 0),
        "recipes": {name: RecipeSpec() for name in ("fp8", "int8", "w4a8", "int4")},
        "heads": (head(),),
        "checkpoints": (Published(ref="owner/model-fp8", scheme="FP8"),),
        "traffic": TrafficShape(
            prompt_tokens=5000, answer_tokens=80, longest=6000, hit_rate=0.9, copied=0.6, greedy=0.5
        ),
        "in_flight": 256,
        "draft": True,
        "nvcc": True,
        "unmeasured_card": False,
    }
    return Situation(**(facts | changed))
