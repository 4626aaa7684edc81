"""What ``whet prompts`` found, in words and rows that console, Markdown and page share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from whet.core.records import CAUSES, Cause, HitTokens, PrefixNode, PromptAnalysis
from whet.core.units import human_duration
from whet.report.text import DASH, moment, number, one_line, percent, plural

CAUSE_HEADS: Final = ("cause", "where", "requests", "prefill tokens", "of all")
STEP_HEADS: Final = ("proposal", "requests", "hit rate", "gain", "prefill saved", "mean TTFT")
REPLAY_HEADS: Final = ("replay", "requests", "predicted", "measured", "off by", "mean TTFT")
_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A proposal's worth, with those before it followed too, in a cache that never evicts.

    ``gain`` is a share of prompt tokens over the step before. ``saved_tokens`` and ``saved_s``
    are prefill against the log as it is; ``ttft_s`` is the mean predicted TTFT, None unmeasured.
    """

    rate: float
    gain: float
    saved_tokens: int
    saved_s: float | None
    ttft_s: float | None


def headline(analysis: PromptAnalysis) -> str:
    """The hit rate as it is and mended, without eviction and at the given size, in a sentence."""
    hits, mended = analysis.hits, analysis.repaired
    if not hits.prompt_tokens:
        return "The log holds no prompt tokens: there is nothing that a cache could find."
    said = (
        f"Of {short_count(hits.prompt_tokens)} prompt tokens the cache can find "
        f"{percent(hits.rate)} again as the traffic is"
    )
    better = mended.rate > hits.rate
    if better:
        said += f", and {percent(mended.rate)} once what follows is mended"
    elif analysis.proposals:
        said += f", and {percent(mended.rate)} once all is mended"
    said += ", if it never evicts"
    if analysis.proposals and not better:
        said += (
            " (too few requests differ to pay for what then moves to the end of every prompt: "
            "mend those requests alone)"
        )
    if not analysis.causes and not better:
        said += " (nothing that should be shared is lost)"
    if analysis.sized is None or analysis.cache_blocks is None:
        return f"{said}."
    room = short_count(analysis.cache_blocks * analysis.block_size)
    sized = percent(analysis.sized.rate)
    if better and analysis.repaired_sized is not None:
        sized += f" and {percent(analysis.repaired_sized.rate)}"
    return f"{said}; with room for {room} tokens it finds {sized}."


def setting(analysis: PromptAnalysis) -> tuple[str, ...]:
    """What was read: source, model, requests, block, cache, time."""
    told = [analysis.source, analysis.model, plural(analysis.requests, "request")]
    told.append(f"blocks of {plural(analysis.block_size, 'token')}")
    if analysis.cache_blocks is not None:
        told.append(f"a cache of {plural(analysis.cache_blocks, 'KV block')}")
    if analysis.first_at_ns is not None and analysis.last_at_ns is not None:
        told.append(f"{when(analysis.first_at_ns)} … {when(analysis.last_at_ns)}")
    return tuple(one_line(word) for word in told)


def cause_words(kind: str) -> str:
    """``date`` → ``dates and times``."""
    return CAUSES.get(kind, one_line(kind))


def ordered(analysis: PromptAnalysis) -> tuple[Cause, ...]:
    """The causes by prefill tokens lost, the costliest first."""
    return tuple(sorted(analysis.causes, key=lambda cause: -cause.tokens))


def cause_cells(cause: Cause, analysis: PromptAnalysis) -> tuple[str, ...]:
    """One cause as ``CAUSE_HEADS``."""
    return (
        cause_words(cause.kind),
        one_line(cause.where) + since(cause),
        f"{cause.requests:,}",
        f"{cause.tokens:,}",
        share(cause.tokens, analysis.hits.prompt_tokens),
    )


def since(cause: Cause) -> str:
    """``, since 2026-11-20 09:30 UTC`` where the time is known."""
    return "" if cause.since_ns is None else f", since {when(cause.since_ns)}"


def steps(analysis: PromptAnalysis) -> tuple[Step, ...]:
    """What each proposal is worth, in the list's order."""
    made, before = [], analysis.hits
    for proposal in analysis.proposals:
        made.append(_step(analysis, before, proposal.hits))
        before = proposal.hits
    return tuple(made)


def step_cells(title: str, requests: int, step: Step) -> tuple[str, ...]:
    """One proposal as ``STEP_HEADS``."""
    saved = f"{short_count(step.saved_tokens)} tokens"
    if step.saved_s is not None:
        saved += f", {human_duration(step.saved_s)}"
    figures = (percent(step.rate), f"{points(step.gain)} pt", saved, milliseconds(step.ttft_s))
    return (one_line(title), f"{requests:,}", *figures)


def mean_ttft_s(analysis: PromptAnalysis, hits: HitTokens) -> float | None:
    """Fixed part + prompt tokens not found ÷ requests × seconds a token; no queue in it."""
    if analysis.speed is None or not analysis.requests:
        return None
    missed = hits.prompt_tokens - hits.hit_tokens
    return analysis.speed.fixed_s + missed / analysis.requests * analysis.speed.s_per_token


def saving_sentence(analysis: PromptAnalysis) -> str:
    """What all proposals together save, or nothing where there are none or no speed is known."""
    done, speed = steps(analysis), analysis.speed
    first = mean_ttft_s(analysis, analysis.hits)
    if not done or speed is None or first is None:
        return ""
    last = done[-1]
    assert last.ttft_s is not None
    assert last.saved_s is not None
    return (
        f"Followed together they save {short_count(last.saved_tokens)} tokens of prefill, "
        f"{human_duration(last.saved_s)} at {number(1e6 * speed.s_per_token)} µs a token "
        f"({one_line(speed.source)}): the mean TTFT is predicted to fall from "
        f"{milliseconds(first)} to {milliseconds(last.ttft_s)}, without queueing."
    )


def replay_rows(analysis: PromptAnalysis) -> tuple[tuple[str, ...], ...]:
    """Each replay as ``REPLAY_HEADS``; ``off by`` is in points of hit rate."""
    return tuple(
        (
            one_line(replay.what),
            f"{replay.requests:,}",
            percent(replay.predicted.rate),
            percent(replay.measured.rate),
            f"{points(replay.measured.rate - replay.predicted.rate)} pt",
            milliseconds(replay.ttft_mean_s),
        )
        for replay in analysis.replays
    )


def differences(analysis: PromptAnalysis) -> tuple[str, ...]:
    """Why a replay differs from what was predicted, a sentence each."""
    return tuple(
        f"{one_line(item.what)}: {one_line(item.differs)}"
        for item in analysis.replays
        if item.differs
    )


def left_out_lines(analysis: PromptAnalysis) -> tuple[str, ...]:
    """``3 × a torn line (first: log.jsonl:7)``."""
    return tuple(
        f"{item.count:,} × {one_line(item.reason)} (first: {one_line(item.first)})"
        for item in analysis.left_out
    )


def method(analysis: PromptAnalysis) -> tuple[str, ...]:
    """How the figures come about and what is idealised, in short."""
    return (
        f"A block of {analysis.block_size:,} tokens is found again only where it and every token "
        "before it are the same, so hits are counted in full blocks.",
        "Requests are taken in the log's order, one after the other: a prompt is in the cache as "
        "soon as the next one comes. Two that run side by side may both compute what they share.",
        "A cache with a size evicts the block that was used longest ago (LRU), counted by stack "
        "distance (Mattson et al. 1970). Room that running requests need for their answers, and "
        "several servers behind a router, are not counted.",
        "A request's loss is put down to its first difference from those that it should share "
        "with; what differs further on shows once that is mended.",
        "TTFT is predicted as a fixed part plus the tokens not found times the measured seconds a "
        "token. Waiting in a queue is not in it.",
    )


def is_redacted(analysis: PromptAnalysis) -> bool:
    """Whether no text of a prompt is in the analysis, though there would be some to show."""
    texts = [node.text for node in walk(analysis.tree) if node.tokens]
    texts += [item.before for cause in analysis.causes for item in cause.examples]
    texts += [proposal.before for proposal in analysis.proposals]
    return bool(texts) and all(text is None for text in texts)


def walk(tree: PrefixNode) -> Iterator[PrefixNode]:
    """Every node, a parent before its children; a chain of turns may be deep, so no recursion."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


def short_count(count: int) -> str:
    """``15,000``, ``1.50 M``, ``2.10 G``: three figures where all of them would be noise."""
    for size, sign in ((10**9, "G"), (10**6, "M")):
        if count >= size:
            return f"{number(count / size)} {sign}"
    return f"{count:,}"


def share(tokens: int, whole: int) -> str:
    """``tokens`` of ``whole`` in per cent, a dash where there is nothing to divide by."""
    return percent(tokens / whole) if whole else DASH


def points(difference: float) -> str:
    """A difference of shares in signed points: ``+1.2``."""
    value = round(100 * difference, 1)
    return f"{value:+.1f}" if value else "0.0"


def milliseconds(seconds: float | None) -> str:
    """``412 ms``, or a dash."""
    return DASH if seconds is None else f"{number(1e3 * seconds)} ms"


def when(at_ns: int) -> str:
    """Unix nanoseconds as ``2026-11-20 09:30 UTC``; a time beyond the calendar as its number."""
    try:
        return moment(datetime.fromtimestamp(at_ns / _NS_PER_S, UTC).isoformat())
    except (OverflowError, OSError, ValueError):
        return f"{at_ns} ns"


def _step(analysis: PromptAnalysis, before: HitTokens, after: HitTokens) -> Step:
    hits, speed = analysis.hits, analysis.speed
    saved = (hits.prompt_tokens - hits.hit_tokens) - (after.prompt_tokens - after.hit_tokens)
    return Step(
        rate=after.rate,
        gain=after.rate - before.rate,
        saved_tokens=saved,
        saved_s=None if speed is None else saved * speed.s_per_token,
        ttft_s=mean_ttft_s(analysis, after),
    )
