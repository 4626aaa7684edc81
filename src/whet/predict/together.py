"""Whether servers that come up together fit on one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import psutil

from whet.core.provenance import Device
from whet.core.records.plan import MemoryPlan
from whet.core.units import human_bytes


def group_memory_warnings(
    groups: Sequence[Sequence[str]], plans: Mapping[str, MemoryPlan], device: Device
) -> Iterator[str]:
    """Yield one sentence per group of ``load.together`` that needs more memory than is available.

    With an explicit KV pool size a server uses exactly its need, otherwise its whole budget.
    ``plans`` are by variant; a group with a member without a plan is skipped. The need is an
    estimate, made for one server at a time (``plan_memory``), so this is advice.
    """
    there = device.memory_bytes
    if device.kind == "cpu":
        there = psutil.virtual_memory().available
    for group in groups:
        members = [plans.get(name) for name in group]
        known = [plan for plan in members if plan is not None]
        needed = sum(_taken(plan) for plan in known)
        if len(known) == len(group) and needed > there:
            yield (
                f"{', '.join(group)}: they come up together (load.together) and need about "
                f"{human_bytes(needed)} of {human_bytes(there)}: take fewer into the group, or "
                "give each a KV cache of its own size (kv_cache_memory_bytes, "
                "VLLM_CPU_KVCACHE_SPACE on a CPU)"
            )


def _taken(plan: MemoryPlan) -> int:
    fixed = plan.weight_bytes + (plan.draft_weight_bytes or 0) + plan.activation_bytes
    return fixed + plan.kv_pool_bytes
