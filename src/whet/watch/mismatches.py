"""What contradicts the deployed variant in one period and needs no statistics."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from whet.core import counters
from whet.core.records.envelope import Envelope
from whet.watch.observation import Observation, Scrape, Window, window_between
from whet.watch.signals import References, shorter_drafts

_LEAST_TOKENS: Final = 20
_LISTED: Final = 20
_USELESS: Final = 1.05
_CACHING: Final = "enable_prefix_caching"


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
        return dict([look.silence.split(": ", 1)])
    wrong: dict[str, str] = {}
    wrong.update(_identity(look, references.envelope))
    if look.speed_error is not None and not timed_out(look):
        wrong["probe_failed"] = look.speed_error
    elif hangs(look):
        wrong["hung"] = f"{look.speed_error}; no token came and no request finished meanwhile"
    if look.answers is not None and look.answers.broken is not None:
        wrong["answers_broken"] = look.answers.broken
    if look.answers is not None and look.answers.error is not None:
        wrong["answers_unread"] = look.answers.error
    if chat_prompt_tokens is not None and look.chat_prompt_tokens not in (None, chat_prompt_tokens):
        wrong["chat_template_changed"] = (
            f"a fixed message has {look.chat_prompt_tokens} tokens, {chat_prompt_tokens} at first"
        )
    wrong.update(_metrics(look.before, references.envelope))
    if window is not None and (window.rise(counters.GENERATED) or 0) >= _LEAST_TOKENS:
        wrong.update(_counted(window, references.envelope))
    for kind, words in (look.claims or {}).items():
        wrong[f"claim_{kind}"] = words
    return wrong


def timed_out(look: Observation) -> bool:
    """Whether the speed probe was not answered in time."""
    return look.speed_error is not None and "timeout" in look.speed_error


def hangs(look: Observation) -> bool:
    """Whether a probe timed out and, as far as the counters say, nothing else was answered."""
    if not timed_out(look) or look.before is None or look.after is None:
        return timed_out(look)
    window = window_between(look.before, look.after)
    return window is not None and not window.rise(counters.GENERATED) and not window.requests


def _identity(look: Observation, envelope: Envelope) -> Iterator[tuple[str, str]]:
    if look.version is not None and not _same_version(look.version, envelope.engine_version):
        yield (
            "engine_version",
            f"{envelope.engine} {look.version} answers; {envelope.engine_version} was measured",
        )
    if look.models is None:
        return
    if envelope.model not in look.models:
        names = ", ".join(islice(look.models, _LISTED)) or "no model"
        yield "wrong_model", f"{names} is served instead of {envelope.model}"
        return
    length, measured = look.models[envelope.model], envelope.max_model_len
    if length is not None and measured is not None and length < measured:
        yield "context_shortened", f"max_model_len is {length}, was {measured}"
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
    missing = [name for name in envelope.series if name not in scrape.values]
    if {counters.DRAFTS, counters.ACCEPTED} == set(missing) and envelope.num_speculative_tokens:
        yield "speculation_off", "the engine counts no drafts"
    elif missing:
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
    if now <= most + 0.05 and (shorter_drafts(window, envelope) or not fewer):
        return None
    return f"{now:.2g} tokens are drafted per step (measured: {measured:.2g})"
