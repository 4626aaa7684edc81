"""Many plain requests at once for synchronous callers; answers in the order of the questions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.client.calls import CompletionCall
from whet.client.endpoint import Endpoint
from whet.client.pool import ConnectionPool
from whet.client.runner import run_async
from whet.client.stream import body_start
from whet.client.usage import token_count
from whet.client.wire import Exchange
from whet.core.redact import redact

_HTTP_OK = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A request without a usable answer: a typed word, as in ``RequestEvent.error``, and why."""

    error: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One answer. ``raw`` is the server's whole JSON, ``failure`` is set where there is none."""

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    raw: Mapping[str, Any] | None
    failure: Failure | None


def post_many(
    base_url: str,
    path: str,
    bodies: Sequence[Mapping[str, Any]],
    *,
    concurrency: int,
    timeout_s: float,
) -> list[dict[str, Any] | Failure]:
    """POST every body, at most ``concurrency`` at once; order kept, nothing dropped or raised.

    ``timeout_s`` bounds each request. Not for callers inside a running event loop.
    """
    endpoint = Endpoint.parse(base_url)
    exchanges = [Exchange(request=endpoint.post(path, body)) for body in bodies]
    run_async(_exchange_all(endpoint, exchanges, concurrency=concurrency, timeout_s=timeout_s))
    return [_answer(exchange) for exchange in exchanges]


def complete_many(
    base_url: str,
    model: str,
    calls: Sequence[CompletionCall],
    *,
    concurrency: int,
    timeout_s: float,
) -> list[Completion]:
    """Answer every call without streaming; order kept. Calls may mix prompts and chats."""
    paths = list(dict.fromkeys(call.path for call in calls))
    answers: dict[int, dict[str, Any] | Failure] = {}
    for path in paths:
        chosen = [i for i, call in enumerate(calls) if call.path == path]
        bodies = [calls[i].body(model=model, stream=False) for i in chosen]
        got = post_many(base_url, path, bodies, concurrency=concurrency, timeout_s=timeout_s)
        answers.update(zip(chosen, got, strict=True))
    return [_completion(answers[i]) for i in range(len(calls))]


async def _exchange_all(
    endpoint: Endpoint, exchanges: Sequence[Exchange], *, concurrency: int, timeout_s: float
) -> None:
    async with ConnectionPool(endpoint, size=concurrency, timeout_s=timeout_s) as pool:
        await asyncio.gather(*(pool.roundtrip(exchange) for exchange in exchanges))


def _answer(exchange: Exchange) -> dict[str, Any] | Failure:
    if exchange.error is not None:
        return Failure(error=exchange.error, detail=redact(exchange.detail or ""))
    if exchange.status != _HTTP_OK:
        return Failure(error=f"http_{exchange.status}", detail=redact(body_start(exchange)))
    try:
        value = json.loads(b"".join(exchange.parts))
    except (ValueError, RecursionError) as error:
        return Failure(error="bad_json", detail=f"{error}: {redact(body_start(exchange))}")
    if not isinstance(value, dict):
        return Failure(error="bad_json", detail=f"not an object: {redact(body_start(exchange))}")
    if value.get("error"):
        return Failure(error="server_error", detail=redact(str(value["error"])))
    return value


def _completion(answer: dict[str, Any] | Failure) -> Completion:
    if isinstance(answer, Failure):
        return _failed(answer)
    choices, usage = answer.get("choices"), answer.get("usage")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return _failed(Failure(error="no_tokens", detail="the answer holds no choices"))
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return Completion(
        text=str(choice.get("text") or content or ""),
        finish_reason=choice.get("finish_reason"),
        prompt_tokens=token_count(usage, "prompt_tokens"),
        output_tokens=token_count(usage, "completion_tokens"),
        raw=answer,
        failure=None,
    )


def _failed(failure: Failure) -> Completion:
    return Completion(
        text="",
        finish_reason=None,
        prompt_tokens=None,
        output_tokens=None,
        raw=None,
        failure=failure,
    )
