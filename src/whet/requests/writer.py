"""A request as a line of a log that ``LogReader`` reads again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from whet.core.units import NS_PER_S
from whet.requests.records import LoggedRequest


def request_line(request: LoggedRequest) -> dict[str, Any]:
    """The JSON object of a line: ``request`` without its place."""
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
    if request.chat_template_kwargs:
        line["chat_template_kwargs"] = dict(request.chat_template_kwargs)
    line |= request.sampling
    limit = request.output_tokens if request.max_tokens is None else request.max_tokens
    if limit is not None:
        line["max_tokens"] = limit
    answer = _answer(request)
    return {**line, "response": answer} if answer else line


def _time(at_ns: int) -> str:
    """ISO 8601 in UTC with nanoseconds, which a float of seconds cannot hold."""
    seconds, rest = divmod(at_ns, NS_PER_S)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{rest:09d}Z"


def _answer(request: LoggedRequest) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    if request.output is not None or request.reasoning is not None or request.tool_calls:
        message: dict[str, Any] = {"role": "assistant", "content": request.output}
        if request.reasoning is not None:
            message["reasoning_content"] = request.reasoning
        if request.tool_calls:
            message["tool_calls"] = [dict(call) for call in request.tool_calls]
        is_chat = request.messages is not None
        answer["choices"] = [{"message": message} if is_chat else {"text": request.output}]
    if request.output_tokens is not None:
        answer["usage"] = {"completion_tokens": request.output_tokens}
    return answer
