"""Advice before a run: settings that work but cost something. It never stops a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from whet.core.provenance import Device
from whet.core.records.engine import Variant
from whet.core.records.model import ModelFacts
from whet.predict.settings import DEFAULT_UTILIZATION, Settings, read_settings

_HIGH_UTILIZATION: Final = 0.93
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


GRAPHS_OF_EXPERTS: Final = (("max_num_batched_tokens", 2048), ("max_cudagraph_capture_size", 2048))
"""Every step of a mixture of experts fits a CUDA graph, those with a prompt too."""


def advise(
    variant: Variant, *, target: ModelFacts, device: Device, traffic: Traffic
) -> tuple[str, ...]:
    """One sentence, with the fix, per setting that works but costs something."""
    settings = read_settings(variant, target=target, device=device)
    return (*_engine_advice(settings, device, traffic), *_cold(variant))


def fitting_length(traffic: Traffic) -> int | None:
    """The ``max_model_len`` that is enough, in steps of 128; None where the traffic is not known.

    A tenth above the p99 of requests, and never below the longest.
    """
    if traffic.p99_tokens is None or traffic.longest_tokens is None:
        return None
    least = max(math.ceil(traffic.p99_tokens * _HEADROOM), traffic.longest_tokens)
    return math.ceil(least / _STEP) * _STEP


def _engine_advice(settings: Settings, device: Device, traffic: Traffic) -> Iterator[str]:
    if device.kind == "cuda" and settings.utilization > _HIGH_UTILIZATION:
        yield (
            f"gpu_memory_utilization {settings.utilization:g} leaves little room for peaks of "
            f"activations; set it to {DEFAULT_UTILIZATION:g} unless it was tried under full load"
        )
    enough, length = fitting_length(traffic), settings.max_model_len
    if enough is not None and length >= _FAR * enough:
        yield (
            f"max_model_len {length:,}, while 99 in 100 requests fit {traffic.p99_tokens:,} "
            f"tokens: set it to {enough:,}, which holds the longest too"
        )
    if settings.max_seqs * settings.data_parallel < traffic.largest_batch:
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
