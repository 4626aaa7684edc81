"""What a long prefill does to short requests: their TTFT and their stalls, with it and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from whet.core.records import Estimate, HeadOfLineRecord, RequestEvent
from whet.core.units import NS_PER_MS
from whet.metrics.estimates import quantile_estimate
from whet.metrics.quantiles import clustered_quantile
from whet.metrics.requests import request_figures
from whet.metrics.usable import trial_problem

Stretch = tuple[int, int]
"""From when to when, ns since the trial began."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """Short requests on one side of the line: during a long prefill, or without one. In ms.

    ``stall_p50_ms`` is the median over stretches of time of the longest gap that a running stream
    suffered in each, ``stall_max_ms`` the longest gap of all.
    """

    requests: int
    ttft_p50_ms: Estimate | None
    ttft_p95_ms: Estimate | None
    stall_p50_ms: Estimate | None
    stall_max_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadOfLineFigures:
    """Both sides, and the long requests' own TTFT.

    ``problem`` says why there is no figure (all are None then). ``errors`` counts failed requests
    of both kinds.
    """

    variant: str
    without: Side
    during: Side
    long_ttft_p50_ms: Estimate | None
    longs: int
    errors: int
    problem: str | None = None


def head_of_line_figures(record: HeadOfLineRecord) -> HeadOfLineFigures:
    """The figures of one record.

    A short request belongs to ``during`` if it was due while a long prompt was between its send and
    its first token, whatever its own wait: to ask whether the wait overlaps a prefill would put
    long waits there by their length alone. Short requests behind one prefill share its luck, so
    stretches are counted and not requests: ``samples`` and what they certify.
    """
    trial = record.trial
    longs, shorts = split_requests(record)
    errors = sum(event.error is not None for event in trial.requests)
    problem = trial_problem(trial)
    busy = [] if problem else busy_stretches(longs)
    if problem is None and not any(event.error is None for event in longs):
        problem = "no long request was answered"
    if problem is not None:
        none = Side(
            requests=0, ttft_p50_ms=None, ttft_p95_ms=None, stall_p50_ms=None, stall_max_ms=None
        )
        return HeadOfLineFigures(
            variant=record.variant,
            without=none,
            during=none,
            long_ttft_p50_ms=None,
            longs=len(longs),
            errors=errors,
            problem=problem,
        )
    return HeadOfLineFigures(
        variant=record.variant,
        without=_without(shorts, busy),
        during=_during(shorts, busy),
        long_ttft_p50_ms=quantile_estimate(_ttfts_ms(longs), 0.5),
        longs=len(longs),
        errors=errors,
    )


def split_requests(
    record: HeadOfLineRecord,
) -> tuple[list[RequestEvent], list[RequestEvent]]:
    """Long and short requests."""
    long = set(record.long_indices)
    events = record.trial.requests
    return [e for e in events if e.index in long], [e for e in events if e.index not in long]


def busy_stretches(longs: Sequence[RequestEvent]) -> list[Stretch]:
    """[sent, first token] of the long requests in order; those that touch are one.

    A long request that failed kept the server busy until it ended.
    """
    spans = sorted(
        (event.sent_ns, event.chunk_ns[0] if event.chunk_ns else event.ended_ns) for event in longs
    )
    merged: list[Stretch] = []
    for start_ns, end_ns in spans:
        if merged and start_ns <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_ns))
        elif end_ns > start_ns:
            merged.append((start_ns, end_ns))
    return merged


def _during(shorts: Sequence[RequestEvent], busy: Sequence[Stretch]) -> Side:
    groups = [np.asarray(_ttfts_ms(_due_in(shorts, stretch)), dtype=float) for stretch in busy]
    gaps = _gaps(shorts)
    stalls = [
        _longest_ms([(a, b) for a, b in gaps if a < end_ns and b > start_ns])
        for start_ns, end_ns in busy
    ]
    return _side(
        sum(map(len, groups)),
        clustered_quantile(groups, 0.50),
        clustered_quantile(groups, 0.95),
        stalls,
    )


def _without(shorts: Sequence[RequestEvent], busy: Sequence[Stretch]) -> Side:
    within = {event.index for stretch in busy for event in _due_in(shorts, stretch)}
    ttfts = _ttfts_ms([event for event in shorts if event.index not in within])
    gaps = _gaps(shorts)
    edges = [
        0,
        *(edge for stretch in busy for edge in stretch),
        max((b for _, b in gaps), default=0),
    ]
    quiet = list(zip(edges[::2], edges[1::2], strict=True))
    stalls = [
        _longest_ms([(a, b) for a, b in gaps if start_ns <= a and b <= end_ns])
        for start_ns, end_ns in quiet
    ]
    return _side(len(ttfts), quantile_estimate(ttfts, 0.50), quantile_estimate(ttfts, 0.95), stalls)


def _side(
    requests: int, p50: Estimate | None, p95: Estimate | None, stalls: Sequence[float | None]
) -> Side:
    """A stretch in which no stream ran has no stall."""
    known = [stall for stall in stalls if stall is not None]
    return Side(
        requests=requests,
        ttft_p50_ms=p50,
        ttft_p95_ms=p95,
        stall_p50_ms=quantile_estimate(known, 0.5),
        stall_max_ms=max(known, default=None),
    )


def _due_in(shorts: Sequence[RequestEvent], stretch: Stretch) -> list[RequestEvent]:
    return [event for event in shorts if stretch[0] <= event.scheduled_ns < stretch[1]]


def _ttfts_ms(events: Sequence[RequestEvent]) -> list[float]:
    return [f.ttft_ns / NS_PER_MS for e in events if (f := request_figures(e)) is not None]


def _gaps(shorts: Sequence[RequestEvent]) -> list[Stretch]:
    """The gaps between pieces of every short request that was answered."""
    return [gap for event in shorts if event.error is None for gap in pairwise(event.chunk_ns)]


def _longest_ms(gaps: Sequence[Stretch]) -> float | None:
    return max(((b - a) / NS_PER_MS for a, b in gaps), default=None)
