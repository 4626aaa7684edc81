"""One plain request at a time, without an event loop."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass

from whet.client.endpoint import Endpoint
from whet.client.errors import HttpError
from whet.core.errors import EngineLostError
from whet.core.redact import redact

_HTTP_OK = 200
_DETAIL_CHARS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A whole answer; names of ``headers`` are lower-case."""

    text: str
    headers: Mapping[str, str]


def get_text(base_url: str, path: str, *, timeout_s: float = 30.0) -> str:
    """GET a text; raises as ``get``."""
    return get(base_url, path, timeout_s=timeout_s).text


def get(base_url: str, path: str, *, timeout_s: float = 30.0) -> Reply:
    """GET a text and its headers.

    Raises ``EngineLostError`` where nothing answers in time, ``HttpError`` for an HTTP error.
    """
    endpoint = Endpoint.parse(base_url)
    context, place = endpoint.tls_context(), (endpoint.host, endpoint.port)
    connection = (
        http.client.HTTPConnection(*place, timeout=timeout_s)
        if context is None
        else http.client.HTTPSConnection(*place, timeout=timeout_s, context=context)
    )
    try:
        connection.request("GET", f"{endpoint.prefix}{path}", headers=endpoint.headers())
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
        detail = answer[:_DETAIL_CHARS].decode("utf-8", "replace").strip()
        if target is not None:
            detail = f"it redirects to {target}; give that address"
        raise HttpError(
            f"{endpoint.url}{path} answered HTTP {response.status}: {redact(detail)}",
            status=response.status,
        )
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(text=answer.decode("utf-8", "replace"), headers=headers)
