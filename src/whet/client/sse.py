"""Server-sent events, read after the request has ended: raw pieces in, output and its times out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_BROKEN_FINISH = {"error", "abort"}
_DETAIL_CHARS = 300


@dataclass(kw_only=True, slots=True)
class StreamOutcome:
    """What one stream said. ``chunk_ns`` has one time for each event with non-empty output."""

    chunk_ns: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None
    detail: str | None = None

    def fail(self, word: str, detail: str) -> None:
        """The first failure stands."""
        if self.error is None:
            self.error, self.detail = word, detail[:_DETAIL_CHARS]


def read_stream(arrivals: Sequence[int], parts: Sequence[bytes]) -> StreamOutcome:
    """Read a whole body. An event's time is the arrival of the piece that ended its line.

    Bytes are joined before they are decoded, so a character cut in two by the network is whole
    again; bytes that are not UTF-8 at all become U+FFFD.
    """
    outcome = StreamOutcome()
    for at_ns, line in _lines(arrivals, parts):
        if outcome.done or outcome.error is not None:
            break
        text = line.decode("utf-8", "replace")
        if text.startswith("data:"):
            _read_event(outcome, at_ns, text[5:].strip())
        elif text.startswith("event:") and text[6:].strip() == "error":
            outcome.fail("sse_error", "the stream holds an event of type error")
    return outcome


def _lines(arrivals: Sequence[int], parts: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    rest = b""
    for at_ns, part in zip(arrivals, parts, strict=True):
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield at_ns, line.rstrip(b"\r")
    if rest:
        yield arrivals[-1], rest


def _read_event(outcome: StreamOutcome, at_ns: int, payload: str) -> None:
    if payload == "[DONE]":
        outcome.done = True
        return
    try:
        event = json.loads(payload)
    except ValueError as error:
        outcome.fail("bad_chunk", f"not JSON ({error}): {payload}")
        return
    if not isinstance(event, dict):
        outcome.fail("bad_chunk", f"not a JSON object: {payload}")
        return
    if event.get("error") or event.get("object") == "error":
        outcome.fail("sse_error", _message(event))
        return
    if isinstance(event.get("usage"), dict):
        outcome.usage = event["usage"]
    for choice in event.get("choices") or ():
        _read_choice(outcome, at_ns, choice)


def _read_choice(outcome: StreamOutcome, at_ns: int, choice: dict[str, Any]) -> None:
    text = _output(choice)
    if text:
        outcome.chunk_ns.append(at_ns)
        outcome.texts.append(text)
    reason = choice.get("finish_reason")
    if reason is not None:
        outcome.finish_reason = str(reason)
        if reason in _BROKEN_FINISH:
            outcome.fail("sse_error", f"the server ended the request with finish_reason {reason!r}")


def _output(choice: dict[str, Any]) -> str:
    """The piece's text in either endpoint's form; a thinking model's thoughts are output too."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return str(choice.get("text") or "")
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    return f"{thought}{delta.get('content') or ''}"


def _message(event: dict[str, Any]) -> str:
    error = event.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error or event.get("message") or event)
