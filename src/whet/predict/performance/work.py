"""What a step of a model reads and computes on one device, from its facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from whet.core.records.model import ModelFacts
from whet.predict.kv_blocks import kinds_of
from whet.predict.settings import Settings

_IMBALANCE = 1 / 3
"""The busiest of n devices that hold whole experts has n^⅓ times the mean of their operations: 1.4,
1.6 and 2.0 for 2, 4 and 8 with expert loads of power law 1.01 (``moe_perf`` of AIConfigurator 0.12:
vLLM 0.24, H200, 128 experts of 2,048 × 768, 16,384 tokens)."""
_PASSES = 7
"""How often a routed token's hidden state is read or written around its experts: what a long step
takes beyond its products, 50 ns a token with 8 experts (the same measurements, 1 to 8 devices)."""
_OF_LAYERS: Final = (
    *("weight_bytes", "expert_bytes", "expert_layers", "expert_flops", "routed_bytes"),
    *("token_flops", "pair_flops"),
)
"""Parts of the work that all layers add to."""
_HALF = 2
"""Bytes of a 16-bit number: embeddings and the vocabulary head stay in 16 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Bytes and operations on one of the devices that share a replica.

    ``devices`` share each layer by tensor parallelism; ``layers`` are those of one of ``stages`` of
    a pipeline. ``ranks`` compute attention for requests of their own and share the experts.

    ``weight_bytes`` are read by every step, ``expert_bytes`` as far as tokens are routed to them:
    one token reads ``expert_share``. ``token_flops`` are those of the linear layers without routed
    experts, ``expert_flops`` the experts' on the busiest device for each token of all ranks, and
    ``routed_bytes`` what a token moves in and out of ``expert_layers``. The vocabulary
    head runs for sampled rows alone. ``kv_bytes`` (of one token, by window; None is unbounded) and
    ``state_bytes`` (of one sequence) are read while decoding. ``pair_flops`` are attention's, for
    each pair of a token and one that it attends to. ``hidden_bytes`` of a token are what a layer's
    all-reduce sends.
    """

    layers: int
    devices: int
    weight_bytes: float
    expert_bytes: float
    expert_share: float
    token_flops: float
    head_bytes: float
    kv_bytes: tuple[tuple[float, int | None], ...]
    state_bytes: float
    pair_flops: float
    hidden_bytes: float
    scheme: str
    stages: int = 1
    ranks: int = 1
    expert_layers: float = 0.0
    expert_flops: float = 0.0
    routed_bytes: float = 0.0


def work_of(facts: ModelFacts, settings: Settings) -> Work:
    """The work of a checkpoint as stored, divided by its parallelism.

    Data parallel engines of a dense model are apart: this is the work of one. Those of a mixture of
    experts share its experts, cut like a dense layer or, with expert parallelism, whole.
    """
    devices = settings.tensor_parallel * settings.pipeline_parallel
    ranks = settings.data_parallel if facts.expert_parameters else 1
    linear = facts.linear_parameters or facts.parameters - facts.vocab_size * facts.hidden_size
    experts, share, layers = _experts(facts)
    sharing = settings.tensor_parallel * ranks if settings.expert_parallel else 1
    byte = facts.stored.bits_per_weight / 8
    kinds = kinds_of(facts, settings)
    attending = sum(each.layers for each in kinds if not each.state)
    heads = facts.heads / settings.tensor_parallel
    return Work(
        layers=facts.layers // settings.pipeline_parallel,
        devices=settings.tensor_parallel,
        stages=settings.pipeline_parallel,
        ranks=ranks,
        weight_bytes=(linear - experts) * byte / devices,
        expert_bytes=experts * byte / devices / ranks,
        expert_share=share,
        expert_layers=layers / settings.pipeline_parallel,
        expert_flops=2 * experts * share / devices / ranks * sharing**_IMBALANCE,
        routed_bytes=layers * share * (facts.experts or 0) * facts.hidden_size * _HALF * _PASSES,
        token_flops=2 * (linear - experts) / devices,
        head_bytes=facts.vocab_size * facts.hidden_size * _HALF / settings.tensor_parallel,
        kv_bytes=tuple(
            (float(each.layers * each.width), each.window) for each in kinds if not each.state
        ),
        state_bytes=float(sum(2 * each.layers * each.width for each in kinds if each.state)),
        pair_flops=4 * heads * facts.head_dim * attending,
        hidden_bytes=float(facts.hidden_size * _HALF),
        scheme=facts.stored.scheme,
    )


def head_work(target: Work) -> Work:
    """What a speculation head (EAGLE, MTP) costs: a layer of the target's, and its vocabulary."""
    layers = target.layers
    one: dict[str, Any] = {name: getattr(target, name) / layers for name in _OF_LAYERS}
    kv = tuple((width / layers, window) for width, window in target.kv_bytes)
    return replace(target, layers=1, stages=1, kv_bytes=kv, state_bytes=0.0, **one)


def _experts(facts: ModelFacts) -> tuple[float, float, float]:
    """Parameters of all routed experts, the share of them that one token uses, and their layers."""
    total, active = facts.expert_parameters, facts.active_parameters
    if not total or active is None:
        return 0.0, 1.0, 0.0
    idle = facts.parameters - active
    one_layer = 3 * (facts.experts or 1) * facts.hidden_size * facts.intermediate_size
    return float(total), max(1 - idle / total, 0.0), min(total / one_layer, facts.layers)
