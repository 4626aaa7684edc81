"""What a trial will send, as values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whet.client import CompletionCall
from whet.core.load import Load
from whet.core.records.load import Loop, PlannedRequest, WorkloadFacts
from whet.load.sharing import TokenIds, ideal_hit_rate, shared_tokens

TEMPERATURE = 0.0
"""Greedy, so that every variant is asked for the same continuation of the same prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """Which repetition is drawn, and how much of it.

    The unique parts are fresh for every (``load``, ``trial``) pair: one server measures many
    cells, and a prompt that comes twice would be answered from the last cell's cache.
    ``block_size`` is the engine's tokens a KV block, for the expected hit rate. ``warmup`` other
    requests are sent first and not timed. ``attempt`` makes the unique parts fresh on a server that
    may hold those of an earlier attempt.
    """

    requests: int
    load: Load
    trial: int
    block_size: int
    warmup: int = 0
    attempt: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Requests and their make-up, locked by ``facts.sha256`` across variants."""

    requests: tuple[PlannedRequest, ...]
    facts: WorkloadFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLoad:
    """What one run sends. ``calls`` None are the token ids of the requests themselves."""

    workload: Workload
    calls: tuple[CompletionCall, ...] | None = None
    warmup: tuple[PlannedRequest, ...] = ()
    warmup_calls: tuple[CompletionCall, ...] | None = None
    offsets_ns: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialPlan(PlannedLoad):
    """One timed repetition of a cell. ``warmup`` is sent first, at the same concurrency.

    ``loop`` is ``closed`` (``load.slots`` in flight), ``static`` (batches of ``load.slots``, each
    waits for its slowest) or ``open``: requests leave at ``offsets_ns`` and ``load.slots`` caps how
    many are in flight, 0 for no cap. ``calls`` and ``warmup_calls`` are what is sent where it is
    not the token ids of the requests. ``workers`` is how many processes send, None for
    as many as the warm-up shows to be needed. ``counter_names`` map an engine's own counters to
    those of ``core.counters``; without ``require_counters`` a server whose ``/metrics`` fails is
    measured all the same. ``device`` is the server's: ``cpu`` or ``cuda`` of this machine, where
    disturbances are looked for; ``remote`` or None for a server that this process did not start.
    ``tokenizer`` counts the tokens of answers that come without usage.
    """

    variant: str
    load: Load
    trial: int
    request_timeout_s: float = 120.0
    loop: Loop = "closed"
    workers: int | None = None
    counter_names: tuple[tuple[str, str], ...] = ()
    require_counters: bool = True
    device: str | None = None
    tokenizer: Path | None = None

    @property
    def connections(self) -> int:
        """The most sockets that it can need."""
        return self.load.slots or len(self.workload.requests)


def to_call(request: PlannedRequest) -> CompletionCall:
    """The call that a planned request stands for."""
    return CompletionCall(
        prompt_token_ids=request.prompt_token_ids,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        ignore_eos=True,
    )


def with_fields(plan: TrialPlan, fields: Mapping[str, Any]) -> TrialPlan:
    """The plan with ``fields`` in the body of each call; None leaves one out."""
    if not fields:
        return plan

    def sent(
        calls: Iterable[CompletionCall] | None, requests: Iterable[PlannedRequest]
    ) -> tuple[CompletionCall, ...]:
        calls = map(to_call, requests) if calls is None else calls
        return tuple(replace(call, extra={**call.extra, **fields}) for call in calls)

    return replace(
        plan,
        calls=sent(plan.calls, plan.workload.requests),
        warmup_calls=sent(plan.warmup_calls, plan.warmup),
    )


def hash_requests(requests: Iterable[PlannedRequest]) -> str:
    """sha256 over everything that is sent, in order; the model's name alone is left out."""
    digest = hashlib.sha256()
    for request in requests:
        body = to_call(request).body(model=None, stream=True)
        digest.update(json.dumps(body, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def describe_requests(
    requests: Sequence[PlannedRequest], *, block_size: int, seed: int
) -> WorkloadFacts:
    """The make-up of requests that were drawn, by their own ``prefix_id`` and shared tokens."""
    count = len(requests)
    inputs = sum(len(request.prompt_token_ids) for request in requests)
    outputs = sum(request.max_tokens for request in requests)
    named = [request.prefix_id for request in requests if request.prefix_id is not None]
    return WorkloadFacts(
        sha256=hash_requests(requests),
        requests=count,
        shared_prefix_share=len(named) / count,
        long_system_share=0.0,  # no pool of long and short system prompts is in play
        shared_prefixes=len(set(named)),
        input_tokens_mean=inputs / count,
        output_tokens_mean=outputs / count,
        input_output_ratio=inputs / outputs,
        block_size=block_size,
        expected_hit_rate=sum(request.shared_tokens for request in requests) / inputs,
        seed=seed,
    )


def plan_requests(
    prompts: Sequence[TokenIds],
    outputs: Sequence[int],
    *,
    block_size: int,
    warm: Sequence[TokenIds] = (),
    prefix_ids: Sequence[str | None] | None = None,
    temperature: float = TEMPERATURE,
) -> tuple[PlannedRequest, ...]:
    """Requests of known prompts, with what each shares with another or with a ``warm`` one.

    Without ``prefix_ids``, those that share their first block have one.
    """
    shared = shared_tokens(prompts, warm=warm, block_size=block_size)
    if prefix_ids is None:
        pairs = zip(prompts, shared, strict=True)
        starts = [ids[:block_size] if tokens else () for ids, tokens in pairs]
        numbers = {start: n for n, start in enumerate(dict.fromkeys(filter(None, starts)))}
        prefix_ids = [f"found-{numbers[start]}" if start else None for start in starts]
    return tuple(
        PlannedRequest(
            index=index,
            prompt_token_ids=ids,
            max_tokens=output,
            prefix_id=prefix,
            shared_tokens=tokens,
            temperature=temperature,
        )
        for index, (ids, output, prefix, tokens) in enumerate(
            zip(prompts, outputs, prefix_ids, shared, strict=True)
        )
    )


def cold_workload(
    prompts: Sequence[TokenIds], outputs: Sequence[int], *, block_size: int, seed: int
) -> Workload:
    """A workload whose expected hit rate is that of an empty cache, in this order."""
    requests = plan_requests(prompts, outputs, block_size=block_size)
    facts = describe_requests(requests, block_size=block_size, seed=seed)
    cold = ideal_hit_rate(prompts, block_size=block_size)
    return Workload(requests=requests, facts=replace(facts, expected_hit_rate=cold))
