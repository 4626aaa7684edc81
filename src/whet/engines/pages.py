"""The JSON pages of a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from whet.client.simple import HttpError, get_text
from whet.core.redact import redact

_TIMEOUT_S: Final = 30.0


def text_page(base_url: str, path: str, *, timeout_s: float = _TIMEOUT_S) -> str:
    """The text at ``path``; empty where the server has no such page.

    Raises ``EngineLostError`` where the server does not answer at all.
    """
    try:
        return get_text(base_url, path, timeout_s=timeout_s)
    except HttpError:
        return ""


def json_page(base_url: str, path: str, *, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    """The object at ``path``; empty where the server has no such page. Raises as ``text_page``."""
    try:
        data = json.loads(text_page(base_url, path, timeout_s=timeout_s) or "{}")
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def model_cards(base_url: str) -> list[dict[str, Any]]:
    """GET ``/v1/models``; empty where the server has no such page."""
    cards = json_page(base_url, "/v1/models").get("data")
    return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []


def flatten(value: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """``{"a": {"b": 1}}`` → ``("a.b", "1")``; a list is one value, in JSON."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from flatten(inside, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, redact(value if isinstance(value, str) else json.dumps(value))
