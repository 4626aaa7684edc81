"""Whole answers for synchronous callers: pages of a server, and requests without streaming."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.client.endpoint import Endpoint
from whet.client.pool import ConnectionPool
from whet.client.runner import run_async
from whet.client.server_words import body_start
from whet.client.wire import Exchange
from whet.core.errors import EngineLostError, MeasurementError
from whet.core.outside import json_value
from whet.core.redact import redact

_HTTP_OK: Final = 200
_NOT_FOUND: Final = 404
_DIGITS: Final = 20
_NO_HTTP: Final = ("bad_http", "reset")


class HttpError(MeasurementError):
    """An HTTP error that the server answered; ``status`` is its code."""

    def __init__(self, message: str, *, status: int) -> None:
        """Store the status next to the message."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A request without a usable answer: a typed word, as in ``RequestEvent.error``, and why."""

    error: str
    detail: str


def exchange_all(
    endpoint: Endpoint, exchanges: Sequence[Exchange], *, concurrency: int, timeout_s: float
) -> None:
    """Fill every exchange, at most ``concurrency`` at once; ``timeout_s`` bounds each."""

    async def send() -> None:
        async with ConnectionPool(endpoint, size=concurrency, timeout_s=timeout_s) as pool:
            await asyncio.gather(*map(pool.send, exchanges))

    run_async(send())


def request(
    endpoint: Endpoint,
    path: str,
    *,
    body: Mapping[str, Any] | None = None,
    timeout_s: float = 30.0,
) -> Exchange:
    """GET, or POST a JSON ``body``; what went wrong is in the exchange. No proxy is ever used."""
    sent = Exchange(request=endpoint.get(path) if body is None else endpoint.post(path, body))
    exchange_all(endpoint, [sent], concurrency=1, timeout_s=timeout_s)
    if sent.error in _NO_HTTP and sent.status is None and not endpoint.tls:
        sent.detail = f"no HTTP answer: {sent.detail}; for a server with TLS write https://"
    return sent


def get_text(base_url: str, path: str, *, timeout_s: float = 30.0) -> str:
    """GET a text.

    Raises ``EngineLostError`` where nothing answers in time, ``HttpError`` for an HTTP error.
    """
    endpoint = Endpoint.parse(base_url)
    page = request(endpoint, path, timeout_s=timeout_s)
    if page.error == "timeout":
        raise EngineLostError(
            f"{endpoint.url_of(path)} gave no answer within {timeout_s:g} s; look at the server's "
            "log" + (", and for a server without TLS write http://" if endpoint.tls else "")
        )
    if page.error is not None:
        why = (page.detail or page.error).removeprefix(f"no connection to {endpoint.url}: ")
        raise EngineLostError(
            f"{endpoint.url} cannot be reached ({redact(why)})",
            fix="check that the server is running",
        )
    if page.status != _HTTP_OK or page.encoded is not None:
        raise HttpError(
            f"{endpoint.url_of(path)} answered HTTP {page.status}: {_why(page, path)}",
            status=page.status or 0,
        )
    return page.text


def get_json(base_url: str, path: str, *, timeout_s: float = 30.0) -> Any:
    """GET a JSON value; ``ValueError`` for anything else, and as ``get_text``."""
    return json_value(get_text(base_url, path, timeout_s=timeout_s))


def _why(page: Exchange, path: str) -> str:
    """Return what the server answered, or what to do instead."""
    words = body_start(page)
    if page.status == _NOT_FOUND and path.startswith("/v1/"):
        return (
            f"{words}; give the server's address with what precedes /v1 in its URLs, or a whole "
            "URL of another root, as in https://host/api/v4/chat/completions"
        )
    return words


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
    exchange_all(endpoint, exchanges, concurrency=concurrency, timeout_s=timeout_s)
    return [_answer(exchange) for exchange in exchanges]


def _answer(exchange: Exchange) -> dict[str, Any] | Failure:
    if exchange.error is not None:
        return Failure(error=exchange.error, detail=redact(exchange.detail or ""))
    if exchange.status != _HTTP_OK:
        return Failure(error=f"http_{exchange.status}", detail=body_start(exchange))
    try:
        value: dict[str, Any] = json_value(b"".join(exchange.parts), whole=_integer)
    except ValueError as error:
        return Failure(error="bad_json", detail=f"{error}: {body_start(exchange)}")
    if not _is_completion(value):
        detail = f"not the form of a completion: {body_start(exchange)}"
        return Failure(error="bad_json", detail=detail)
    if value.get("error"):
        return Failure(error="server_error", detail=body_start(exchange))
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
