"""Answers of a server as bytes, read by the client's own parser."""

from __future__ import annotations

import json
from collections.abc import Sequence

from whet.client import CompletionCall, Exchange, read_event
from whet.core.records.load import RequestEvent

STREAM = {"content-type": "text/event-stream"}


def read(
    events: Sequence[object], *, max_tokens: int = 16, ids: int = 3, ignore_eos: bool = False
) -> RequestEvent:
    """What the client makes of a stream of ``events`` (JSON values or text) and ``[DONE]``."""
    texts = [
        event if isinstance(event, str) else json.dumps(event) for event in [*events, "[DONE]"]
    ]
    return read_bytes(
        "".join(f"data: {text}\n\n" for text in texts).encode("utf-8", "surrogatepass"),
        call=CompletionCall(
            prompt_token_ids=tuple(range(ids)), max_tokens=max_tokens, ignore_eos=ignore_eos
        ),
    )


def read_bytes(
    *parts: bytes,
    status: int = 200,
    headers: dict[str, str] | None = None,
    call: CompletionCall | None = None,
) -> RequestEvent:
    """What the client makes of a body that arrives in ``parts``, one a nanosecond."""
    exchange = Exchange(
        request=b"",
        limits=None if call is None else call.limits,
        status=status,
        headers=STREAM if headers is None else headers,
        arrivals=list(range(1, len(parts) + 1)),
        parts=list(parts),
        ended_ns=len(parts),
    )
    return read_event(exchange, origin_ns=0)


def text(words: str, **more: object) -> dict[str, object]:
    """One event of the completions endpoint."""
    return {"choices": [{"index": 0, "text": words, **more}]}


def usage(tokens: object, **more: object) -> dict[str, object]:
    """The last event before ``[DONE]``."""
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens, **more}}
