"""What a step of a model reads and computes on one device, from its facts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from whet.core.records import ModelFacts
from whet.predict.kv_blocks import kinds_of
from whet.predict.settings import Settings

_HALF = 2
"""Bytes of a 16-bit number: embeddings and the vocabulary head stay in 16 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Bytes and operations on one of the devices that share a replica.

    ``weight_bytes`` are read by every step, ``expert_bytes`` as far as tokens are routed to them:
    one token reads ``expert_share``. ``token_flops`` are those of the linear layers; the vocabulary
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


def work_of(facts: ModelFacts, settings: Settings) -> Work:
    """The work of a checkpoint as stored, divided by its tensor and pipeline parallelism."""
    devices = settings.tensor_parallel * settings.pipeline_parallel
    linear = facts.linear_parameters or facts.parameters - facts.vocab_size * facts.hidden_size
    experts, share = _experts(facts)
    byte = facts.stored.bits_per_weight / 8
    kinds = kinds_of(facts, settings)
    attending = sum(each.layers for each in kinds if not each.state)
    heads = facts.heads / settings.tensor_parallel
    return Work(
        layers=facts.layers // settings.pipeline_parallel,
        devices=devices,
        weight_bytes=(linear - experts) * byte / devices,
        expert_bytes=experts * byte / devices,
        expert_share=share,
        token_flops=2 * (linear - experts * (1 - share)) / devices,
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
    return replace(
        target,
        layers=1,
        weight_bytes=target.weight_bytes / layers,
        expert_bytes=target.expert_bytes / layers,
        token_flops=target.token_flops / layers,
        kv_bytes=tuple((width / layers, window) for width, window in target.kv_bytes),
        state_bytes=0.0,
        pair_flops=target.pair_flops / layers,
    )


def _experts(facts: ModelFacts) -> tuple[float, float]:
    """Parameters of all routed experts, and the share of them that one token uses."""
    total, active = facts.expert_parameters, facts.active_parameters
    if not total or active is None:
        return 0.0, 1.0
    idle = facts.parameters - active
    return float(total), max(1 - idle / total, 0.0)
