"""Keys of vLLM 0.33's speculation: what they become, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.test_variants import spec, told
from whet.core.spec import SpeculationSpec

HEAD: dict[str, Any] = {"method": "eagle3", "draft": "org/head", "num_tokens": 6}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"num_tokens_by_load": [[2, 16, 6]]}, "must begin at 1"),
        ({"num_tokens_by_load": [[1, 16, 6], [16, 256, 2]]}, "must begin at 17"),
        ({"num_tokens_by_load": [[1, 16, 6], [17, 8, 2]]}, "end there or above"),
        ({"num_tokens_by_load": [[1, 16, 8]]}, "num_tokens, the largest, is 6"),
        ({"num_tokens_by_load": [[1, 16]]}, "num_tokens_by_load"),
        ({"num_tokens_by_load": [[1, 16, -1]]}, "must be 0 or more"),
        ({"rejection_sample_method": "blocks"}, "'standard', 'block'"),
        ({"draft_lm_head_quantization": "int8"}, "'fp8' or 'nvfp4'"),
    ],
)
def test_what_cannot_be_meant_is_refused(change: dict[str, Any], word: str) -> None:
    assert word in told({"speculation": {**HEAD, **change}})


@pytest.mark.parametrize(
    "item",
    [{"rejection_sample_method": "fly"}, {"options": {"rejection_sample_method": "fly"}}],
)
def test_fly_is_refused_where_speculation_is_held_to_be_lossless(item: dict[str, Any]) -> None:
    words = {"speculation": {**HEAD, **item}}
    assert "lossless_prompts to 0" in told(words)
    accepted = spec(variants={"fp16": {}, "x": words}, quality={"lossless_prompts": 0})
    assert accepted.variants["x"].speculation is not None


def test_keys_go_to_the_engine_by_its_own_names() -> None:
    made = SpeculationSpec(
        **HEAD,
        num_tokens_by_load=[(1, 16, 6), (17, 256, 2)],
        rejection_sample_method="block",
        draft_sample_method="probabilistic",
        draft_lm_head_quantization="fp8",
        options={"draft_tensor_parallel_size": 1},
    )
    assert made.engine_options == {
        "num_speculative_tokens_per_batch_size": "[[1, 16, 6], [17, 256, 2]]",
        "rejection_sample_method": "block",
        "draft_sample_method": "probabilistic",
        "draft_lm_head_quantization": "fp8",
        "draft_tensor_parallel_size": 1,
    }
    assert SpeculationSpec(**HEAD).engine_options == {}
