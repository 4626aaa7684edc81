"""What one period says: readings for the detectors, and mismatches that need no statistics.

A reading is in standard errors beyond the edge of what is tolerated. The edge of a counted figure
is half of the way to the limit of its alert: the watch notices a slow drift before the rules do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from whet.core import counters
from whet.core.records.envelope import Envelope, MeasuredLoad, MeasuredRange
from whet.core.records.quality_checks import GoldenProbes
from whet.watch.detectors import SLACK, Learned
from whet.watch.observation import Observation, Scrape, Window

_LEAST_REQUESTS: Final = 5
_LEAST_NATS: Final = 0.02
"""A smaller distance of log-probabilities is rounding. Two starts of one FP8 server on an H100 were
4.1e-5 nats of KL apart, which moves log-probabilities by about 0.005, and FP8 itself by 0.01."""
_ERROR_BUDGET: Final = 0.01
_KV_LIMIT: Final = 0.9
_STEAL_LIMIT: Final = 0.1
_REQUEST_CLUSTER: Final = 4.0
"""Tokens of one request are accepted and hit alike: so many count as one."""
_TPOT_SLACK: Final = 1.2
_TTFT_SLACK: Final = 1.5
"""Time to first token follows the lengths of prompts, which the run's sample had less of."""
_USELESS: Final = 1.05
_CACHING: Final = "enable_prefix_caching"


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
        if window.requests >= _LEAST_REQUESTS:
            yield from _traffic(window, envelope)
        yield from _pressure(window, envelope)
    if look.speed is not None:
        yield from _speed(look, envelope, learned)
    if look.answers is not None and references.golden is not None:
        yield from _answers(look.answers.logprobs, references.golden, references.plain)
    sampled = learned.get("sampled")
    if look.sampled is not None and sampled is not None and sampled.complete:
        z = (look.sampled - sampled.mean) / max(sampled.deviation, 0.05)
        words = f"sampled tokens have {look.sampled:.2f} nats, {sampled.mean:.2f} at first"
        yield Reading(signal="sampling_sharper", z=z - 0.5, words=words)
        yield Reading(signal="sampling_flatter", z=-z - 0.5, words=words)
    if look.steal is not None:
        words = f"{look.steal:.0%} of the CPU's time is stolen or waits for disks"
        yield Reading(signal="steal", z=(look.steal - _STEAL_LIMIT) / 0.05, words=words)


def learn(
    look: Observation, envelope: Envelope, learned: Mapping[str, Learned]
) -> dict[str, Learned]:
    """The learned references after this period."""
    values = {"sampled": look.sampled, **_probe_figures(look, envelope)}
    known = {name: value for name, value in values.items() if value is not None}
    return {
        **learned,
        **{name: learned.get(name, Learned()).add(value) for name, value in known.items()},
    }


def _edge(item: MeasuredRange) -> float:
    """Half of the way, in logarithms, from the worst measured figure to the alert's limit."""
    return math.sqrt(item.low * item.limit)


def _traffic(window: Window, envelope: Envelope) -> Iterator[Reading]:
    yield from _acceptance(window, envelope)
    measured = envelope.range_of("prefix_hit_rate")
    hits, queries = (window.rise(n) for n in (counters.PREFIX_HITS, counters.PREFIX_QUERIES))
    if measured is not None and queries and hits is not None:
        rate, edge = hits / queries, _edge(measured)
        error = math.hypot(0.02, 0.35 / math.sqrt(window.requests))
        words = f"prefix hit rate {rate:.1%} (measured {measured.low:.1%} to {measured.high:.1%})"
        yield Reading(signal="prefix_hits", z=(edge - rate) / error, words=words)
    # An arriving request finds the mean number in flight and adds itself (Wolff 1982, PASTA).
    load = None if window.in_flight is None else _expected(envelope, window.in_flight + 1)
    tpot_s, ttft_s = window.mean(counters.TPOT), window.mean(counters.TTFT)
    if load is not None and tpot_s:
        error = math.hypot(0.1, 0.5 / math.sqrt(window.requests))
        yield _slower("tpot", tpot_s, load.tpot_mean_s * _TPOT_SLACK, error, load)
    if load is not None and ttft_s:
        error = math.hypot(0.15, 0.8 / math.sqrt(window.requests))
        yield _slower("ttft", ttft_s, load.ttft_mean_s * _TTFT_SLACK, error, load)
    # The log-likelihood ratio of three times the budget: errors are few (Page 1954).
    likelier = math.log(3) * window.errors - 2 * _ERROR_BUDGET * window.requests
    words = f"{window.errors:.0f} of {window.requests:.0f} requests failed"
    yield Reading(signal="errors", z=likelier + SLACK, words=words)


def _acceptance(window: Window, envelope: Envelope) -> Iterator[Reading]:
    measured, most = envelope.range_of("acceptance_length"), envelope.num_speculative_tokens
    drafts, accepted = window.rise(counters.DRAFTS), window.rise(counters.ACCEPTED)
    if measured is None or most is None or not drafts or accepted is None:
        return
    length = 1 + accepted / drafts
    edge = _edge(measured)
    error = math.hypot(0.01 * measured.low, most / 2 * math.sqrt(_REQUEST_CLUSTER / drafts))
    words = f"acceptance length {length:.2f} (measured {measured.low:.2f} to {measured.high:.2f})"
    yield Reading(signal="acceptance", z=(edge - length) / error, words=words)


def _pressure(window: Window, envelope: Envelope) -> Iterator[Reading]:
    most, waits = envelope.loads[-1].in_flight, max(1.0, envelope.in_flight / 2)
    if (waiting := window.gauge(counters.WAITING)) is not None:
        words = f"{waiting:.0f} requests wait (measured: none)"
        yield Reading(signal="queue", z=(waiting - waits) / waits, words=words)
    if (usage := window.gauge(counters.KV_USAGE)) is not None:
        words = f"the KV cache is {usage:.0%} full"
        yield Reading(signal="kv_cache", z=(usage - _KV_LIMIT) / 0.02, words=words)
    if (preemptions := window.rise(counters.PREEMPTIONS)) is not None:
        words = f"{preemptions:.0f} preemptions (measured: none)"
        yield Reading(signal="preemptions", z=4.0 * preemptions - 1, words=words)
    if window.in_flight is not None:
        words = f"{window.in_flight:.3g} requests in flight (measured up to {most:.3g})"
        z = (window.in_flight - 1.25 * most) / (0.25 * most + 1)
        yield Reading(signal="load", z=z, words=words)


def _probe_figures(look: Observation, envelope: Envelope) -> dict[str, float]:
    """What the probe's own prompt costs: logarithms over the means of the traffic at this load.

    ``probe_acceptance`` are its tokens per streamed piece, whatever else runs.
    """
    if look.speed is None:
        return {}
    running = None if look.before is None else look.before.values.get(counters.RUNNING)
    load, figures = _expected(envelope, 1.0 + (running or 0.0)), dict[str, float]()
    if load is not None:
        figures["probe_tpot"] = math.log(max(look.speed.tpot_s, 1e-9) / load.tpot_mean_s)
        figures["probe_ttft"] = math.log(max(look.speed.ttft_s, 1e-9) / load.ttft_mean_s)
    if envelope.num_speculative_tokens is not None:
        figures["probe_acceptance"] = look.speed.tokens / look.speed.chunks
    return figures


def _speed(
    look: Observation, envelope: Envelope, learned: Mapping[str, Learned]
) -> Iterator[Reading]:
    """The probe against its own first periods: its prompt is not the traffic's mean."""
    for signal, figure in _probe_figures(look, envelope).items():
        reference = learned.get(signal)
        if reference is None or not reference.complete:
            continue
        mean, spread = reference.mean, reference.deviation
        if signal == "probe_acceptance":
            z = (0.95 * mean - figure) / max(spread, 0.03 * mean)
            words = f"a fixed prompt gets {figure:.2f} tokens a step, {mean:.2f} at first"
        else:
            slack, least = (1.35, 0.15) if signal == "probe_tpot" else (2.0, 0.3)
            z = (figure - mean - math.log(slack)) / max(spread, least)
            words = (
                f"the probe's {signal[-4:].upper()} is {math.exp(figure - mean):.2f} × the first"
            )
        yield Reading(signal=signal, z=z, words=words)


def _answers(
    logprobs: Mapping[str, float], golden: GoldenProbes, plain: GoldenProbes | None
) -> Iterator[Reading]:
    distance = golden_distance(logprobs, golden)
    if distance is None:
        return
    noise = _golden_noise(golden)
    edge, error = max(_LEAST_NATS, 3 * noise), max(_LEAST_NATS / 2, noise)
    words = f"golden probes are {distance:.3f} nats from the measured ones (noise {noise:.3f})"
    yield Reading(signal="answers", z=(distance - edge) / error, words=words)
    other = None if plain is None else golden_distance(logprobs, plain)
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


def _slower(signal: str, value: float, edge: float, error: float, load: MeasuredLoad) -> Reading:
    expected = load.ttft_mean_s if signal == "ttft" else load.tpot_mean_s
    words = f"{signal.upper()} {value * 1000:.3g} ms ({expected * 1000:.3g} ms expected at "
    words += f"{load.in_flight:.3g} in flight)"
    return Reading(signal=signal, z=math.log(max(value, 1e-9) / edge) / error, words=words)


def _expected(envelope: Envelope, in_flight: float | None) -> MeasuredLoad | None:
    """Means at a load between the measured ones, linear in its logarithm; None far above them.

    Below the smallest measured load the figures of that load hold.
    """
    if in_flight is None or in_flight > 1.25 * envelope.loads[-1].in_flight:
        return None
    loads = envelope.loads
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


def mismatches(
    look: Observation,
    window: Window | None,
    references: References,
    chat_prompt_tokens: int | None,
) -> dict[str, str]:
    """What contradicts the deployed variant, by name, in words; seen twice it is an alarm.

    ``chat_prompt_tokens`` is how many tokens the fixed chat message had at first.
    """
    if look.silence is not None:
        return {look.silence.split(":", 1)[0]: look.silence}
    wrong: dict[str, str] = {}
    wrong.update(_identity(look, references.envelope))
    if look.speed_error is not None:
        wrong["hung" if "timeout" in look.speed_error else "probe_failed"] = look.speed_error
    if look.answers is not None and look.answers.broken is not None:
        wrong["answers_broken"] = look.answers.broken
    if look.answers is not None and look.answers.error is not None:
        wrong["answers_unread"] = look.answers.error
    if chat_prompt_tokens is not None and look.chat_prompt_tokens not in (None, chat_prompt_tokens):
        wrong["chat_template_changed"] = (
            f"a fixed message has {look.chat_prompt_tokens} tokens, {chat_prompt_tokens} at first"
        )
    wrong.update(_metrics(look.before, references.envelope))
    if window is not None and window.rise(counters.GENERATED):
        wrong.update(_counted(window, references.envelope))
    for kind, words in (look.claims or {}).items():
        wrong[f"claim_{kind}"] = words
    return wrong


def _identity(look: Observation, envelope: Envelope) -> Iterator[tuple[str, str]]:
    if look.version is not None and not _same_version(look.version, envelope.engine_version):
        yield (
            "engine_version",
            f"{envelope.engine} {look.version} answers; {envelope.engine_version} was measured",
        )
    if look.models is None:
        return
    if envelope.model not in look.models:
        yield "wrong_model", f"{', '.join(look.models)} is served instead of {envelope.model}"
        return
    length = look.models[envelope.model]
    if (
        length is not None
        and envelope.max_model_len is not None
        and length < envelope.max_model_len
    ):
        yield "context_shortened", f"max_model_len is {length}, was {envelope.max_model_len}"
    if missing := [name for name in envelope.loras if name not in look.models]:
        yield "adapter_missing", f"the adapter {', '.join(missing)} is not served"


def _same_version(one: str, other: str) -> bool:
    """Whether the releases are equal, and their local labels (``+cu129``) where both have one."""
    (release, _, label), (other_release, _, other_label) = (
        text.removeprefix("v").partition("+") for text in (one, other)
    )
    return release == other_release and (label == other_label or not label or not other_label)


def _metrics(scrape: Scrape | None, envelope: Envelope) -> Iterator[tuple[str, str]]:
    if scrape is None:
        if envelope.series:
            yield "metrics_missing", "/metrics is not there; the run had it"
        return
    if missing := [name for name in envelope.series if name not in scrape.values]:
        yield "metrics_missing", f"/metrics lacks {', '.join(missing)}, which the run had"
        if not scrape.names and scrape.other_names:
            words = f"/metrics has {scrape.other_names} samples and none of the engine's names"
            yield "metrics_renamed", words
    changed = {k: scrape.cache[k] for k, v in envelope.cache if scrape.cache.get(k, v) != v}
    if envelope.prefix_cache and changed.pop(_CACHING, None) is not None:
        yield "prefix_cache_off", f"the engine says {_CACHING}={scrape.cache[_CACHING]}"
    if changed:
        now, was = (
            ", ".join(f"{name}={labels[name]}" for name in changed)
            for labels in (changed, dict(envelope.cache))
        )
        yield "flags_changed", f"the engine runs with {now}; measured with {was}"


def _counted(window: Window, envelope: Envelope) -> Iterator[tuple[str, str]]:
    drafting, drafts = envelope.num_speculative_tokens is not None, window.rise(counters.DRAFTS)
    if drafting and not drafts:
        generated = window.rise(counters.GENERATED)
        yield "speculation_off", f"{generated:.0f} tokens were generated and none drafted"
    elif drafts and drafts >= 20:
        length = 1 + (window.rise(counters.ACCEPTED) or 0.0) / drafts
        if not drafting:
            yield "speculation_on", f"{drafts:.0f} drafts were made; the variant has none"
        elif words := _other_length(window, envelope, drafts):
            yield "draft_length_changed", words
        elif length < _USELESS:
            yield "draft_useless", f"acceptance length {length:.2f}: nearly no draft is accepted"
    prompts, queries = (window.rise(n) for n in (counters.PROMPT_TOKENS, counters.PREFIX_QUERIES))
    if envelope.prefix_cache and prompts and not queries:
        yield "prefix_cache_off", "prompts were read and nothing looked up in the prefix cache"


def _other_length(window: Window, envelope: Envelope, drafts: float) -> str | None:
    """Return in words that a draft has another number of tokens than measured; None if it has not.

    The run's own number is (acceptance length − 1) ÷ acceptance rate: n-grams draft fewer than K.
    A K that follows the load falls above the deployed one.
    """
    length, rate = (envelope.range_of(f"acceptance_{name}") for name in ("length", "rate"))
    tokens, most = window.rise(counters.DRAFT_TOKENS), envelope.num_speculative_tokens
    if tokens is None or most is None or length is None or rate is None or not rate.low:
        return None
    measured, now = (length.low - 1) / rate.low, tokens / drafts
    fewer = now < measured - (0.5 if measured > most - 0.05 else measured / 2)
    busier = (window.in_flight or 0.0) > 1.25 * envelope.in_flight
    if now <= most + 0.05 and (busier or not fewer):
        return None
    return f"{now:.2g} tokens are drafted per step (measured: {measured:.2g})"
