"""What one period of the watch saw, and the traffic between two of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core import counters
from whet.core.records.envelope import LengthShares

GOLDEN_PER_PERIOD: Final = 4
"""Golden probes that are sent in one period, in turn."""
PROMPT_LENGTHS: Final = "vllm:request_prompt_tokens"
OUTPUT_LENGTHS: Final = "vllm:request_generation_tokens"
_ERROR: Final = f'{counters.FINISHED}{{finished_reason="error"}}'
_HTTP_5XX: Final = 'http_requests_total{status="5xx"}'
_SUMS: Final = (counters.TTFT, counters.TPOT, counters.E2E)
SERIES: Final = (
    *(counters.GENERATED, counters.DRAFTS, counters.ACCEPTED),
    *(counters.PREFIX_QUERIES, counters.PREFIX_HITS, counters.PROCESS_START),
    *(counters.FINISHED, counters.PROMPT_TOKENS, counters.PREEMPTIONS),
    *(counters.RUNNING, counters.WAITING, counters.KV_USAGE),
    *(f"{name}_{part}" for name in _SUMS for part in ("count", "sum")),
    *(f"{name}_count" for name in (PROMPT_LENGTHS, OUTPUT_LENGTHS)),
)
"""What the watch reads: a series that the run had and the deployment lacks is an alarm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scrape:
    """The engine's counters at one moment. ``at_s`` is wall-clock seconds since the epoch.

    ``buckets`` are the cumulative counts of the length histograms by name: (edge, count) pairs.
    ``cache`` are the labels of ``cache_config_info``; ``names`` counts the engine's own samples
    and ``other_names`` all others.
    """

    at_s: float
    values: Mapping[str, float]
    buckets: Mapping[str, tuple[tuple[float, float], ...]]
    cache: Mapping[str, str]
    names: int
    other_names: int

    @property
    def process_start(self) -> float | None:
        """When the answering process began, or None where the engine does not say."""
        return self.values.get(counters.PROCESS_START)


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """One streamed probe request, alone in its prompt and greedy. ``chunks`` are engine steps."""

    ttft_s: float
    tpot_s: float
    tokens: int
    chunks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """The golden probes of one period: probe id → log-probability of the followed token now.

    ``error`` says why it is empty; ``broken`` that the engine's answers are not probabilities.
    """

    logprobs: Mapping[str, float]
    error: str | None = None
    broken: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One period. Everything is None where it was not asked or could not be read.

    ``silence`` is why the engine could not be read at all (``unreachable``, ``unauthorized``).
    ``before`` and ``after`` are scrapes around the probes. ``models`` maps served names to their
    ``max_model_len``. ``skipped`` says why the probes were left out.
    """

    at: str
    at_s: float
    silence: str | None = None
    version: str | None = None
    models: Mapping[str, int | None] | None = None
    before: Scrape | None = None
    after: Scrape | None = None
    speed: Speed | None = None
    speed_error: str | None = None
    answers: Answers | None = None
    chat_prompt_tokens: int | None = None
    skipped: str | None = None
    claims: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The traffic between the probes of two periods, from counters: the probes are not in it."""

    earlier: Scrape
    later: Scrape

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.later.at_s - self.earlier.at_s

    @property
    def requests(self) -> float:
        """Finished requests."""
        return self.rise(counters.FINISHED) or 0.0

    @property
    def errors(self) -> float:
        """Requests that ended with an error."""
        return (self.rise(_ERROR) or 0.0) + (self.rise(_HTTP_5XX) or 0.0)

    @property
    def in_flight(self) -> float | None:
        """Requests in flight: the time that they spent ÷ the window's (Little).

        Of steps where the engine counts them, else of the requests that finished.
        """
        steps_s, ttft_s = (self.rise(f"{name}_sum") for name in (counters.ITL, counters.TTFT))
        spent_s = self.rise(f"{counters.E2E}_sum")
        if steps_s is not None and ttft_s is not None:
            spent_s = steps_s + ttft_s
        return None if spent_s is None else spent_s / max(1e-9, self.seconds)

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per output token after the first; None where none was generated."""
        steps_s, firsts = self.rise(f"{counters.ITL}_sum"), self.rise(f"{counters.TTFT}_count")
        tokens = (self.rise(counters.GENERATED) or 0.0) - (firsts or 0.0)
        if steps_s is None or firsts is None:
            return self.mean(counters.TPOT)
        return steps_s / tokens if tokens > 0 and steps_s > 0 else None

    @property
    def still(self) -> bool:
        """Whether requests run, and nothing was generated or finished."""
        runs = [scrape.values.get(counters.RUNNING) for scrape in (self.earlier, self.later)]
        return all(runs) and not self.rise(counters.GENERATED) and not self.requests

    def rise(self, name: str) -> float | None:
        """Return how much a counter rose; None where the engine does not export it.

        The series of a label's value may begin later than its name, at 0.
        """
        begun = 0.0 if name.partition("{")[0] in self.earlier.values else None
        now, was = self.later.values.get(name), self.earlier.values.get(name, begun)
        return None if now is None or was is None else now - was

    def mean(self, histogram: str) -> float | None:
        """Return the mean of what a histogram counted; None where it counted nothing."""
        count, total = self.rise(f"{histogram}_count"), self.rise(f"{histogram}_sum")
        return total / count if count and total is not None else None

    def gauge(self, name: str) -> float | None:
        """Return a gauge at the end of the window."""
        return self.later.values.get(name)


def window_between(earlier: Scrape, later: Scrape) -> Window | None:
    """Return the traffic between two scrapes.

    None where another process answered, a counter fell or this machine's clock was set back.
    """
    window = Window(earlier=earlier, later=later)
    another = earlier.process_start != later.process_start
    return None if another or window.seconds < 0 or window.requests < 0 else window


def length_counts(
    earlier: Scrape, later: Scrape, histogram: str, reference: LengthShares
) -> tuple[float, ...] | None:
    """Requests between two scrapes by the reference's length bins, or None without the histogram.

    The engine's edges hold the reference's: both are 1-2-5 steps.
    """
    first, last = dict(earlier.buckets.get(histogram, ())), dict(later.buckets.get(histogram, ()))
    edges = (*reference.edges, float("inf"))
    if not last or earlier.process_start != later.process_start:
        return None
    cumulative = [_below(last, edge) - _below(first, edge) for edge in edges]
    return tuple(now - before for before, now in zip([0.0, *cumulative], cumulative, strict=False))


def _below(buckets: Mapping[float, float], edge: float) -> float:
    """The cumulative count at the largest known edge that is not above ``edge``."""
    known = [each for each in buckets if each <= edge]
    return buckets[max(known)] if known else 0.0


def stability_index(counts: Sequence[float], reference: LengthShares) -> float:
    """PSI = Σ (p − q) ln(p ÷ q) of two length distributions (Yurdakul and Naranjo, 2020).

    Half a request is added to every bin, so that an empty one is finite.
    """
    bins = len(reference.shares)
    total, expected = sum(counts) + bins / 2, reference.requests + bins / 2
    index = 0.0
    for count, share in zip(counts, reference.shares, strict=True):
        p = (count + 0.5) / total
        q = (share * reference.requests + 0.5) / expected
        index += (p - q) * math.log(p / q)
    return index
