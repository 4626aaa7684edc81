"""What a run measured of the deployed variant: the thresholds of alerts and of ``whet watch``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRange:
    """One metric over the starts of the variant at its load, and the limit of its alert.

    ``metric`` is a column of the run's CSV (``ttft_p95_ms``, ``acceptance_length``). ``limit`` is
    20% worse than the worst measured figure.
    """

    metric: str
    low: float
    high: float
    starts: int
    limit: float
    worse: Literal["higher", "lower"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLoad:
    """Means at one measured load. ``in_flight`` are requests in flight, by Little's law."""

    in_flight: float
    ttft_mean_s: float
    tpot_mean_s: float
    tps: float
    rps: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthShares:
    """Tokens per request as a histogram: ``shares[i]`` of the requests are at most ``edges[i]``
    long and longer than the edge before; the last share is above the last edge.
    """

    edges: tuple[float, ...]
    shares: tuple[float, ...]
    requests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """The measured envelope of one variant at the load it is deployed for.

    ``loads`` are sorted by ``in_flight``. ``ttft_limit_ms`` and the like are the spec's objectives,
    None where it has none. ``cache`` are labels of the engine's ``cache_config_info`` that flags
    decide. ``num_speculative_tokens`` is None without speculation. ``acceptance_floor`` is the
    lowest acceptance rate that the spec allows, None where the run itself measured less.
    ``prompt_tokens`` and ``output_tokens`` are those of the timed requests. ``series`` are the
    series of ``/metrics`` that the run had, of those that ``whet watch`` reads.
    ``draft_follows_load``: the variant drafts fewer tokens in larger batches.
    """

    run: str
    variant: str
    load: str
    in_flight: float
    engine: str
    engine_version: str
    model: str
    device: str
    max_model_len: int | None
    num_speculative_tokens: int | None
    prefix_cache: bool
    loras: tuple[str, ...]
    cache: tuple[tuple[str, str], ...]
    ranges: tuple[MeasuredRange, ...]
    loads: tuple[MeasuredLoad, ...]
    ttft_limit_ms: float | None
    tpot_limit_ms: float | None
    e2e_limit_ms: float | None
    acceptance_floor: float | None
    input_tokens_mean: float
    output_tokens_mean: float
    prompt_tokens: LengthShares
    output_tokens: LengthShares
    series: tuple[str, ...] = ()
    draft_follows_load: bool = False

    def range_of(self, metric: str) -> MeasuredRange | None:
        """The measured range of a metric, or None where it was not measured."""
        return next((item for item in self.ranges if item.metric == metric), None)

    @property
    def capacity(self) -> MeasuredLoad:
        """The measured load that is nearest to the deployed one."""
        return min(self.loads, key=lambda item: abs(item.in_flight - self.in_flight))
