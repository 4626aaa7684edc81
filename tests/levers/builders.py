"""Records for the evidence tests, every value plain."""

from __future__ import annotations

from tests import records
from whet.core.load import Load
from whet.core.records.engine import ResolvedEngine, Speculation
from whet.core.records.load import ClientHealth, Counters, RequestEvent, TrialRecord, WorkloadFacts

DRAFT = Speculation(method="draft_model", num_tokens=4, draft_path="/draft")


def resolved(
    *, scheme: str = "W4A16", speculation: Speculation | None = None, prefix_cache: bool = False
) -> ResolvedEngine:
    made = records.variant(
        weights="awq", scheme=scheme, speculation=speculation, prefix_cache=prefix_cache
    )
    return records.resolved(made)


def counters(**values: float) -> Counters:
    """``queries=5`` stands for ``vllm:prefix_cache_queries_total`` and so on."""
    names = {
        "drafts": "vllm:spec_decode_num_drafts_total",
        "drafted": "vllm:spec_decode_num_draft_tokens_total",
        "accepted": "vllm:spec_decode_num_accepted_tokens_total",
        "queries": "vllm:prefix_cache_queries_total",
        "hits": "vllm:prefix_cache_hits_total",
        "generated": "vllm:generation_tokens_total",
    }
    return Counters(taken_ns=0, values=tuple((names[key], v) for key, v in values.items()))


def trial(
    before: Counters | None,
    after: Counters | None,
    *,
    status: str = "complete",
    requests: int = 20,
    warmup: int = 20,
    sha256: str = "w",
) -> TrialRecord:
    event = RequestEvent(
        index=0,
        prefix_id=None,
        scheduled_ns=0,
        sent_ns=0,
        chunk_ns=(1,),
        ended_ns=2,
        prompt_tokens=10,
        output_tokens=2,
        cached_tokens=None,
        finish_reason="length",
        text="x",
    )
    health = ClientHealth(
        dispatch_delay_p99_ns=0, loop_lag_p99_ns=0, cpu_share=0.0, valid=True, reason=None
    )
    return TrialRecord(
        variant="v",
        load=Load.at(4),
        trial=0,
        status=status,
        workload_sha256=sha256,
        started_at="",
        window_start_ns=0,
        window_end_ns=1,
        requests=(event,) * requests,
        excluded_warmup=warmup,
        counters_before=before,
        counters_after=after,
        memory_bytes=None,
        health=health,
    )


def workload(expected: float = 0.6, *, sha256: str = "w") -> WorkloadFacts:
    return records.workload(sha256=sha256, expected_hit_rate=expected)
