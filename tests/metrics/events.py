"""Events and trials with figures that are known in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.scripted_server import ordinary
from whet.core.load import Load
from whet.core.records.load import ClientHealth, Counters, RequestEvent, TrialRecord

MS = 1_000_000
HEALTHY = ClientHealth(
    dispatch_delay_p99_ns=0, loop_lag_p99_ns=0, cpu_share=0.1, valid=True, reason=None
)


def event(
    *,
    start_ms: float = 0,
    ttft_ms: float = 10,
    gap_ms: float = 5,
    pieces: int = 5,
    tokens: int | None = 5,
    index: int = 0,
    late_ms: float = 0,
) -> RequestEvent:
    """``pieces`` of output: the first ``ttft_ms`` after ``start_ms``, then one a ``gap_ms``."""
    at = [start_ms + ttft_ms + i * gap_ms for i in range(pieces)]
    return RequestEvent(
        index=index,
        prefix_id=None,
        scheduled_ns=round(start_ms * MS),
        sent_ns=round((start_ms + late_ms) * MS),
        chunk_ns=tuple(round(t * MS) for t in at),
        ended_ns=round(at[-1] * MS),
        prompt_tokens=3,
        output_tokens=tokens,
        cached_tokens=None,
        finish_reason="length",
        text=ordinary(pieces, index),
    )


def failed(*, start_ms: float = 0, word: str = "timeout") -> RequestEvent:
    return replace(event(start_ms=start_ms), error=word, detail="scripted", chunk_ns=())


def steady(count: int, *, slots: int = 1, scale: float = 1.0) -> list[RequestEvent]:
    """A closed loop without a pause: each of ``slots`` sends 5 tokens in 30 ms × ``scale``."""
    return [
        event(start_ms=30 * scale * (i // slots), ttft_ms=10 * scale, gap_ms=5 * scale, index=i)
        for i in range(count)
    ]


def trial(
    events: Sequence[RequestEvent],
    *,
    number: int = 0,
    variant: str = "fp16",
    load: Load = Load.at(1),  # noqa: B008 (frozen)
    before: dict[str, float] | None = None,
    after: dict[str, float] | None = None,
) -> TrialRecord:
    def counters(values: dict[str, float] | None) -> Counters | None:
        return None if values is None else Counters(taken_ns=0, values=tuple(values.items()))

    return TrialRecord(
        variant=variant,
        load=load,
        trial=number,
        status="complete",
        workload_sha256="0" * 64,
        started_at="2026-01-01T00:00:00+00:00",
        window_start_ns=0,
        window_end_ns=max((e.ended_ns for e in events), default=0),
        requests=tuple(events),
        excluded_warmup=20,
        counters_before=counters(before),
        counters_after=counters(after),
        memory_bytes=2_500_000_000,
        health=HEALTHY,
    )
