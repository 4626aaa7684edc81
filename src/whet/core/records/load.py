"""What was sent, when, and what came back: raw, so that every figure can be computed again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer

from whet.core.load import Load
from whet.core.records.summary import Status

Loop = Literal["closed", "static", "open"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRequest:
    """One request of a workload, token-exact.

    ``shared_tokens`` is how many leading tokens other requests of the workload share with it;
    0 for a request with a prefix of its own.
    """

    index: int
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    prefix_id: str | None = None
    shared_tokens: int = 0
    temperature: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadFacts:
    """A workload's identity and make-up. Equal ``sha256`` means equal traffic, request by request.

    ``expected_hit_rate`` is Σ of full shared blocks ÷ Σ prompt tokens once every shared prefix is
    warm, at ``block_size`` tokens a block. Requests in flight together may find less of each
    other, down to ``least_hit_rate``; None where all that is shared is warm. A next turn's prompt
    holds the answer before it, which the cache may hold too: up to ``most_hit_rate``, or None.
    ``sources`` number the text that each request of a run was made of: requests with equal numbers
    are one prompt under other marks, in any trial. Empty elsewhere.
    """

    sha256: str
    requests: int
    shared_prefix_share: float
    long_system_share: float
    shared_prefixes: int
    input_tokens_mean: float
    output_tokens_mean: float
    input_output_ratio: float
    block_size: int
    expected_hit_rate: float
    seed: int
    least_hit_rate: float | None = None
    most_hit_rate: float | None = None
    sources: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficFacts:
    """Requests of the sampled traffic log; ``greedy`` are those that ask for temperature 0.

    ``output_tokens_per_s`` is the whole log's, by its own times; None where it lacks those, or the
    lengths of its answers.
    """

    requests: int
    greedy: int
    output_tokens_per_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputLengths:
    """Tokens of the answers that ``variant`` gave to the pool's user turns, in their order."""

    variant: str
    tokens: tuple[int, ...]


def _to_gaps(times_ns: tuple[int, ...]) -> dict[str, Any]:
    """Times as the first and the gaps between them: a third of the bytes on the disk."""
    return {"gaps": [*times_ns[:1], *(after - before for before, after in pairwise(times_ns))]}


def _from_gaps(data: Any) -> Any:
    """Return the times of ``_to_gaps``."""
    return tuple(accumulate(data["gaps"])) if isinstance(data, dict) else data


Times = Annotated[tuple[int, ...], BeforeValidator(_from_gaps), PlainSerializer(_to_gaps)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestEvent:
    """One request as the client saw it. Times are monotonic ns since the trial began.

    ``chunk_ns`` holds one timestamp per chunk with non-empty output. ``output_tokens`` is the
    server's usage. ``error`` is None for a completed request; otherwise a typed word
    (``http_429``, ``timeout``, ``reset``, ``sse_error``, ``no_tokens`` …) and ``detail`` the rest;
    the ``detail`` of a completed request says in what its usage differs from the request.
    ``retried`` is set where a reused connection was closed and the request was sent again.
    """

    index: int
    prefix_id: str | None
    scheduled_ns: int
    sent_ns: int
    chunk_ns: Times
    ended_ns: int
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    text: str
    error: str | None = None
    detail: str | None = None
    retried: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbance:
    """What others took from a server in a trial's window; None where it is not reported.

    ``other_cpu`` (processes that are neither whet's client nor its servers), ``idle_cpu``,
    ``steal`` (the hypervisor) and ``throttled`` (the CPU limit of the control group) are shares of
    the time of the cores that whet may use. ``cpu_pressure`` and ``memory_pressure`` are the shares
    of the window in which a task waited (``some`` of the kernel's pressure stall information),
    ``gpu_thermal`` that in which a GPU was too hot. ``gpu_others`` is the share of the GPU's time
    that other processes used, ``gpu_slowdowns`` what its driver reports. ``busiest`` is the name of
    the other process that used most.
    """

    other_cpu: float | None = None
    idle_cpu: float | None = None
    steal: float | None = None
    throttled: float | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None
    gpu_thermal: float | None = None
    gpu_others: float | None = None
    gpu_slowdowns: tuple[str, ...] | None = None
    busiest: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientHealth:
    """Whether the client kept up and nothing disturbed the server; the bounds are in ``load``.

    ``cpu_share`` is of one core, the busiest process' where several ``workers`` sent. ``asked_rps``
    and ``achieved_rps`` are the rates of an open loop's schedule and of what left, None for others.
    ``disturbance`` is None for a server that whet did not start.
    """

    dispatch_delay_p99_ns: int
    loop_lag_p99_ns: int
    cpu_share: float
    valid: bool
    reason: str | None
    workers: int = 1
    asked_rps: float | None = None
    achieved_rps: float | None = None
    disturbance: Disturbance | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """A scrape of the server's counters: full sample name with labels summed away → value.

    A name that the server does not export is absent: missing is never 0.
    """

    taken_ns: int
    values: tuple[tuple[str, float], ...]

    def get(self, name: str) -> float | None:
        """The value of ``name``, or None where the server exports no such sample."""
        return dict(self.values).get(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord:
    """One timed repetition of a cell. ``status`` is complete, interrupted or failed.

    [``window_start_ns``, ``window_end_ns``] runs from the first timed send to the moment the loop
    has no request left to keep its load in flight; rates are over ``metrics.steady_window``.
    ``counters_before`` and ``counters_after`` bracket the timed requests; ``memory_bytes`` is the
    highest reading of the server's process tree in between. ``excluded_warmup`` counts the requests
    sent before.
    ``loop`` is closed, static or open; the ``load`` of an open loop of ``whet bench`` is its cap.
    ``start`` numbers the starts of the variant's server in a run, from 0; None for a server that
    whet did not start.
    """

    variant: str
    load: Load
    trial: int
    status: Status
    workload_sha256: str
    started_at: str
    window_start_ns: int
    window_end_ns: int
    requests: tuple[RequestEvent, ...]
    excluded_warmup: int
    counters_before: Counters | None
    counters_after: Counters | None
    memory_bytes: int | None
    health: ClientHealth
    failure: str | None = None
    loop: Loop = "closed"
    start: int | None = None

    @property
    def is_invalid(self) -> bool:
        """Whether it ended and does not count: a late client, a disturbed machine."""
        return self.status == "complete" and not self.health.valid


@dataclass(frozen=True, kw_only=True, slots=True)
class RateTried:
    """One rate of the search; ``missed`` names what did not meet the objective, empty if met."""

    rate: Load
    ttft_p95_ms: float | None
    missed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RateSearch:
    """What a variant's search tried, in order, and the rates that are then measured.

    ``points`` are empty where no rate met the objective. ``log_rate`` is that of ``load.trace`` at
    its own speed.
    """

    variant: str
    tried: tuple[RateTried, ...]
    points: tuple[Load, ...]
    log_rate: Load | None = None
