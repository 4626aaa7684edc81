"""Whether a variant fits: weights, activations and KV cache against the device's memory.

GPU: ``KV = memory × utilization − weights − activations − CUDA graphs``, as vLLM sizes its pool.
CPU: ``VLLM_CPU_KVCACHE_SPACE`` is the pool, and everything together must fit the free RAM.
The pool is counted in blocks; ``kv_blocks`` says how many of them a request takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from whet.core.flags import CPU_KV_ENV
from whet.core.provenance import Device
from whet.core.records.engine import Variant
from whet.core.records.model import ModelFacts
from whet.core.records.plan import MemoryPlan
from whet.core.units import GIB, human_bytes
from whet.predict.kv_blocks import Pool, growing_bytes, kinds_of, share_pool
from whet.predict.settings import LARGEST_GRAPH, Settings, read_settings

_GPU_RUNTIME_BYTES: Final = 1 * GIB  # CUDA context and libraries, graphs of up to 512 tokens
_GRAPH_COPIES: Final = 20
"""Of a layer's tensors at 16 bits, what graphs keep for each token beyond 512 of the longest: with
it the estimate is within 5% of 33 configurations of a 7B shape on an H100 (vLLM 0.26)."""
_CPU_RUNTIME_BYTES: Final = 2 * GIB  # two Python processes with torch, compiled kernels


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """The load of a run: requests in flight, and tokens of each (prompt and answer).

    ``free_bytes`` is the memory that is free now; None asks the system on a CPU and takes a GPU to
    be empty.
    """

    max_batch: int
    tokens_per_request: int
    free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    """Bytes on one device. ``limit`` is what the engine may take, ``free`` what is free now."""

    weights: int
    draft: int | None
    activation: int
    per_token: int
    kv: Pool
    limit: int
    free: int | None

    @property
    def fixed(self) -> int:
        """Everything but the KV cache."""
        return self.weights + (self.draft or 0) + self.activation


def plan_memory(
    variant: Variant,
    *,
    target: ModelFacts,
    stored: ModelFacts,
    draft: ModelFacts | None,
    device: Device,
    demand: Demand,
) -> MemoryPlan:
    """Whether ``variant`` fits on ``device``, and the numbers with which it would.

    ``target`` gives the shape, ``stored`` the weights as stored; ``draft`` counts only where the
    variant speculates with it. Activations are an allowance (``activation_bytes``): the engine's
    own start-up log has the true figure. Lengths are rounded up to whole KV blocks.
    """
    settings = read_settings(variant, target=target, device=device)
    helper = draft if variant.speculation and variant.speculation.method == "draft_model" else None
    sizes = _sizes(variant, settings, (target, stored, helper), device, demand)
    needs = _needs(variant, settings, sizes.kv, demand)
    needed_bytes = needs.blocks * sizes.kv.block_bytes
    explicit = settings.kv_pool_bytes
    pool = max(sizes.limit - sizes.fixed, 0) if explicit is None else explicit
    blocks = pool // sizes.kv.block_bytes
    reason = _reason(settings, sizes, pool=pool, needed=needed_bytes, device=device)
    plan = MemoryPlan(
        variant=variant.name,
        limit_bytes=sizes.limit,
        weight_bytes=sizes.weights,
        draft_weight_bytes=sizes.draft,
        activation_bytes=sizes.activation,
        kv_pool_bytes=pool,
        kv_bytes_per_token=sizes.per_token,
        kv_tokens=blocks * needs.tokens // needs.blocks,
        max_model_len=settings.max_model_len,
        tokens_needed=needs.tokens,
        required_bytes=sizes.fixed + max(needed_bytes, explicit or 0),
        fits=reason is None and blocks >= needs.blocks,
        fit_max_model_len=sizes.kv.longest(blocks, in_flight=settings.in_flight) or None,
        fit_batch_size=settings.data_parallel
        * max((blocks - needs.prefill) // needs.request_blocks, 0)
        or None,
        reason=reason,
        kv_request_bytes=(needs.request_blocks + needs.prefill) * sizes.kv.block_bytes,
    )
    if reason is not None or plan.fits:
        return plan
    many = f"batch {demand.max_batch} of {needs.request} tokens each"
    if settings.data_parallel > 1:
        many += f", divided among {settings.data_parallel} engines"
    setting = CPU_KV_ENV if device.kind == "cpu" else "gpu_memory_utilization"
    return replace(plan, reason=_too_few_tokens(plan, many, demand, setting))


def activation_bytes(facts: ModelFacts, settings: Settings) -> int:
    """An allowance for the largest step: twice its layer's tensors at 16 bits, plus the logits.

    Twice, because temporaries need as much again: for a 4-bit 7B shape on an H100 (8192 tokens a
    step) this gives 1.8 GiB before logits where vLLM 0.26 reports 1.74 GiB in all.
    """
    width = _layer_numbers(facts, settings)
    factor = 2 if settings.float32 else 1
    logits = settings.max_seqs * facts.vocab_size * 4
    return 2 * settings.batched_tokens * width * 2 * factor + logits


def _layer_numbers(facts: ModelFacts, settings: Settings) -> int:
    """Numbers that a layer's tensors have of one token."""
    return 4 * facts.hidden_size + 3 * facts.intermediate_size // settings.tensor_parallel


def graph_bytes(facts: ModelFacts, settings: Settings) -> int:
    """What CUDA graphs of more than 512 tokens keep."""
    more = max(settings.graph_tokens - LARGEST_GRAPH, 0)
    return _GRAPH_COPIES * more * _layer_numbers(facts, settings) * 2


def loaded_bytes(facts: ModelFacts, settings: Settings) -> int:
    """Weight bytes a device once loaded: 32-bit weights are cast to 16 unless float32 is set.

    Layers for multi-token prediction are not loaded. Data parallel engines share routed experts.
    """
    factors = {("32bit", False): 0.5, ("16bit", True): 2.0}
    factor = factors.get((facts.stored.scheme, settings.float32), 1.0)
    split = settings.tensor_parallel * settings.pipeline_parallel
    experts = (facts.expert_parameters or 0) * facts.stored.bits_per_weight / 8
    elsewhere = experts * (1 - 1 / settings.data_parallel)
    return math.ceil((facts.weight_bytes - facts.mtp_bytes - elsewhere) * factor / split)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Needs:
    """KV of the demand: tokens and blocks of one request and of everything.

    ``prefill`` are the blocks that a long prompt takes beyond those of its decoding.
    """

    request: int
    tokens: int
    request_blocks: int
    prefill: int
    blocks: int


def _needs(variant: Variant, settings: Settings, kv: Pool, demand: Demand) -> _Needs:
    """What the largest batch takes, or one request of full length if that is more.

    Proposed tokens are written before they are judged, so each request has K more.
    """
    block, flight = settings.block_tokens, settings.in_flight
    batch = math.ceil(demand.max_batch / settings.data_parallel)
    lookahead = variant.speculation.num_tokens if variant.speculation else 0
    request = _round_up(demand.tokens_per_request + lookahead, block)
    longest = _round_up(settings.max_model_len, block)
    blocks = kv.blocks(request, in_flight=1 + lookahead)
    prefill = kv.blocks(request, in_flight=flight) - blocks
    return _Needs(
        request=request,
        tokens=max(batch * request, longest),
        request_blocks=blocks,
        prefill=prefill,
        blocks=max(batch * blocks + prefill, kv.blocks(longest, in_flight=flight)),
    )


def _helper_bytes(variant: Variant, target: ModelFacts, settings: Settings) -> int | None:
    """What a head (EAGLE, Medusa) or the target's own MTP layers store; their KV is small."""
    if variant.speculation is None:
        return None
    if variant.speculation.method == "mtp" and target.mtp_bytes:
        return math.ceil(target.mtp_bytes / settings.tensor_parallel)
    if variant.speculation.draft_path is None:
        return None
    files = Path(variant.speculation.draft_path).glob("*.safetensors")
    return sum(file.stat().st_size for file in files) or None


def _sizes(
    variant: Variant,
    settings: Settings,
    models: tuple[ModelFacts, ModelFacts, ModelFacts | None],
    device: Device,
    demand: Demand,
) -> _Sizes:
    target, stored, draft = models
    free = demand.free_bytes
    if free is None and device.kind == "cpu":
        free = psutil.virtual_memory().available
    # A pool of a stated size is taken as it is, and the utilization then bounds nothing. On a CPU
    # the pool is always stated in the end: where it is not known here, free memory is the bound.
    unbound = settings.kv_pool_bytes is not None or device.kind == "cpu"
    whole = free if free is not None else device.memory_bytes
    runtime = _CPU_RUNTIME_BYTES if device.kind == "cpu" else _GPU_RUNTIME_BYTES
    whole_draft = replace(settings, pipeline_parallel=1)  # a draft is not cut into stages
    graphs = graph_bytes(target, settings) if device.kind == "cuda" else 0
    kinds = kinds_of(target, settings) + ([] if draft is None else kinds_of(draft, whole_draft))
    states = target.states.cached if target.states and variant.prefix_cache else 1
    states += variant.speculation.num_tokens if variant.speculation else 0
    helper = _helper_bytes(variant, stored, settings)
    return _Sizes(
        weights=loaded_bytes(stored, settings),
        draft=helper if draft is None else loaded_bytes(draft, whole_draft),
        activation=activation_bytes(target, settings) + graphs + runtime,
        per_token=growing_bytes(kinds),
        kv=share_pool(kinds, block=settings.block_tokens, states=states),
        limit=whole if unbound else int(device.memory_bytes * settings.utilization),
        free=free,
    )


def _reason(
    settings: Settings, sizes: _Sizes, *, pool: int, needed: int, device: Device
) -> str | None:
    """Why it cannot start at any load, with the fix; None if it can."""
    if sizes.fixed >= sizes.limit:
        return (
            f"weights ({human_bytes(sizes.weights + (sizes.draft or 0))}) and working memory "
            f"({human_bytes(sizes.activation)}) leave no room for a KV cache in the "
            f"{human_bytes(sizes.limit)} that the engine may take; it needs "
            f"{human_bytes(sizes.fixed + needed)}: use a larger device, or weights of fewer bits"
        )
    if sizes.free is not None and sizes.limit > sizes.free:
        most = math.floor(100 * sizes.free / device.memory_bytes) / 100
        return (
            f"gpu_memory_utilization {settings.utilization:g} asks for {human_bytes(sizes.limit)}, "
            f"but only {human_bytes(sizes.free)} are free; set it to {most}, or end what else uses "
            "the memory"
        )
    if sizes.fixed + pool > sizes.limit:
        setting = CPU_KV_ENV if device.kind == "cpu" else "kv_cache_memory_bytes"
        room = human_bytes(sizes.limit - sizes.fixed)
        return (
            f"a KV pool of {human_bytes(pool)} beside {human_bytes(sizes.fixed)} of weights and "
            f"working memory is more than the {human_bytes(sizes.limit)} that are free; "
            f"set {setting} to at most {room}"
        )
    return None


def _too_few_tokens(plan: MemoryPlan, many: str, demand: Demand, setting: str) -> str:
    """Which demand the KV pool does not meet, and each setting that would fix it."""
    fixes = []
    if (plan.fit_max_model_len or 0) < plan.max_model_len:
        fixes.append(f"set max_model_len to at most {plan.fit_max_model_len or 0}")
    if plan.fit_batch_size and plan.fit_batch_size < demand.max_batch:
        fixes.append(f"keep concurrencies to at most {plan.fit_batch_size}")
    fixes.append(f"give the KV cache more memory ({setting})")
    return (
        f"{plan.kv_tokens} tokens of KV cache fit, but {plan.tokens_needed} are needed ({many}; "
        f"max_model_len {plan.max_model_len}); " + ", or ".join(fixes)
    )


def _round_up(tokens: int, block: int) -> int:
    return math.ceil(tokens / block) * block
