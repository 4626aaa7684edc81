"""A request as a line of a log that `log` reads again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from whet.core.records import LoggedRequest
from whet.core.units import NS_PER_S


def request_line(request: LoggedRequest) -> dict[str, Any]:
    """The JSON object of an OpenAI-style log's line: all of ``request`` but its place.

    The answer stands as a server gives it, for it is in the cache as well.
    """
    line: dict[str, Any] = {}
    if request.at_ns is not None:
        line["timestamp"] = _time(request.at_ns)
    for name in ("model", "cache_salt"):
        if (value := getattr(request, name)) is not None:
            line[name] = value
    if request.session is not None:
        line["session_id"] = request.session
    if request.messages is not None:
        line["messages"] = [dict(message) for message in request.messages]
    else:
        ids = request.prompt_token_ids
        line["prompt"] = request.prompt if ids is None else list(ids)
    if request.tools:
        line["tools"] = [dict(tool) for tool in request.tools]
    if request.output_tokens is not None:
        line["max_tokens"] = request.output_tokens
    answer = _answer(request)
    return {**line, "response": answer} if answer else line


def _time(at_ns: int) -> str:
    """In UTC to the nanosecond: a number of seconds could not hold it."""
    whole, part = divmod(at_ns, NS_PER_S)
    return f"{datetime.fromtimestamp(whole, UTC).isoformat()[:19]}.{part:09d}Z"


def _answer(request: LoggedRequest) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    if request.output is not None:
        chat = {"message": {"role": "assistant", "content": request.output}}
        answer["choices"] = [chat if request.messages is not None else {"text": request.output}]
    if request.output_tokens is not None:
        answer["usage"] = {"completion_tokens": request.output_tokens}
    return answer
