"""Replay prompts on a real server, and compare its prefix cache counters with a prediction."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.checkpoint import locate
from whet.core.counters import PREFIX_HITS, PREFIX_QUERIES
from whet.core.errors import EngineStartError, MeasurementError
from whet.core.load import Load
from whet.core.protocols import Observer, Server
from whet.core.provenance import find_device
from whet.core.records.hits import HitTokens, ReplayResult
from whet.core.records.load import PlannedRequest, TrialRecord
from whet.core.spec import EngineSpec
from whet.core.units import human_duration, ns_to_s
from whet.engines import get_profile
from whet.engines.starved import watched
from whet.flow.serving import CannotServe, plain_variant, resolve_alone, trial_on
from whet.levers.counters import counter_change
from whet.load import TrialPlan
from whet.load.plan import Workload, describe_requests, to_call

_AGREES: Final = 0.01
_CPU_POOL_GIB: Final = "2"

Ids = NDArray[np.int32]
Predict = Callable[[Sequence[Ids], int | None], HitTokens]
"""The hits of prompts one after another in an empty cache of so many KV blocks."""


def replay_prompts(
    target: str,
    sets: Mapping[str, Sequence[Ids]],
    predict: Predict,
    *,
    block_size: int,
    log: Path,
    observer: Observer,
) -> tuple[ReplayResult, ...]:
    """Serve ``target`` in 16 bit and replay each set of prompts, one request at a time.

    ``log`` is the path of the server's log. Raises ``EngineError`` where that fails.
    """
    longest = max(len(ids) for prompts in sets.values() for ids in prompts)
    on_cpu, pool = find_device().kind == "cpu", get_profile(EngineSpec().name).cpu_pool_variable
    spec = EngineSpec(
        args={"block_size": block_size},
        env={pool: _CPU_POOL_GIB} if on_cpu and pool else {},
    )
    variant = plain_variant(locate(target), spec, max_model_len=longest + 1, eager=on_cpu)
    try:
        engine, resolved = resolve_alone(replace(variant, name="replay", prefix_cache=True), spec)
    except CannotServe as error:
        raise EngineStartError(f"the replay cannot be served here: {error}") from error
    observer.stage("verify", ", ".join(sets))
    with watched(engine.serve(resolved, log=log), observer.warn) as server:
        observer.note(f"ready in {human_duration(server.start.ready_s)}")
        facts = get_profile(resolved.engine).read_log(server.log_text())
        tokens = facts.kv_cache_tokens
        blocks = tokens // block_size - 1 if tokens else None
        return tuple(
            judge_replay(
                what,
                predict(prompts, blocks),
                replay(server, what, prompts, block_size),
            )
            for what, prompts in sets.items()
        )


def judge_replay(what: str, predicted: HitTokens, trial: TrialRecord) -> ReplayResult:
    """Compare with the server's counters; ``MeasurementError`` where it has none."""
    failed = [event for event in trial.requests if event.error is not None]
    if failed:
        raise MeasurementError(
            f"{len(failed)} of {len(trial.requests)} requests of the replay failed "
            f"({failed[0].error}: {failed[0].detail})",
            fix="see the server's log",
        )
    hits, queries = (counter_change(name, [trial]) for name in (PREFIX_HITS, PREFIX_QUERIES))
    if hits.delta is None or queries.delta is None:
        raise MeasurementError(
            f"the server has no prefix hit counters that whet knows ({hits.source})",
            fix="whet doctor lists the versions that do",
        )
    measured = HitTokens(prompt_tokens=round(queries.delta), hit_tokens=round(hits.delta))
    waits = [ns_to_s(e.chunk_ns[0] - e.sent_ns) for e in trial.requests if e.chunk_ns]
    return ReplayResult(
        what=what,
        requests=len(trial.requests),
        predicted=predicted,
        measured=measured,
        ttft_mean_s=sum(waits) / len(waits) if waits else None,
        differs=_differs(predicted, measured),
    )


def _differs(predicted: HitTokens, measured: HitTokens) -> str | None:
    if measured.prompt_tokens != predicted.prompt_tokens:
        return (
            f"the server counted {measured.prompt_tokens:,} prompt tokens and the log has "
            f"{predicted.prompt_tokens:,}: requests were preempted, or others used the server"
        )
    lost = predicted.hit_tokens - measured.hit_tokens
    if abs(lost) <= _AGREES * max(predicted.hit_tokens, 1):
        return None
    if lost > 0:
        return f"{lost:,} tokens fewer: blocks were evicted earlier than predicted"
    return f"{-lost:,} tokens more: the server had served such prompts before"


def replay(server: Server, what: str, prompts: Sequence[Ids], block_size: int) -> TrialRecord:
    """Send each prompt for one token, one at a time, with a new cache salt: a cold cache."""
    salt = f"whet-{secrets.token_hex(8)}"
    planned = [
        PlannedRequest(
            index=index,
            prompt_token_ids=tuple(ids.tolist()),
            max_tokens=1,
            prefix_id=None,
            shared_tokens=0,
        )
        for index, ids in enumerate(prompts)
    ]
    calls = tuple(replace(to_call(each), extra={"cache_salt": salt}) for each in planned)
    facts = describe_requests(planned, block_size=block_size, seed=0)
    plan = TrialPlan(
        variant=what,
        load=Load.at(1),
        trial=0,
        workload=Workload(requests=tuple(planned), facts=facts),
        calls=calls,
        workers=1,
    )
    return trial_on(server, plan)
