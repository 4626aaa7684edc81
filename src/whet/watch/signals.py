"""What one period says: readings for the detectors.

A reading is in standard errors beyond the edge of what is tolerated. The edge of a counted figure
is the limit of its alert in one period, and half of the way to it over a whole day: a mix that
swings by 11% within a day raises no alarm, one that stays 9% lower does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from whet.core import counters
from whet.core.records.envelope import Envelope, MeasuredLoad
from whet.core.records.quality_checks import GoldenProbes
from whet.watch.detectors import SLACK, Learned, Share
from whet.watch.observation import (
    GOLDEN_PER_PERIOD,
    Observation,
    Speed,
    Window,
)

_LEAST_REQUESTS: Final = 2
_WARM_REQUESTS: Final = 20
_WARM_PREFIXES: Final = 100
"""Requests that a new process answers first: they say nothing of its speed, or of its hits."""
_LEAST_NATS: Final = 0.02
"""A smaller distance of log-probabilities is rounding. Two starts of one FP8 server on an H100 were
4.1e-5 nats of KL apart, which moves log-probabilities by about 0.005, and FP8 itself by 0.01."""
_ERROR_BUDGET: Final = 0.01
_KV_LIMIT: Final = 0.9
_REQUEST_CLUSTER: Final = 4.0
"""Tokens of one request are accepted alike: so many count as one."""
_TPOT_SLACK: Final = 1.2
_TTFT_SLACK: Final = 1.5
"""Time to first token follows the lengths of prompts, which the run's sample had less of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """One signal of one period: ``z`` standard errors beyond its edge, and the figure in words."""

    signal: str
    z: float
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """What a deployment is compared with: golden probes of the variant, and of the 16-bit weights.

    Either is None where the run took none; ``plain`` also where the variant has 16-bit weights.
    """

    envelope: Envelope
    golden: GoldenProbes | None = None
    plain: GoldenProbes | None = None


def readings(
    look: Observation,
    window: Window | None,
    references: References,
    learned: Mapping[str, Learned],
) -> Iterator[Reading]:
    """Every reading that this period allows; a signal without data has none."""
    envelope = references.envelope
    if window is not None:
        for signal, share in shares(window, envelope):
            yield fallen(signal, share, envelope)
        slow = _token_time(window, envelope)
        if slow is not None:
            yield slow
        # Slow tokens make queues, requests in flight and late first tokens of themselves.
        crowd = (*_first_token(window, envelope), *_crowd(window, envelope))
        for reading in crowd if _warm(window) else ():
            yield reading if slow is None else replace(reading, z=min(reading.z, -slow.z))
        yield from _pressure(window)
    fixed = learned.get("probe_acceptance")
    if look.speed is not None and fixed is not None and fixed.complete:
        yield _fixed_prompt(look.speed, fixed)
    if look.answers is not None and references.golden is not None:
        yield from _answers(look.answers.logprobs, references.golden, references.plain)


def learn(
    look: Observation, envelope: Envelope, learned: Mapping[str, Learned]
) -> dict[str, Learned]:
    """The learned references after this period."""
    now = dict(learned)
    if look.speed is not None and envelope.num_speculative_tokens is not None:
        length = look.speed.tokens / look.speed.chunks
        now["probe_acceptance"] = now.get("probe_acceptance", Learned()).add(length)
    return now


def shares(window: Window, envelope: Envelope) -> Iterator[tuple[str, Share]]:
    """The acceptance length and the hit rate of one window's traffic, where they are measured."""
    drafts, accepted = window.rise(counters.DRAFTS), window.rise(counters.ACCEPTED)
    measured = envelope.range_of("acceptance_length") and not shorter_drafts(window, envelope)
    if measured and drafts and accepted is not None:
        yield "acceptance", Share(part=drafts + accepted, whole=drafts, count=drafts)
    hits, queries = (window.rise(n) for n in (counters.PREFIX_HITS, counters.PREFIX_QUERIES))
    looked_up = window.earlier.values.get(counters.PREFIX_QUERIES, 0.0)
    warm = looked_up >= _WARM_PREFIXES * envelope.input_tokens_mean
    if envelope.range_of("prefix_hit_rate") is not None and queries and hits is not None and warm:
        yield "prefix_hits", Share(part=hits, whole=queries, count=max(1.0, window.requests))


def shorter_drafts(window: Window, envelope: Envelope) -> bool:
    """Whether a K that follows the load is below the deployed one now."""
    return envelope.draft_follows_load and (window.in_flight or 0.0) > 1.25 * envelope.in_flight


def fallen(signal: str, share: Share, envelope: Envelope, *, day: bool = False) -> Reading:
    """How far a share is below its edge; that of a day has to be sure by its count alone."""
    hits, rate = signal == "prefix_hits", share.part / share.whole
    measured = envelope.range_of("prefix_hit_rate" if hits else "acceptance_length")
    assert measured is not None
    drafted = envelope.num_speculative_tokens or 1
    deviation = 0.35 if hits else drafted / 2 * math.sqrt(_REQUEST_CLUSTER)
    wander = 0.0 if day else 0.02 if hits else 0.01 * measured.low
    error = math.hypot(wander, deviation / math.sqrt(share.count))
    edge = math.sqrt(measured.low * measured.limit) if day else measured.limit
    name, form = ("prefix hit rate", ".1%") if hits else ("acceptance length", ".2f")
    words = f"{name} {rate:{form}} (measured {measured.low:{form}} to {measured.high:{form}})"
    if day:
        signal, words = f"{signal}_day", f"{words} over a day"
    return Reading(signal=signal, z=(edge - rate) / error, words=words)


def _token_time(window: Window, envelope: Envelope) -> Reading | None:
    """Time per token against that of the run with as many requests in flight.

    An arriving request finds the mean number in flight and adds itself (Wolff 1982, PASTA). Above
    the largest measured load fewer tokens per second than there are slow, and as many are load.
    """
    requests = (window.rise(counters.GENERATED) or 0.0) / max(1.0, envelope.output_tokens_mean)
    tpot_s, in_flight = window.tpot_s, window.in_flight
    if tpot_s is None or in_flight is None or requests < 1 or not _warm(window):
        return None
    error = math.hypot(0.1, 0.5 / math.sqrt(requests))
    load = _expected(envelope, max(in_flight, min(in_flight + 1, envelope.loads[-1].in_flight)))
    return _slower("tpot", tpot_s, load.tpot_mean_s, _TPOT_SLACK, error, load)


def _warm(window: Window) -> bool:
    """Whether the process had answered enough requests before."""
    return window.earlier.values.get(counters.FINISHED, 0.0) >= _WARM_REQUESTS


def _first_token(window: Window, envelope: Envelope) -> Iterator[Reading]:
    in_flight, ttft_s = window.in_flight, window.mean(counters.TTFT)
    most = 1.25 * envelope.loads[-1].in_flight
    enough = window.requests >= _LEAST_REQUESTS
    if ttft_s and in_flight is not None and in_flight + 1 <= most and enough:
        error = math.hypot(0.15, 0.8 / math.sqrt(window.requests))
        load = _expected(envelope, in_flight + 1)
        yield _slower("ttft", ttft_s, load.ttft_mean_s, _TTFT_SLACK, error, load)


def _crowd(window: Window, envelope: Envelope) -> Iterator[Reading]:
    most, waits = envelope.loads[-1].in_flight, max(1.0, envelope.in_flight / 2)
    if (waiting := window.gauge(counters.WAITING)) is not None:
        words = f"{waiting:.0f} requests wait (measured: none)"
        yield Reading(signal="queue", z=(waiting - waits) / waits, words=words)
    if window.in_flight is not None:
        words = f"{window.in_flight:.3g} requests in flight (measured up to {most:.3g})"
        z = (window.in_flight - 1.25 * most) / (0.25 * most + 1)
        yield Reading(signal="load", z=min(2.0, z), words=words)  # bursts end by themselves


def _pressure(window: Window) -> Iterator[Reading]:
    if (usage := window.gauge(counters.KV_USAGE)) is not None:
        words = f"the KV cache is {usage:.0%} full"
        yield Reading(signal="kv_cache", z=(usage - _KV_LIMIT) / 0.02, words=words)
    if (preemptions := window.rise(counters.PREEMPTIONS)) is not None:
        words = f"{preemptions:.0f} preemptions (measured: none)"
        yield Reading(signal="preemptions", z=4.0 * preemptions - 1, words=words)
    if window.requests >= _LEAST_REQUESTS:
        # The log-likelihood ratio of three times the budget: errors are few (Page 1954).
        likelier = math.log(3) * window.errors - 2 * _ERROR_BUDGET * window.requests
        words = f"{window.errors:.0f} of {window.requests:.0f} requests failed"
        yield Reading(signal="errors", z=likelier + SLACK, words=words)


def _fixed_prompt(speed: Speed, reference: Learned) -> Reading:
    """The speed probe's acceptance against its first ones: its prompt is not the traffic's mean."""
    mean, spread, figure = reference.mean, reference.deviation, speed.tokens / speed.chunks
    edge = 0.95 * mean - 2 * spread / math.sqrt(reference.count)
    words = f"a fixed prompt gets {figure:.2f} tokens per step, {mean:.2f} at first"
    z = (edge - figure) / max(spread, 0.03 * mean)
    return Reading(signal="probe_acceptance", z=z, words=words)


def _answers(
    logprobs: Mapping[str, float], golden: GoldenProbes, plain: GoldenProbes | None
) -> Iterator[Reading]:
    """One reading of every few probes: a whole set is as much as several periods."""
    noise = _golden_noise(golden)
    edge, error = max(_LEAST_NATS, 3 * noise), max(_LEAST_NATS / 2, noise)
    ids = list(logprobs)
    for at in range(0, len(ids), GOLDEN_PER_PERIOD):
        part = {name: logprobs[name] for name in ids[at : at + GOLDEN_PER_PERIOD]}
        distance = golden_distance(part, golden)
        if distance is None:
            continue
        words = f"golden probes are {distance:.3f} nats from the measured ones (noise {noise:.3f})"
        yield Reading(signal="answers", z=(distance - edge) / error, words=words)
        other = None if plain is None else golden_distance(part, plain)
        if other is not None:
            words = f"they are {other:.3f} nats from those of the 16-bit weights"
            yield Reading(signal="plain_answers", z=(distance - other) / error - 1, words=words)


def golden_distance(logprobs: Mapping[str, float], golden: GoldenProbes) -> float | None:
    """Mean |log-probability now − then| over the probes of this period, in nats."""
    apart = [
        abs(logprobs[probe.id] - probe.tokens[0].mean)
        for probe in golden.probes
        if probe.id in logprobs
    ]
    return sum(apart) / len(apart) if apart else None


def _golden_noise(golden: GoldenProbes) -> float:
    """Mean |draw − mean| of the run's own repetitions, in nats."""
    means = [probe.tokens[0].mean for probe in golden.probes]
    apart = [abs(a - b) for row in golden.draws for a, b in zip(row, means, strict=True)]
    return sum(apart) / max(1, len(apart))


def _slower(
    signal: str, value: float, expected: float, slack: float, error: float, load: MeasuredLoad
) -> Reading:
    words = f"{signal.upper()} {value * 1000:.3g} ms ({expected * 1000:.3g} ms expected at "
    words += f"{load.in_flight:.3g} in flight)"
    z = math.log(max(value, 1e-9) / (expected * slack)) / error
    return Reading(signal=signal, z=z, words=words)


def _expected(envelope: Envelope, in_flight: float) -> MeasuredLoad:
    """Means at a load between the measured ones, linear in its logarithm.

    Below the smallest measured load the figures of that load hold. Above the largest its tokens
    per second are shared by more requests.
    """
    loads = envelope.loads
    if in_flight > loads[-1].in_flight:
        tpot_s = max(loads[-1].tpot_mean_s, in_flight / max(1e-9, loads[-1].tps))
        return replace(loads[-1], in_flight=in_flight, tpot_mean_s=tpot_s)
    upper = next((item for item in loads if item.in_flight >= in_flight), loads[-1])
    lower = next((item for item in reversed(loads) if item.in_flight <= in_flight), loads[0])
    if upper.in_flight <= lower.in_flight:
        return upper
    share = math.log(in_flight / lower.in_flight) / math.log(upper.in_flight / lower.in_flight)

    def between(one: float, other: float) -> float:
        return one + share * (other - one)

    return MeasuredLoad(
        in_flight=in_flight,
        ttft_mean_s=between(lower.ttft_mean_s, upper.ttft_mean_s),
        tpot_mean_s=between(lower.tpot_mean_s, upper.tpot_mean_s),
        tps=between(lower.tps, upper.tps),
        rps=between(lower.rps, upper.rps),
    )
