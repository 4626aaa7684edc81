"""Server-sent events, read after the request has ended: raw pieces in, output and its times out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from whet.client.server_words import error_words, server_words
from whet.core.outside import json_value
from whet.core.redact import redact

_BROKEN_FINISH = {"error", "abort", "failed", "network_error", "insufficient_system_resource"}
_DETAIL_CHARS = 300
_ERROR: Final = "error"
_PLAIN: Final = ("", "message")
_ANSWER: Final = frozenset({"choices", "usage"})
_NAMELESS: Final = "the stream holds an event of type error"
_BOM: Final = "\ufeff"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@dataclass(kw_only=True, slots=True)
class StreamOutcome:
    """Content of one stream. ``chunk_ns`` has one time for each event with non-empty output.

    ``tool_chunks`` counts those that carry a part of a tool call, ``silent_chunks`` the events
    with a choice but no output. ``token_ids`` counts the ids that the server sent with the text.
    ``aside`` is the last event outside of an answer, ``complaint`` the words of an error in one.
    """

    chunk_ns: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tool_chunks: int = 0
    silent_chunks: int = 0
    token_ids: int = 0
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None
    done: bool = False
    aside: str | None = None
    complaint: str | None = None
    error: str | None = None
    detail: str | None = None

    def fail(self, word: str, detail: str) -> None:
        """Record a failure; later ones do not replace it."""
        if self.error is None:
            self.error, self.detail = word, redact(detail)[:_DETAIL_CHARS]  # a cut key has no form


class _Misfit(ValueError):
    """A value in an event does not have the type that the protocol gives it."""


def read_stream(arrivals: Sequence[int], parts: Sequence[bytes]) -> StreamOutcome:
    """Read a whole body. An event's time is the arrival of the piece that ended its last data line.

    Bytes are joined before they are decoded, so a character cut in two by the network is whole
    again; bytes that are not UTF-8 at all become U+FFFD. An event that is not JSON, or has a value
    of another type than the protocol's, fails the stream with ``bad_chunk``; nothing is raised.
    An event with a name (``ping``) that is not JSON is a heartbeat. An event without a choice but
    with an error's words is an error if the answer is not finished and no output follows.
    """
    outcome = StreamOutcome()
    for at_ns, kind, payload in _events(_lines(arrivals, parts)):
        try:
            if kind == _ERROR:
                outcome.fail("sse_error", server_words(payload) or _NAMELESS)
            elif kind in _PLAIN or _is_whole(payload):
                _read_event(outcome, at_ns, payload)
        except ValueError as error:
            outcome.fail("bad_chunk", f"{error}: {payload}")
        if outcome.done or outcome.error is not None:
            break
    if outcome.complaint:
        outcome.fail("sse_error", outcome.complaint)
    return outcome


def _lines(arrivals: Sequence[int], parts: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that end with LF, CR LF or CR, and the rest. A CR ends its line before the LF comes."""
    rest: list[bytes] = []
    after_cr = False
    for at_ns, part in zip(arrivals, parts, strict=True):
        if not part:
            continue
        *whole, last = _LINE_END.split(part[1:] if after_cr and part[:1] == b"\n" else part)
        for line in whole:
            yield at_ns, b"".join([*rest, line])
            rest = []
        rest.append(last)
        after_cr = part[-1:] == b"\r"
    if any(rest):
        yield arrivals[-1], b"".join(rest)


def _events(lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, str, str]]:
    """Each event's time, name and data. An empty line ends an event; heartbeats have no data.

    Servers that leave the empty line out are read too: a line that is whole JSON is an event.
    """
    pending: list[str] = []
    pending_ns, kind = 0, ""
    for at_ns, line in lines:
        name, _, value = line.decode("utf-8", "replace").removeprefix(_BOM).partition(":")
        value = value.strip()
        if name == "data" and value:
            if len(pending) == 1 and _is_whole(pending[0]):
                yield pending_ns, kind, pending.pop()
            pending.append(value)
            pending_ns = at_ns
        elif name == "event":
            kind = value
        elif name == "error":  # older llama.cpp names the field itself so
            yield at_ns, name, value
        elif not line:
            if pending or kind == _ERROR:
                yield pending_ns, kind, "\n".join(pending)
            pending, kind = [], ""
    if pending or kind == _ERROR:
        yield pending_ns, kind, "\n".join(pending)


def _is_whole(value: str) -> bool:
    try:
        return value == "[DONE]" or isinstance(json_value(value), dict)
    except ValueError:
        return False


def _read_event(outcome: StreamOutcome, at_ns: int, payload: str) -> None:
    if payload == "[DONE]":
        outcome.done = True
        return
    event = json_value(payload)
    if not isinstance(event, dict):
        raise _Misfit("not a JSON object")
    if event.get("error") or "error" in (event.get("object"), event.get("type")):
        outcome.fail("sse_error", server_words(payload))
        return
    choices = _typed(event, "choices", list) or ()
    if not choices and outcome.finish_reason is None:
        outcome.complaint = error_words(event) or outcome.complaint
    if not any(map(event.get, _ANSWER)):
        outcome.aside = server_words(payload)
    outcome.usage = _typed(event, "usage", dict) or outcome.usage
    for choice in choices:
        if not isinstance(choice, dict):
            raise _Misfit("a choice is not an object")
        if choice.get("index") not in (None, 0):
            raise _Misfit("a second choice, and one was asked for")
        _read_choice(outcome, at_ns, choice)


def _read_choice(outcome: StreamOutcome, at_ns: int, choice: dict[str, Any]) -> None:
    delta = _typed(choice, "delta", dict)
    call = "" if delta is None else _tool_call(delta)
    text = (_typed(choice, "text", str) or "") if delta is None else _written(delta) + call
    outcome.token_ids += len(_typed(choice, "token_ids", list) or ())
    if text:
        outcome.complaint = None
        outcome.chunk_ns.append(at_ns)
        outcome.texts.append(text)
        outcome.tool_chunks += bool(call)
    else:
        outcome.silent_chunks += 1
    reason = _typed(choice, "finish_reason", str) or None  # older Ollama: empty in each chunk
    outcome.finish_reason = reason or outcome.finish_reason
    if reason in _BROKEN_FINISH or choice.get("error"):
        plain = f"the server ended the request with finish_reason {reason!r}"
        outcome.fail("sse_error", error_words(choice) or plain)


def _written(delta: Mapping[str, Any]) -> str:
    """The text of a chat's piece; a thinking model's thoughts are output too."""
    thought = _typed(delta, "reasoning_content", str) or _typed(delta, "reasoning", str) or ""
    content = delta.get("content")
    if isinstance(content, list):  # parts, as Mistral's thinking models send them
        return thought + "".join(map(_part, content))
    return thought + (_typed(delta, "content", str) or "")


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        raise _Misfit("a part of the content is not an object")
    inner = part.get("thinking")
    if isinstance(inner, list):
        return "".join(map(_part, inner))
    return _typed(part, "thinking", str) or _typed(part, "text", str) or ""


def _tool_call(delta: Mapping[str, Any]) -> str:
    """The names and arguments of the tool calls in a chat's piece."""
    words = []
    for item in _typed(delta, "tool_calls", list) or ():
        if not isinstance(item, dict):
            raise _Misfit("a tool call is not an object")
        function = _typed(item, "function", dict) or {}
        words += [_typed(function, key, str) or "" for key in ("name", "arguments")]
    return "".join(words)


def _typed(values: Mapping[str, Any], key: str, kind: type[Any]) -> Any:
    """The value of ``key``; None where it is missing or null."""
    value = values.get(key)
    if value is not None and not isinstance(value, kind):
        raise _Misfit(f"{key} is a {type(value).__name__}, not a {kind.__name__}")
    return value
