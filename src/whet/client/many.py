"""Many plain requests at once for synchronous callers; answers in the order of the questions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.client.endpoint import Endpoint
from whet.client.pool import ConnectionPool
from whet.client.runner import run_async
from whet.client.stream import body_start
from whet.client.wire import Exchange
from whet.core.redact import redact

_HTTP_OK = 200
_DIGITS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A request without a usable answer: a typed word, as in ``RequestEvent.error``, and why."""

    error: str
    detail: str


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


async def _exchange_all(
    endpoint: Endpoint, exchanges: Sequence[Exchange], *, concurrency: int, timeout_s: float
) -> None:
    async with ConnectionPool(endpoint, size=concurrency, timeout_s=timeout_s) as pool:
        await asyncio.gather(*(pool.send(exchange) for exchange in exchanges))


def _answer(exchange: Exchange) -> dict[str, Any] | Failure:
    if exchange.error is not None:
        return Failure(error=exchange.error, detail=redact(exchange.detail or ""))
    if exchange.status != _HTTP_OK:
        return Failure(error=f"http_{exchange.status}", detail=redact(body_start(exchange)))
    try:
        value: dict[str, Any] = json.loads(b"".join(exchange.parts), parse_int=_integer)
    except (ValueError, RecursionError) as error:
        return Failure(error="bad_json", detail=f"{error}: {redact(body_start(exchange))}")
    if not _is_completion(value):
        detail = f"not the form of a completion: {redact(body_start(exchange))}"
        return Failure(error="bad_json", detail=detail)
    if value.get("error"):
        return Failure(error="server_error", detail=redact(str(value["error"])))
    return value


def _is_completion(value: Any) -> bool:
    """Whether it is an object, and the parts that it has are of OpenAI's kinds."""
    if not isinstance(value, dict):
        return False
    choices = value.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices):
        return False
    logprobs = [each.get("logprobs") or {} for each in choices]
    parts = [value.get("usage") or {}, *(each.get("message") or {} for each in choices), *logprobs]
    if not all(isinstance(each, dict) for each in parts):
        return False
    columns = (column or [] for each in logprobs for column in each.values())
    texts = (each.get("text") or "" for each in choices)
    return all(isinstance(x, list) for x in columns) and all(isinstance(x, str) for x in texts)


def _integer(digits: str) -> int | float:
    """A number of any length that a float can be made of."""
    return int(digits) if len(digits) < _DIGITS else float(digits)
