"""How many servers fit on the device next to one another, each with a KV pool for its load."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import psutil

from whet.core.errors import CheckpointError
from whet.core.load import Load
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.records.model import ModelFacts
from whet.core.store import RunStore
from whet.core.units import GIB
from whet.engines import get_profile
from whet.engines.memory import used_device_bytes
from whet.flow.run.plan import Engines, Plan
from whet.flow.run.traffic.workload import tokens_in_flight
from whet.predict.feasibility import longest_request, plan_variant
from whet.predict.memory import Demand
from whet.predict.settings import DEFAULT_UTILIZATION, Settings, read_settings

_MARGIN: Final = 1.25
"""Of the KV cache that a load needs: blocks of earlier requests stay for the prefix cache."""
_ON_GPU_BYTES: Final = 8 * GIB
"""For quantizing on a GPU: one layer, its calibration and CUDA's context."""
_MOST: Final = 4
_CORES_A_SERVER: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Bytes that one server takes of a device.

    ``pool`` is the KV pool that its start is given; None where the spec or the engine sizes it.
    ``alone`` says that it takes all that is free, so that nothing may be next to it.
    """

    total: int
    pool: int | None = None
    alone: bool = False


_ALONE: Final = Need(total=0, alone=True)


def most_at_once() -> int:
    """Return how many servers the host's cores start at the same time."""
    here = len(os.sched_getaffinity(0))
    return min(_MOST, here, 2 + max(0, here - 2) // _CORES_A_SERVER)


def free_bytes(plan: Plan) -> int:
    """Return what servers may take of each device; to be asked while none is up.

    On several GPUs all servers count on the first one.
    """
    if plan.device.kind == "cpu":
        return psutil.virtual_memory().available
    used = (used_device_bytes() or 0) if plan.device.count == 1 else 0
    return int(plan.device.memory_bytes * DEFAULT_UTILIZATION) - used


def quantizing_bytes(plan: Plan) -> int:
    """Return what quantizing takes of the device next to servers that start."""
    return 2 * plan.target.weight_bytes if plan.device.kind == "cpu" else _ON_GPU_BYTES


def need_of(plan: Plan, store: RunStore, resolved: ResolvedEngine, points: Sequence[Load]) -> Need:
    """Return what a server takes while it is measured at ``points``.

    Weights, activations, CUDA graphs and the process' context are those of the memory plan. The KV
    pool is for the largest of the loads; a rate may fill it with as many requests as run at once.
    """
    if resolved.url is not None:
        return Need(total=0)  # it has a device of its own
    variant = replace(resolved.variant, env=(*resolved.variant.env, *resolved.env))
    settings = read_settings(variant, target=plan.target, device=plan.device)
    try:
        memory = plan_variant(
            variant,
            target=plan.target,
            draft=store.get("models", "draft", ModelFacts),
            device=plan.device,
            spec=plan.spec,
            demand=_demand(plan, store, points, settings, variant),
        )
    except CheckpointError:
        return _ALONE  # its start says what is wrong
    fixed = memory.fixed_bytes
    if settings.kv_pool_bytes is not None:
        return Need(total=fixed + settings.kv_pool_bytes)
    pool = math.ceil(_MARGIN * (memory.required_bytes - fixed))
    if plan.device.kind == "cpu":
        return Need(total=fixed + pool)
    if get_profile(resolved.engine).sized_pool is None:
        return _ALONE
    pool = min(pool, memory.kv_pool_bytes)
    return Need(total=fixed + pool, pool=pool)


def _demand(
    plan: Plan, store: RunStore, points: Sequence[Load], settings: Settings, variant: Variant
) -> Demand:
    """Return the requests in flight with the tokens of each, as their sum is at the largest load.

    At rates as many as run at once, each as long as the longest.
    """
    if points and not any(point.is_open for point in points):
        largest = max(points)
        tokens = tokens_in_flight(plan, store, variant, largest)
        each = math.ceil(tokens / largest.slots)
        return Demand(max_batch=largest.slots, tokens_per_request=each)
    tokens = longest_request(plan.workload) or settings.max_model_len
    return Demand(
        max_batch=settings.max_seqs, tokens_per_request=min(tokens, settings.max_model_len)
    )


def as_started(
    plan: Plan, engines: Engines, resolved: ResolvedEngine, need: Need
) -> ResolvedEngine:
    """Return the variant as a search starts it: with the pool that it needs, and no other flag."""
    sized_pool = get_profile(resolved.engine).sized_pool
    if need.pool is None or sized_pool is None:
        return resolved
    variant, flags = resolved.variant, sized_pool(need.pool)
    others = tuple(
        (key, value)
        for key, value in variant.engine_args
        if key.lstrip("-").replace("-", "_") not in {*flags, "device_memory_utilization"}
    )
    sized = replace(variant, engine_args=(*others, *flags.items()))
    return engines(resolved.engine).resolve(sized, plan.spec.engine_of(variant.name))
