"""One plain request at a time, without an event loop."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any

from whet.client.endpoint import Endpoint
from whet.client.errors import HttpError
from whet.core.errors import EngineLostError, MeasurementError
from whet.core.redact import redact

_HTTP_OK = 200
_DETAIL_CHARS = 300


def post_json(
    base_url: str,
    path: str,
    body: Mapping[str, Any],
    *,
    timeout_s: float = 120.0,
) -> dict[str, Any]:
    """POST a JSON body and return the JSON object that comes back.

    Raises ``EngineLostError`` where nothing answers in time, ``HttpError`` for an HTTP error, and
    ``MeasurementError`` for an answer that is not a JSON object.
    """
    endpoint = Endpoint.parse(base_url)
    answer = _request(endpoint, "POST", path, body=json.dumps(body).encode(), timeout_s=timeout_s)
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise MeasurementError(
            f"{endpoint.url}{path} answered with something other than JSON; check that it is an "
            "OpenAI-compatible server"
        ) from error
    if not isinstance(value, dict):
        raise MeasurementError(f"{endpoint.url}{path} answered with JSON that is not an object")
    return value


def get_text(base_url: str, path: str, *, timeout_s: float = 30.0) -> str:
    """GET a text; raises as ``post_json`` does."""
    endpoint = Endpoint.parse(base_url)
    return _request(endpoint, "GET", path, body=None, timeout_s=timeout_s).decode(
        "utf-8", "replace"
    )


def _request(
    endpoint: Endpoint, method: str, path: str, *, body: bytes | None, timeout_s: float
) -> bytes:
    kind = http.client.HTTPSConnection if endpoint.tls else http.client.HTTPConnection
    connection = kind(endpoint.host, endpoint.port, timeout=timeout_s)
    headers = endpoint.headers() | {"Content-Type": "application/json"}
    try:
        connection.request(method, f"{endpoint.prefix}{path}", body=body, headers=headers)
        response = connection.getresponse()
        answer = response.read()
    except TimeoutError as error:
        raise EngineLostError(
            f"{endpoint.url}{path} gave no answer within {timeout_s:g} s; look at the server's log"
            + (", and for a server without TLS write http://" if endpoint.tls else "")
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise EngineLostError(
            f"{endpoint.url} cannot be reached ({endpoint.why(error)}); check that the server is "
            "running"
        ) from error
    finally:
        connection.close()
    if response.status != _HTTP_OK:
        target = response.getheader("Location")
        said = answer[:_DETAIL_CHARS].decode("utf-8", "replace").strip()
        if target is not None:
            said = f"it redirects to {target}; give that address"
        raise HttpError(
            f"{endpoint.url}{path} answered HTTP {response.status}: {redact(said)}",
            status=response.status,
        )
    return answer
