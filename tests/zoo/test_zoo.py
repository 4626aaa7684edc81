"""Published models from headers to memory plan: parameters, KV cache, states, stored formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.predict.builders import gpu, variant
from tests.zoo.models import names, write_model
from tests.zoo.truth import TRUTH, Truth
from whet.checkpoint import read_facts
from whet.core.records.model import ModelFacts
from whet.predict.memory import Demand, plan_memory

TOKENS = 32_768
CARD = gpu(4000, name="H100, if there were one of 4 TB")


LARGE = {"Kimi-K2.5"}
"""Over 100,000 tensors."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full if name in LARGE else ()) for name in names()],
)
def test_a_published_model(name: str, tmp_path: Path) -> None:
    facts, truth = read_facts(write_model(name, tmp_path)), TRUTH[name]
    right_parameters(facts, truth)
    right_cache(facts, truth)
    assert (facts.stored.scheme, facts.stored.group_size) == (truth.scheme, truth.group)
    right_plan(facts, truth)


def right_parameters(facts: ModelFacts, truth: Truth) -> None:
    assert facts.parameters / 1e9 == pytest.approx(truth.billions, rel=0.01)
    assert facts.mtp_parameters / 1e9 == pytest.approx(truth.mtp, rel=0.01)
    assert (facts.mtp_bytes > 0) == (truth.mtp > 0)
    if truth.idle:  # the experts' biases are idle too: a thousandth at most
        active = facts.parameters - truth.idle
        assert facts.active_parameters == pytest.approx(active, rel=0.002)
    else:
        assert facts.active_parameters is None
    if facts.stored.scheme == "16bit":
        assert facts.stored.bits_per_weight == pytest.approx(16.0, rel=0.001)  # routers in 32


def right_cache(facts: ModelFacts, truth: Truth) -> None:
    assert facts.kv_bytes_per_token == sum(layers * size for layers, size in truth.full)
    bounded = {
        (each.layers, each.bytes_per_token, each.window)
        for each in facts.kv_layers
        if each.window is not None
    }
    assert bounded == set(truth.windows)
    states = facts.states
    assert (states and (states.layers, states.bytes_per_request)) == truth.state


def right_plan(facts: ModelFacts, truth: Truth) -> None:
    """Weights without MTP layers, and one request of 32,768 tokens in vLLM's own blocks."""
    plan = plan_memory(
        variant(max_model_len=TOKENS, max_num_batched_tokens=8192),
        target=facts,
        stored=facts,
        draft=None,
        device=CARD,
        demand=Demand(max_batch=1, tokens_per_request=TOKENS),
    )
    assert plan.fits
    assert plan.weight_bytes == facts.weight_bytes - facts.mtp_bytes
    if truth.vllm is not None:
        assert plan.kv_request_bytes == (truth.vllm or facts.kv_bytes_per_token * TOKENS)
