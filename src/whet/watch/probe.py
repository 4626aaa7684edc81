"""The probes of one period: small, bounded, and left out while requests wait."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from whet.client import (
    CompletionCall,
    Failure,
    HttpError,
    StreamClient,
    get_json,
    get_text,
    post_many,
    run_async,
)
from whet.client.counters import info_labels, parse_buckets, parse_counters, rename_counters
from whet.client.endpoint import Endpoint
from whet.core import counters
from whet.core.errors import EngineLostError
from whet.core.provenance import now
from whet.core.records.envelope import Envelope
from whet.core.records.quality_checks import GoldenProbe, GoldenProbes
from whet.quality.asking import ModelEndpoint
from whet.quality.golden import take_golden
from whet.watch.mismatches import hangs, timed_out
from whet.watch.observation import (
    GOLDEN_PER_PERIOD,
    OUTPUT_LENGTHS,
    PROMPT_LENGTHS,
    Answers,
    Observation,
    Scrape,
    Speed,
    window_between,
)

SPEED_TOKENS: Final = 32
CHAT_EVERY: Final = 5
_SHOWN: Final = 255
"""Characters of a server's names that are read."""
_KV_PRESSURE: Final = 0.9
_CHAT: Final = ({"role": "user", "content": "Name one color."},)
_NAME: Final = re.compile(r"([A-Za-z_:][\w:]*)")
_UNAUTHORIZED: Final = (401, 403)

Identity = tuple[float | None, str | None, frozenset[tuple[str, int | None]]]
"""Start of the process, version of the engine, served models."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The watched server. ``timeout_s`` bounds every request.

    ``names`` map the engine's own counters to those of ``core.counters``.
    """

    url: str
    envelope: Envelope
    golden: GoldenProbes | None
    timeout_s: float = 30.0
    names: tuple[tuple[str, str], ...] = ()


def probe_share(target: Target, period_s: float) -> float:
    """The share of the measured capacity that the probes of one period take.

    The larger of prompt tokens and output tokens, each over what the variant did in that time at
    the load that it is deployed for.
    """
    envelope, golden = target.envelope, target.golden
    capacity = envelope.capacity
    prompts = [len(probe.prompt) for probe in golden.probes] if golden else [0]
    read = sum(prompts) / len(prompts) * GOLDEN_PER_PERIOD + max(prompts)
    written = SPEED_TOKENS + GOLDEN_PER_PERIOD + 1
    tokens_in = capacity.rps * max(1.0, envelope.input_tokens_mean) * period_s
    return max(read / max(1.0, tokens_in), written / max(1.0, capacity.tps * period_s))


def observe(
    target: Target,
    *,
    turn: int | None,
    cursor: int,
    last: Scrape | None = None,
    checked: Identity | None = None,
) -> Observation:
    """One period: read the server, and probe it unless it is under pressure.

    ``turn`` counts the periods with probes from 0 and is None for one without; ``cursor`` is the
    first golden probe. A server that is not ``checked`` is asked the whole set, and one that stands
    still since ``last`` is probed whatever waits. Never raises for what the server does.
    """
    at, at_s = now(), time.time()
    try:
        before = _scrape(target)
        version, models = _identity(target)
    except HttpError as error:
        silence = "unauthorized" if error.status in _UNAUTHORIZED else "unreachable"
        return Observation(at=at, at_s=at_s, silence=f"{silence}: {error}")
    except EngineLostError as error:
        silence = "hung" if accepts(target) else "unreachable"
        return Observation(at=at, at_s=at_s, silence=f"{silence}: {error}")
    look = Observation(at=at, at_s=at_s, version=version, models=models, before=before)
    window = window_between(last, before) if last is not None and before is not None else None
    still = window is not None and window.still
    if not still:
        look = replace(look, skipped=_pressure(before, target.envelope))
    whole = identity_of(look) != checked
    due = turn is not None or still or whole
    if not due or look.skipped is not None or target.envelope.model not in models:
        return look
    return _probe(target, look, turn or 0, next_probes(target.golden, cursor, whole=whole))


def identity_of(look: Observation) -> Identity:
    """What is different when another process, version or model answers."""
    start = None if look.before is None else look.before.process_start
    return start, look.version, frozenset((look.models or {}).items())


def _probe(
    target: Target, look: Observation, turn: int, chosen: Sequence[GoldenProbe]
) -> Observation:
    speed, error = _speed(target, chosen)
    look = replace(look, speed=speed, speed_error=error)
    if error is not None:
        look = _again(target, look)
        if hangs(look) or not timed_out(look):  # it is not asked more
            return look
        chosen = chosen[:GOLDEN_PER_PERIOD]  # each may time out too
    look = replace(
        look,
        answers=_answers(target, chosen),
        chat_prompt_tokens=_chat(target) if turn % CHAT_EVERY == 0 else None,
    )
    return _again(target, look)


def _again(target: Target, look: Observation) -> Observation:
    """The observation with the counters of now."""
    try:
        return replace(look, after=_scrape(target))
    except (HttpError, EngineLostError):
        return look


def next_probes(
    golden: GoldenProbes | None, cursor: int, *, whole: bool = False
) -> tuple[GoldenProbe, ...]:
    """The golden probes of one period, in turn; the ``whole`` set where it has to be sure."""
    if golden is None or not golden.probes:
        return ()
    count = len(golden.probes)
    places = range(cursor, cursor + (count if whole else min(GOLDEN_PER_PERIOD, count)))
    return tuple(golden.probes[at % count] for at in places)


def accepts(target: Target) -> bool:
    """Return whether the server takes connections, although it may not answer."""
    endpoint = Endpoint.parse(target.url)
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout=target.timeout_s).close()
    except OSError:
        return False
    return True


def _scrape(target: Target) -> Scrape | None:
    """The counters; None where ``/metrics`` is an error."""
    try:
        text = get_text(target.url, "/metrics", timeout_s=target.timeout_s)
    except HttpError:
        return None
    return read_scrape(text, at_s=time.time(), renamed=dict(target.names))


def read_scrape(text: str, *, at_s: float, renamed: Mapping[str, str] = {}) -> Scrape:
    """A scrape from Prometheus' text format; ``renamed`` are the engine's own counter names."""
    names = [match[1] for line in text.splitlines() if (match := _NAME.match(line))]
    own = sum(name.startswith("vllm:") or name in renamed for name in names)
    return Scrape(
        at_s=at_s,
        values=rename_counters(dict(parse_counters(text)), renamed),
        buckets={name: parse_buckets(text, name) for name in (PROMPT_LENGTHS, OUTPUT_LENGTHS)},
        cache=info_labels(text, counters.CACHE_CONFIG),
        names=own,
        other_names=len(names) - own,
    )


def _identity(target: Target) -> tuple[str | None, dict[str, int | None]]:
    models = _json(target, "/v1/models").get("data")
    version = _json(target, "/version").get("version")
    lengths = {
        str(item.get("id"))[:_SHOWN]: length
        if isinstance(length := item.get("max_model_len"), int)
        else None
        for item in (models if isinstance(models, list) else ())
        if isinstance(item, dict)
    }
    return (str(version)[:_SHOWN] if version else None), lengths


def _json(target: Target, path: str) -> dict[str, Any]:
    try:
        reply = get_json(target.url, path, timeout_s=target.timeout_s)
    except HttpError as error:
        if error.status != 404:
            raise
        return {}
    except ValueError:
        return {}
    return reply if isinstance(reply, dict) else {}


def _pressure(scrape: Scrape | None, envelope: Envelope) -> str | None:
    """Why the probes are left out now, or None. A request may wait for one step."""
    if scrape is None:
        return None
    if (scrape.values.get(counters.WAITING) or 0) > envelope.in_flight / 4:
        return "requests wait"
    if (scrape.values.get(counters.KV_USAGE) or 0) > _KV_PRESSURE:
        return "the KV cache is nearly full"
    return None


def _speed(target: Target, probes: Sequence[GoldenProbe]) -> tuple[Speed | None, str | None]:
    if not probes:
        return None, None
    assert target.golden is not None
    prompt = max((probe.prompt for probe in target.golden.probes), key=len)
    call = CompletionCall(prompt_token_ids=prompt, max_tokens=SPEED_TOKENS, ignore_eos=True, seed=0)

    async def send() -> Any:
        client = StreamClient(target.url, target.envelope.model, timeout_s=target.timeout_s)
        async with client:
            return await client.complete(call)

    event = run_async(send())
    tokens, times = event.output_tokens or 0, event.chunk_ns
    if event.error is not None or tokens < 2 or len(times) < 2:
        return None, f"probe: {event.error or 'no output'}: {event.detail or ''}".strip(": ")
    return (
        Speed(
            ttft_s=(times[0] - event.sent_ns) / 1e9,
            tpot_s=(times[-1] - times[0]) / 1e9 / (tokens - 1),
            tokens=tokens,
            chunks=len(times),
        ),
        None,
    )


def _answers(target: Target, probes: Sequence[GoldenProbe]) -> Answers | None:
    if not probes or target.golden is None:
        return None
    endpoint = ModelEndpoint(
        url=target.url,
        model=target.envelope.model,
        concurrency=1,
        timeout_s=target.timeout_s,
    )
    questions = [(probe.id, probe.prompt) for probe in probes]
    follow = [probe.tokens[0].token_id for probe in probes]
    taken = take_golden(endpoint, questions, target.golden.variant, follow=follow, repetitions=1)
    if taken.missing is not None and "timeout" in taken.missing:
        return None
    logprobs = {probe.id: probe.tokens[0].mean for probe in taken.probes}
    return Answers(logprobs=logprobs, error=taken.missing, broken=taken.broken)


def _chat(target: Target) -> int | None:
    """Prompt tokens of a fixed message; None where the server has no chat template."""
    body = {"model": target.envelope.model, "messages": list(_CHAT), "max_tokens": 1}
    path, timeout_s = "/v1/chat/completions", target.timeout_s
    reply = post_many(target.url, path, [body], concurrency=1, timeout_s=timeout_s)[0]
    usage = {} if isinstance(reply, Failure) else reply.get("usage") or {}
    tokens = usage.get("prompt_tokens")
    return tokens if isinstance(tokens, int) else None
