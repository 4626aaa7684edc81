"""Advice before a run: settings that work but cost something. It never stops a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from whet.core.flags import plain_args
from whet.core.provenance import Device
from whet.core.records.engine import Variant
from whet.core.records.model import ModelFacts
from whet.predict.settings import DEFAULT_UTILIZATION, Settings, read_settings

HIGH_UTILIZATION: Final = 0.93
_FAR: Final = 1.5
_HEADROOM: Final = 1.1
_STEP: Final = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What a run sends. Lengths are prompt and answer together, in tokens.

    ``largest_batch`` requests are in flight at most. 99 in 100 requests fit ``p99_tokens``, all
    that is ever sent fits ``longest_tokens``; None where that is not known.
    """

    largest_batch: int
    p99_tokens: int | None
    longest_tokens: int | None


_MANY: Final = 128
GRAPHS_OF_EXPERTS: Final = (("max_num_batched_tokens", 2048), ("max_cudagraph_capture_size", 2048))
"""Every step of a mixture of experts fits a CUDA graph, those with a prompt too."""


def advise(
    variant: Variant, *, target: ModelFacts, device: Device, traffic: Traffic
) -> tuple[str, ...]:
    """One sentence, with the fix, per setting that works but costs something."""
    settings = read_settings(variant, target=target, device=device)
    return (
        *_utilization(settings, device),
        *_length(settings, traffic),
        *_queue(settings, traffic),
        *_cold(variant),
        *_front_end(variant, device, traffic),
        *_graphs(variant, settings, device, traffic),
        *_prompts_of_experts(target, settings, device, traffic),
    )


def fitting_length(traffic: Traffic) -> int | None:
    """The ``max_model_len`` that is enough, in steps of 128; None where the traffic is not known.

    A tenth above the p99 of requests, and never below the longest.
    """
    if traffic.p99_tokens is None or traffic.longest_tokens is None:
        return None
    least = max(math.ceil(traffic.p99_tokens * _HEADROOM), traffic.longest_tokens)
    return math.ceil(least / _STEP) * _STEP


def far_beyond(length: int, enough: int) -> bool:
    """Whether ``max_model_len`` is so much more than enough that it is worth a warning."""
    return length >= _FAR * enough


def _utilization(settings: Settings, device: Device) -> Iterator[str]:
    if device.kind == "cuda" and settings.utilization > HIGH_UTILIZATION:
        yield (
            f"gpu_memory_utilization {settings.utilization:g} leaves little room for peaks of "
            f"activations; set it to {DEFAULT_UTILIZATION:g} unless it was tried under full load"
        )


def _length(settings: Settings, traffic: Traffic) -> Iterator[str]:
    enough = fitting_length(traffic)
    if enough is not None and far_beyond(settings.max_model_len, enough):
        yield (
            f"max_model_len {settings.max_model_len:,}, while 99 in 100 requests fit "
            f"{traffic.p99_tokens:,} tokens: set it to {enough:,}, which holds the longest too"
        )


def _queue(settings: Settings, traffic: Traffic) -> Iterator[str]:
    room = settings.max_seqs * settings.data_parallel
    if room < traffic.largest_batch:
        least = math.ceil(traffic.largest_batch / settings.data_parallel)
        yield (
            f"max_num_seqs {settings.max_seqs} × {settings.data_parallel} replicas: batch "
            f"{traffic.largest_batch} will queue, which counts in TTFT; set it to at least {least}"
        )


def _cold(variant: Variant) -> Iterator[str]:
    count = len(variant.loras)
    if variant.max_loras is not None and variant.max_loras < count:
        yield (
            f"max_loras {variant.max_loras} for {count} adapters: {count - variant.max_loras} at a "
            f"time are cold, and requests wait for their copy; set it to {count} to keep all warm"
        )


def _front_end(variant: Variant, device: Device, traffic: Traffic) -> Iterator[str]:
    """On one H100 (vLLM 0.26) three configurations ended at 11,000 pieces/s, a token each.

    On one H200 (0.33, answers of different lengths) four processes lost at 128: prompts then come
    one by one, and a step with a prompt in it has no full CUDA graph (results/h200-7b-testbed).
    """
    count = plain_args(variant).get("api_server_count", 1)
    if device.kind == "cuda" and traffic.largest_batch >= _MANY and count in (1, "1"):
        yield (
            "one API server process writes out some 11,000 pieces of text a second at most: for "
            f"{traffic.largest_batch} in flight measure api_server_count 4 too"
        )


def _graphs(
    variant: Variant, settings: Settings, device: Device, traffic: Traffic
) -> Iterator[str]:
    largest = settings.graph_tokens
    if device.kind != "cuda" or variant.speculation is None or not largest:
        return
    if variant.speculation.by_load:
        return
    tokens = traffic.largest_batch * (1 + variant.speculation.num_tokens)
    if tokens > largest:
        yield (
            f"a step of {traffic.largest_batch} requests with {variant.speculation.num_tokens} "
            f"proposals each has {tokens:,} tokens, more than vLLM's largest CUDA graph "
            f"({largest:,}): set max_cudagraph_capture_size to {tokens}, or speculate with fewer"
        )


def _prompts_of_experts(
    target: ModelFacts, settings: Settings, device: Device, traffic: Traffic
) -> Iterator[str]:
    """30B-A3B on four H100s, vLLM 0.33: such a step took 100 ms, and 20 in a graph.

    Throughput was 1.4, 1.7 and 1.3 times at 8, 64 and 192 in flight (results/x4-h100).
    """
    graph, longest = settings.graph_tokens, min(traffic.p99_tokens or 0, settings.batched_tokens)
    if device.kind == "cuda" and target.experts is not None and 0 < graph < longest:
        yield (
            "a step with a long prompt runs outside of CUDA graphs, whose largest has "
            f"{graph:,} tokens, which is slow for experts: measure "
            f"{' with '.join(f'{name} {size}' for name, size in GRAPHS_OF_EXPERTS)} too"
        )
