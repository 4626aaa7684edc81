"""A request as a line of a log that `log` reads again."""

from __future__ import annotations

from typing import Any

from whet.core.records import LoggedRequest
from whet.core.units import NS_PER_S


def request_line(request: LoggedRequest) -> dict[str, Any]:
    """The JSON object of an OpenAI-style log's line."""
    line: dict[str, Any] = {}
    if request.at_ns is not None:
        line["timestamp"] = request.at_ns / NS_PER_S
    for name in ("model", "cache_salt"):
        if (value := getattr(request, name)) is not None:
            line[name] = value
    if request.session is not None:
        line["session_id"] = request.session
    if request.messages is not None:
        line["messages"] = [dict(message) for message in request.messages]
        if request.tools:
            line["tools"] = [dict(tool) for tool in request.tools]
    else:
        ids = request.prompt_token_ids
        line["prompt"] = request.prompt if ids is None else list(ids)
    if request.output_tokens is not None:
        line["max_tokens"] = request.output_tokens
    return line
