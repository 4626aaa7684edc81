"""One plain request at a time, without an event loop."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from whet.client.endpoint import Endpoint
from whet.core.errors import EngineLostError, MeasurementError
from whet.core.redact import redact

_HTTP_OK = 200
_NOT_FOUND = 404
_INTERIM: Final = frozenset({*range(100, 200)} - {101})
_DETAIL_CHARS = 300


class HttpError(MeasurementError):
    """An HTTP error that the server answered; ``status`` is its code."""

    def __init__(self, message: str, *, status: int) -> None:
        """Store the status next to the message."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A whole answer; names of ``headers`` are lower-case."""

    status: int
    text: str
    headers: Mapping[str, str]


class _Response(http.client.HTTPResponse):
    """An answer without the interim ones before it; the library itself skips 100 alone."""

    def _read_status(self) -> tuple[str, int, str]:
        line: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
        while line[1] in _INTERIM:
            http.client.parse_headers(self.fp)
            line = super()._read_status()  # type: ignore[misc]
        return line


def exchange(
    endpoint: Endpoint, path: str, *, body: object = None, timeout_s: float = 30.0
) -> Reply:
    """GET, or POST a JSON ``body``, whatever the status; ``OSError`` or ``HTTPException``.

    No proxy is ever used: the loopback is not the internet.
    """
    context, place = endpoint.tls_context(), (endpoint.host, endpoint.port)
    connection = (
        http.client.HTTPConnection(*place, timeout=timeout_s)
        if context is None
        else http.client.HTTPSConnection(*place, timeout=timeout_s, context=context)
    )
    connection.response_class = _Response
    data = None if body is None else json.dumps(body)
    headers = endpoint.headers() | ({} if body is None else {"Content-Type": "application/json"})
    method = "GET" if body is None else "POST"
    try:
        connection.request(method, endpoint.path(path), body=data, headers=headers)
        response = connection.getresponse()
        return Reply(
            status=response.status,
            text=response.read().decode("utf-8", "replace"),
            headers={name.lower(): value for name, value in response.getheaders()},
        )
    finally:
        connection.close()


def get_text(base_url: str, path: str, *, timeout_s: float = 30.0) -> str:
    """GET a text; raises as ``get``."""
    return get(base_url, path, timeout_s=timeout_s).text


def get(base_url: str, path: str, *, timeout_s: float = 30.0) -> Reply:
    """GET a text and its headers.

    Raises ``EngineLostError`` where nothing answers in time, ``HttpError`` for an HTTP error.
    """
    endpoint = Endpoint.parse(base_url)
    try:
        reply = exchange(endpoint, path, timeout_s=timeout_s)
    except TimeoutError as error:
        raise EngineLostError(
            f"{endpoint.url_of(path)} gave no answer within {timeout_s:g} s; look at the server's "
            "log" + (", and for a server without TLS write http://" if endpoint.tls else "")
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise EngineLostError(
            f"{endpoint.url} cannot be reached ({endpoint.why(error)})",
            fix="check that the server is running",
        ) from error
    if reply.status != _HTTP_OK:
        raise HttpError(
            f"{endpoint.url_of(path)} answered HTTP {reply.status}: {redact(_why(reply, path))}",
            status=reply.status,
        )
    return reply


def _why(reply: Reply, path: str) -> str:
    """Return what the server answered, or what to do instead."""
    if (target := reply.headers.get("location")) is not None:
        return f"it redirects to {target}; give that address"
    text = reply.text[:_DETAIL_CHARS].strip()
    if reply.status == _NOT_FOUND and path.startswith("/v1/"):
        return (
            f"{text}; give the server's address with what precedes /v1 in its URLs, or a whole URL "
            "of another root, as in https://host/api/v4/chat/completions"
        )
    return text
