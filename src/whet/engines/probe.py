"""What a running server answers: ``/health``, one generation as proof, pages of text and JSON."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from whet.client import Endpoint, simple
from whet.client.server_words import server_words
from whet.client.simple import HttpError, get_text
from whet.client.usage import token_count
from whet.core.errors import EngineError
from whet.core.outside import json_value
from whet.core.redact import redact

_BODY_SHOWN = 300
_TIMEOUT_S: Final = 30.0
CANARY_PROMPT = "Hello, my name is"
CANARY_TOKENS = 8


class NoAnswer(EngineError):
    """The server refused, hung up or answered something that is not what was asked for."""


def request(
    base_url: str, path: str, *, body: Mapping[str, Any] | None = None, timeout_s: float
) -> tuple[int, str]:
    """GET, or POST with a JSON ``body``; (status, text). ``NoAnswer`` where no answer comes."""
    page = simple.request(Endpoint.parse(base_url), path, body=body, timeout_s=timeout_s)
    if page.error is not None or page.status is None:
        what = "no answer in time" if page.error == "timeout" else page.detail
        raise NoAnswer(f"{path}: {what}")
    return page.status, page.text


def is_healthy(base_url: str, *, timeout_s: float = 5.0) -> bool:
    """Whether ``/health`` answers 200. It says nothing about decoding."""
    try:
        return request(base_url, "/health", timeout_s=timeout_s)[0] == http.client.OK
    except NoAnswer:
        return False


def generate_canary(base_url: str, model: str, *, timeout_s: float) -> str:
    """The text of a short greedy generation; it may be empty where tokens are counted.

    Several tokens are asked for, because a broken speculation survives the first one. Raises
    ``NoAnswer`` with what the server said.
    """
    body = {"model": model, "prompt": CANARY_PROMPT, "max_tokens": CANARY_TOKENS, "temperature": 0}
    status, text = request(base_url, "/v1/completions", body=body, timeout_s=timeout_s)
    if status != http.client.OK:
        words = redact(server_words(text))[:_BODY_SHOWN]
        raise NoAnswer(f"/v1/completions answered {status}: {words}")
    try:
        answer = json_value(text)
        generated = str(answer["choices"][0]["text"])
        tokens = token_count(answer.get("usage"), "completion_tokens")
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise NoAnswer(f"/v1/completions answered {redact(text)[:_BODY_SHOWN]!r}") from error
    if tokens == 0 or (tokens is None and not generated):
        raise NoAnswer("/v1/completions answered without a single token")
    return generated


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
        data = json_value(text_page(base_url, path, timeout_s=timeout_s) or "{}")
    except ValueError:
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
