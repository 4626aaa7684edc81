"""The server's token counts against the request and against what arrived."""

from __future__ import annotations

from typing import Any, Final

from whet.client.calls import RequestLimits
from whet.client.sse import StreamOutcome

SILENT_TOKENS: Final = 64
"""Tokens without text that one event may hold: special tokens, the tags of a thinking model, a stop
string, a character that is not whole yet; with speculation or a stream interval, several steps."""

_COUNTS: Final = ("prompt_tokens", "completion_tokens")
_DIGITS: Final = 40


def token_count(usage: Any, key: str) -> int | None:
    """A count of ``usage``; None where it is missing or not an integer of 0 or more."""
    value = usage.get(key) if isinstance(usage, dict) else None
    valid = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if valid else None


def usage_fault(
    outcome: StreamOutcome, limits: RequestLimits | None
) -> tuple[str | None, str | None]:
    """The word and the reason where a whole stream's usage cannot be right, else two None.

    ``bad_usage``: a count is not an integer of 0 or more, or more of the prompt is cached than
    there is; it costs this request.
    ``usage_mismatch``: the count of output tokens is false, so none of this server's counts can be
    trusted and the trial is invalid. It is false where it

    - exceeds the request's ``max_tokens``;
    - differs from the number of token ids, where the server sent these;
    - is below the number of chunks with output: each holds at least one token. Chunks of tool
      calls are left out, because a server may split one token's output into several;
    - exceeds what the stream can hold: one token a byte of text, the reasoning tokens that usage
      itself declares as hidden, and ``SILENT_TOKENS`` for each event without text and for the end.
      Text in large chunks (speculation, a stream interval) is within it.
    """
    usage = outcome.usage or {}
    for key in _COUNTS:
        if usage.get(key) is not None and token_count(usage, key) is None:
            value = usage[key]
            shown = type(value).__name__ if isinstance(value, dict | list) else str(value)[:_DIGITS]
            return "bad_usage", f"usage says {key}: {shown}"
    prompt = token_count(usage, "prompt_tokens")
    cached = token_count(usage.get("prompt_tokens_details"), "cached_tokens")
    if prompt is not None and cached is not None and cached > prompt:
        return "bad_usage", f"usage says {cached} cached of {prompt} prompt tokens"
    tokens = token_count(usage, "completion_tokens")
    reason = None if tokens is None else _contradiction(tokens, outcome, limits)
    if reason is None:
        return None, None
    return "usage_mismatch", f"usage says {str(tokens)[:_DIGITS]} output tokens, {reason}"


def _contradiction(tokens: int, outcome: StreamOutcome, limits: RequestLimits | None) -> str | None:
    if limits is not None and tokens > limits.max_tokens:
        return f"max_tokens was {limits.max_tokens}"
    if outcome.token_ids and tokens != outcome.token_ids:
        return f"{outcome.token_ids} token ids came"
    pieces = len(outcome.chunk_ns) - outcome.tool_chunks
    if tokens < pieces:
        return f"{pieces} chunks with output came"
    if outcome.token_ids:
        return None
    text_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in outcome.texts)
    hidden = token_count((outcome.usage or {}).get("completion_tokens_details"), "reasoning_tokens")
    most = text_bytes + (hidden or 0) + SILENT_TOKENS * (outcome.silent_chunks + 1)
    if tokens > most:
        return f"{text_bytes} bytes of text came, which hold at most {most}"
    return None


def usage_doubt(usage: Any, limits: RequestLimits) -> str | None:
    """How the usage of a completed request differs from the request, in words, or None.

    The prompt's count may differ by tokens that a server adds, and an answer may be shorter than
    ``max_tokens`` where a server does not know ``ignore_eos``. Neither fails the request.
    """
    doubts = []
    prompt = token_count(usage, "prompt_tokens")
    if None not in (prompt, limits.prompt_tokens) and prompt != limits.prompt_tokens:
        doubts.append(
            f"usage says {str(prompt)[:_DIGITS]} prompt tokens, {limits.prompt_tokens} were sent"
        )
    output = token_count(usage, "completion_tokens")
    if limits.ignore_eos and output is not None and output < limits.max_tokens:
        doubts.append(f"{output} of {limits.max_tokens} output tokens came despite ignore_eos")
    return "; ".join(doubts) or None
