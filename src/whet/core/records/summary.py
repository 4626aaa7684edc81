"""Figures with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.load_point import LoadPoint

Status = Literal["complete", "interrupted", "failed"]
MemoryKind = Literal["device", "resident"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A figure, its 95 % interval and the samples behind it.

    Figures of a server have an interval from two of its starts on; ``low`` and ``high`` are None
    for one.

    ``certified`` is False for a percentile with fewer samples than the early-stopping floor
    (64 for p90, 130 for p95, 662 for p99).
    """

    value: float
    low: float | None
    high: float | None
    samples: int
    certified: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSummary:
    """One variant at one batch size, over its valid trials. Latencies in ms at this edge.

    ``starts`` is how many starts of the server those trials were measured on.

    ``cost_per_1m_tokens`` is USD. ``memory_gb`` is decimal GB of the server's process tree: device
    memory on a GPU, resident memory on a CPU (``memory_kind`` says which).
    ``status`` is complete, interrupted or failed; a failed cell says why in ``failure``. Latencies
    and rates leave out the first wave of a closed loop, a burst on an idle server; ``burst_…`` are
    its TTFT. A request's stall is the longest gap between two of its pieces.
    """

    variant: str
    batch_size: LoadPoint
    status: Status
    trials: int
    requests: int
    errors: int
    ttft_p50_ms: Estimate | None = None
    ttft_p95_ms: Estimate | None = None
    tpot_p50_ms: Estimate | None = None
    tpot_p95_ms: Estimate | None = None
    e2e_p50_ms: Estimate | None = None
    e2e_p95_ms: Estimate | None = None
    itl_p50_ms: Estimate | None = None
    tps_mean: Estimate | None = None
    rps_mean: Estimate | None = None
    goodput_rps: Estimate | None = None
    cost_per_1m_tokens: Estimate | None = None
    memory_gb: float | None = None
    memory_kind: MemoryKind
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    prefix_hit_rate: float | None = None
    expected_hit_rate: float | None = None
    window_s: float | None = None
    warmup_excluded: int = 0
    failure: str | None = None
    burst_ttft_p50_ms: Estimate | None = None
    burst_ttft_p95_ms: Estimate | None = None
    starts: int = 1
    stall_p95_ms: Estimate | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One variant against the reference on one metric, over the starts of both.

    ``ratio`` is candidate ÷ reference with its 95% interval, simultaneous over the ``family`` of
    tested comparisons, open where the starts cannot give one. A ``family`` of 0 is exploratory:
    the interval is for this ratio alone and nothing is tested. ``different`` where a tested
    interval leaves out 1. ``starts_needed`` is how many starts of each in all would show a
    difference of this size, None where more than 200. ``detectable`` is the smallest difference,
    as a share, that these starts would have shown with 80% power.
    """

    metric: str
    reference: str
    reference_batch_size: LoadPoint
    candidate: str
    batch_size: LoadPoint
    ratio: Estimate
    family: int
    different: bool
    starts_needed: int | None
    detectable: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferenceSet:
    """The exploratory differences of a run: each variant against ``reference`` at each load."""

    reference: str
    differences: tuple[Difference, ...]
