"""What a server says about an error, in its own words."""

from __future__ import annotations

from typing import Any, Final

from whet.client.wire import Exchange
from whet.core.outside import json_value
from whet.core.redact import redact

_REDIRECTS: Final = range(300, 400)
_SHOWN: Final = 300
_READ: Final = 65536
_KEYS: Final = (
    *("error", "errors", "message", "msg", "detail", "details", "description", "reason", "title"),
    *("error_msg", "status_msg", "base_resp"),
)
"""Where servers write a message; the first that has one is taken."""


def server_words(text: str) -> str:
    """Return the message of an error in JSON, whatever its form, or ``text`` itself."""
    try:
        return error_words(json_value(text)) or text
    except ValueError:
        return text


def error_words(value: Any) -> str:
    """Return the message in the JSON value of an error; empty where it has none."""
    if isinstance(value, list):
        return "; ".join(filter(None, map(error_words, value)))
    if not isinstance(value, dict):
        return value if isinstance(value, str) else ""
    words = next(filter(None, (error_words(value.get(key)) for key in _KEYS)), "")
    place = value.get("loc") or value.get("param")  # the field that FastAPI or OpenAI refuses
    where = ".".join(map(str, place)) if isinstance(place, list) else place
    named = isinstance(where, str) and words and where not in words
    return f"{where}: {words}" if named else words


def body_start(exchange: Exchange) -> str:
    """The beginning of a body for a message, or why it cannot be read."""
    location = exchange.headers.get("location")
    if location is not None and exchange.status in _REDIRECTS:
        return f"it redirects to {location}; give that address"
    if exchange.encoded is not None:
        return (
            f"the body is encoded as {exchange.encoded}; turn compression off in the server or its "
            "proxy"
        )
    return redact(server_words(exchange.text[:_READ])).strip()[:_SHOWN]  # a cut key has no form
