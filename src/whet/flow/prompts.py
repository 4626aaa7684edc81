"""``whet prompts``: what a log could share, and, asked to verify, what a real server finds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from whet.checkpoint import locate, read_facts
from whet.client import CompletionCall
from whet.core.counters import PREFIX_HITS, PREFIX_QUERIES
from whet.core.errors import CheckpointError, EngineStartError, MeasurementError, UsageError
from whet.core.protocols import Observer, Server
from whet.core.provenance import find_device
from whet.core.records import (
    EngineFacts,
    HitTokens,
    PlannedRequest,
    PrefillSpeed,
    PromptAnalysis,
    ReplayResult,
    RequestEvent,
    Scalar,
    TrialRecord,
    Variant,
)
from whet.core.records.evidence import Declared
from whet.core.spec import SIXTEEN_BIT, EngineSpec
from whet.core.store import RunStore
from whet.core.units import GIB, human_duration, ns_to_s
from whet.demo.spec import cpu_dtype
from whet.engines import get_engine, get_profile
from whet.flow.findings import read_kept
from whet.levers.counters import counter_change
from whet.load import TrialPlan, run_trial
from whet.load.plan import TEMPERATURE, Workload, describe_requests
from whet.plan import Demand, plan_memory
from whet.prefix.analyse import PromptQuestion, analyse
from whet.prefix.blocks import chain_hashes, most_hits
from whet.prefix.cache import PrefixCache
from whet.prefix.prepared import Prepared
from whet.prefix.render import Ids

_AGREES: Final = 0.01
_CPU_POOL_GIB: Final = "2"
_LEAST_POINTS: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyRequest:
    """How to replay: the log's first ``requests``, one at a time, on a server of the target.

    ``args`` are engine flags beyond what a replay needs. ``log`` is where the server's goes.
    """

    requests: int
    log: Path
    args: dict[str, Scalar]


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """What a finished run says of the machine: cache size, block size and prefill."""

    cache_blocks: int | None
    block_size: int | None
    speed: PrefillSpeed | None


def ask_prompts(
    question: PromptQuestion,
    observer: Observer,
    *,
    verify: VerifyRequest | None = None,
    speed: PrefillSpeed | None = None,
    watch: Callable[[Prepared], None] = lambda request: None,
) -> PromptAnalysis:
    """Analyse the log and, with ``verify``, replay its beginning as it is and mended.

    ``speed`` is prefill as a run measured it; a replay measures its own. ``watch`` gets each
    request as it is read. Raises what ``analyse`` raises, and ``EngineError`` where the server
    fails.
    """
    observer.stage("read", question.log.name)
    first: list[Prepared] = []
    limit = verify.requests if verify else 0

    def keep(request: Prepared) -> None:
        watch(request)
        if len(first) < limit:
            first.append(request)

    found = analyse(
        question, progress=lambda count: observer.progress("requests", count, 0), watch=keep
    )
    observer.note(f"{found.requests:,} requests, {found.hits.prompt_tokens:,} prompt tokens")
    if verify is None:
        return replace(found, speed=speed)
    replays, measured = _verify(question, first, verify, observer)
    return replace(found, replays=replays, speed=measured or speed)


def read_served(folder: Path) -> Served:
    """What the run directory ``folder`` holds: its cache, and its baseline's prefill."""
    store = RunStore.read(folder)
    facts, declared = store.all("facts", EngineFacts), store.all("declared", Declared)
    tokens = next((each.kv_cache_tokens for each in facts if each.kv_cache_tokens), None)
    told = next((dict(each.cache).get("block_size") for each in declared if each.cache), None)
    block = int(told) if told and told.isdigit() else None
    kept = read_kept(store)
    plain = kept.resolved.get(kept.spec.baseline)
    trials = kept.trials.get((kept.spec.baseline, 1), [])
    events = [event for trial in trials for event in trial.requests]
    if plain is None or plain.variant.prefix_cache or plain.variant.speculation is not None:
        events = []  # what was computed of a prompt is not known
    return Served(
        cache_blocks=tokens // block - 1 if tokens and block else None,
        block_size=block,
        speed=fit_prefill(events, source=f"{folder.name}, one request in flight"),
    )


def fit_prefill(events: Sequence[RequestEvent], *, source: str) -> PrefillSpeed | None:
    """TTFT = fixed + tokens computed × seconds a token, by least squares; None for too few.

    Events of one request in flight: more would add waiting.
    """
    points = [
        (
            event.prompt_tokens - (event.cached_tokens or 0),
            ns_to_s(event.chunk_ns[0] - event.sent_ns),
        )
        for event in events
        if event.error is None and event.prompt_tokens and event.chunk_ns
    ]
    if len({computed for computed, _ in points}) < _LEAST_POINTS:
        return None
    computed, seconds = np.array(points, dtype=np.float64).T
    slope, fixed = np.polyfit(computed, seconds, 1)
    if slope <= 0:
        return None
    return PrefillSpeed(s_per_token=float(slope), fixed_s=max(float(fixed), 0.0), source=source)


def _verify(
    question: PromptQuestion, first: Sequence[Prepared], wanted: VerifyRequest, observer: Observer
) -> tuple[tuple[ReplayResult, ...], PrefillSpeed | None]:
    engine = get_engine("vllm")
    longest = max(len(p.ids) for each in first for p in (each.sent, each.mended))
    spec = EngineSpec(args=_args(question, longest, wanted), env=_env())
    resolved = engine.resolve(_plain(locate(question.target), spec.args, spec.env), spec)
    if (reason := engine.unsupported(resolved)) is not None:
        raise EngineStartError(f"the replay cannot be served here: {reason}")
    observer.stage("verify", f"{len(first)} requests, as they are and mended")
    with engine.serve(resolved, log=wanted.log) as server:
        observer.note(f"ready in {human_duration(server.start.ready_s)}")
        facts = get_profile(resolved.engine).read_log(server.log_text())
        blocks = facts.kv_cache_tokens // question.block_size - 1 if facts.kv_cache_tokens else None
        replays, events = [], list[RequestEvent]()
        for what, prompts in (
            ("as it is", [each.sent.ids for each in first]),
            ("mended", [each.mended.ids for each in first]),
        ):
            predicted = predict(prompts, question.block_size, blocks)
            trial = replay(server, what, prompts, question.block_size)
            replays.append(judge_replay(what, predicted, trial))
            events += trial.requests
    told = f"the replay on {resolved.engine} {resolved.engine_version}, {resolved.device}"
    return tuple(replays), fit_prefill(events, source=told)


def predict(prompts: Sequence[Ids], block_size: int, blocks: int | None) -> HitTokens:
    """What an empty cache of ``blocks`` finds of prompts alone, one after another."""
    cache = PrefixCache()
    for ids in prompts:
        hashes = chain_hashes(ids, block_size)
        cache.touch(hashes, max_hits=most_hits(len(ids), block_size))
    hits = cache.hit_blocks if blocks is None else cache.hits_at(blocks)
    total = sum(map(len, prompts))
    return HitTokens(prompt_tokens=total, hit_tokens=hits * block_size)


def judge_replay(what: str, predicted: HitTokens, trial: TrialRecord) -> ReplayResult:
    """What the server's own counters say of a replay; ``MeasurementError`` where they cannot."""
    failed = [event for event in trial.requests if event.error is not None]
    if failed:
        raise MeasurementError(
            f"{len(failed)} of {len(trial.requests)} requests of the replay failed "
            f"({failed[0].error}: {failed[0].detail}); see the server's log"
        )
    hits, queries = (counter_change(name, [trial]) for name in (PREFIX_HITS, PREFIX_QUERIES))
    if hits.delta is None or queries.delta is None:
        raise MeasurementError(
            f"the server does not count prefix hits as whet knows it ({hits.source}); "
            "whet doctor says which versions do"
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
        return f"{lost:,} tokens fewer: blocks were evicted that the prediction kept"
    return f"{-lost:,} tokens more: the server had served such prompts before"


def replay(server: Server, what: str, prompts: Sequence[Ids], block_size: int) -> TrialRecord:
    """Send each prompt for one token, one at a time; a salt of its own keeps the cache empty."""
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
    calls = tuple(
        CompletionCall(
            prompt_token_ids=each.prompt_token_ids,
            max_tokens=1,
            temperature=TEMPERATURE,
            ignore_eos=True,
            extra={"skip_special_tokens": False, "cache_salt": salt},
        )
        for each in planned
    )
    facts = describe_requests(planned, block_size=block_size, seed=0)
    plan = TrialPlan(
        variant=what,
        batch_size=1,
        trial=0,
        workload=Workload(requests=tuple(planned), facts=facts),
        calls=calls,
        workers=1,
    )
    return run_trial(
        server.base_url,
        server.model_name,
        plan=plan,
        memory=lambda: None,
        alive=server.ensure_alive,
    )


def _plain(target: Path, args: Mapping[str, Scalar], env: Mapping[str, str]) -> Variant:
    """A 16-bit server with prefix caching."""
    return Variant(
        name="replay",
        weights=SIXTEEN_BIT,
        scheme=SIXTEEN_BIT,
        model_path=str(target),
        speculation=None,
        prefix_cache=True,
        engine_args=tuple(args.items()),
        env=tuple(env.items()),
    )


def _args(question: PromptQuestion, longest: int, wanted: VerifyRequest) -> dict[str, Scalar]:
    args: dict[str, Scalar] = {
        "max_model_len": longest + 1,
        "block_size": question.block_size,
        "enable_prompt_tokens_details": True,
    }
    if find_device().kind == "cpu":
        args["enforce_eager"] = True
        if (dtype := cpu_dtype()) != "auto":
            args["dtype"] = dtype
    return {**args, **wanted.args}


def _env() -> dict[str, str]:
    return {"VLLM_CPU_KVCACHE_SPACE": _CPU_POOL_GIB} if find_device().kind == "cpu" else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSize:
    """How large the cache is, said in one of three ways; none leaves it to the memory plan."""

    tokens: int | None = None
    gib: float | None = None
    served: Served | None = None


def find_cache_blocks(size: CacheSize, *, target: Path, block_size: int) -> int | None:
    """KV blocks of the cache: as given, as a run's server had it, or as planned for this machine.

    None where nothing is known: the model's folder has no weights to plan with.
    """
    if size.tokens is not None and size.gib is not None:
        raise UsageError("give the cache's size once: --cache-tokens or --cache-gib")
    tokens = size.tokens
    if size.gib is not None:
        tokens = int(size.gib * GIB // read_facts(target).kv_bytes_per_token)
    if tokens is None and size.served is not None:
        return size.served.cache_blocks
    if tokens is None:
        tokens = _planned_tokens(target)
    if tokens is None:
        return None
    if tokens < block_size:
        raise UsageError(
            f"a cache of {tokens} tokens holds no block of {block_size}; give a larger one"
        )
    return tokens // block_size - 1


def _planned_tokens(target: Path) -> int | None:
    """The KV tokens of a plain 16-bit server here, by the memory plan."""
    try:
        facts = read_facts(target)
        plan = plan_memory(
            _plain(target, {}, {}),
            target=facts,
            served=facts,
            draft=None,
            device=find_device(),
            demand=Demand(max_batch=1, tokens_per_request=1),
        )
    except (CheckpointError, UsageError):
        return None
    return plan.kv_tokens or None
