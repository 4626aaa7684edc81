"""Streamed completions: encode before the clock, exchange while it runs, read afterwards."""

from __future__ import annotations

from time import monotonic_ns

from whet.client.calls import CompletionCall
from whet.client.endpoint import Endpoint
from whet.client.pool import ConnectionPool
from whet.client.server_words import body_start
from whet.client.sse import StreamOutcome, read_stream
from whet.client.usage import token_count, usage_doubt, usage_fault
from whet.client.wire import Exchange
from whet.core.records.load import RequestEvent
from whet.core.redact import redact

_HTTP_OK = 200


class StreamClient(ConnectionPool):
    """Many streams to one model. Use as an async context manager.

    ``complete`` does a whole request. A timed loop takes it in three: ``prepare`` beforehand,
    ``send`` while the clock runs, ``read_event`` when it has stopped, so that no JSON delays a
    timestamp.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        timeout_s: float = 120.0,
        max_connections: int = 1024,
    ) -> None:
        """``timeout_s`` bounds a request from its start to its last byte."""
        super().__init__(Endpoint.parse(base_url), size=max_connections, timeout_s=timeout_s)
        self._model = model

    def prepare(
        self, call: CompletionCall, *, index: int = 0, prefix_id: str | None = None
    ) -> Exchange:
        """Encode the whole HTTP request."""
        return Exchange(
            request=self._endpoint.post(call.path, call.body(model=self._model, stream=True)),
            limits=call.limits,
            index=index,
            prefix_id=prefix_id,
        )

    async def complete(
        self,
        call: CompletionCall,
        *,
        index: int = 0,
        scheduled_ns: int | None = None,
        origin_ns: int = 0,
        prefix_id: str | None = None,
    ) -> RequestEvent:
        """One request. ``scheduled_ns`` and ``origin_ns`` are absolute monotonic ns.

        The event's times count from ``origin_ns``; ``scheduled_ns`` None means now.
        """
        exchange = self.prepare(call, index=index, prefix_id=prefix_id)
        exchange.scheduled_ns = monotonic_ns() if scheduled_ns is None else scheduled_ns
        await self.send(exchange)
        return read_event(exchange, origin_ns=origin_ns)


def read_event(exchange: Exchange, *, origin_ns: int) -> RequestEvent:
    """What an exchange came to, as the record that is kept: every failure has its word.

    Words: ``connect``, ``reset``, ``timeout``, ``too_large``, ``bad_http``, ``http_<status>``,
    ``wrong_content_type``, ``sse_error``, ``bad_chunk``, ``no_tokens``, ``no_done``,
    ``no_finish``, ``bad_usage``, ``usage_mismatch``, ``aborted`` (by us, before it ended).
    """
    streamed = exchange.status == _HTTP_OK and _is_stream(exchange)
    outcome = read_stream(exchange.arrivals, exchange.parts) if streamed else StreamOutcome()
    usage = outcome.usage or {}
    error, detail = _failure(exchange, outcome)
    if error is None and exchange.limits is not None:
        detail = usage_doubt(outcome.usage, exchange.limits)
    sent_ns = exchange.sent_ns or exchange.ended_ns  # never sent: it ended where it began
    return RequestEvent(
        index=exchange.index,
        prefix_id=exchange.prefix_id,
        scheduled_ns=exchange.scheduled_ns - origin_ns,
        sent_ns=sent_ns - origin_ns,
        chunk_ns=tuple(at - origin_ns for at in outcome.chunk_ns),
        ended_ns=exchange.ended_ns - origin_ns,
        prompt_tokens=token_count(usage, "prompt_tokens"),
        output_tokens=token_count(usage, "completion_tokens"),
        cached_tokens=token_count(usage.get("prompt_tokens_details"), "cached_tokens"),
        finish_reason=outcome.finish_reason,
        text="".join(outcome.texts),
        error=error,
        detail=None if detail is None else redact(detail),
        retried=exchange.retried,
    )


def _failure(exchange: Exchange, outcome: StreamOutcome) -> tuple[str | None, str | None]:
    """The word for what went wrong; what the server said stands before how the connection ended."""
    if outcome.error == "sse_error":
        return outcome.error, outcome.detail
    if exchange.error is not None:  # before ``bad_chunk``: a cut stream ends in half an event
        return exchange.error, exchange.detail
    if outcome.error is not None:
        return outcome.error, outcome.detail
    if exchange.status != _HTTP_OK:
        return f"http_{exchange.status}", body_start(exchange)
    return _flaw(exchange, outcome) if _is_stream(exchange) else _foreign(exchange)


def _foreign(exchange: Exchange) -> tuple[str, str]:
    kind = exchange.headers.get("content-type", "no content type")
    return "wrong_content_type", f"{kind}: {body_start(exchange)}"


def _flaw(exchange: Exchange, outcome: StreamOutcome) -> tuple[str | None, str | None]:
    """What is wrong with a stream that arrived whole."""
    aside = f"; the server said: {outcome.aside}" if outcome.aside else ""
    if not outcome.chunk_ns:
        if tokens := token_count(outcome.usage or {}, "completion_tokens"):
            return "no_tokens", f"{tokens} tokens by its usage, but none of them is text"
        return "no_tokens", f"the stream ended without any output{aside}"
    if not outcome.done:
        return "no_done", f"the stream ended without [DONE]{aside}"
    if outcome.finish_reason is None and outcome.usage is None:
        return "no_finish", f"neither finish_reason nor usage came: it may be broken off{aside}"
    return usage_fault(outcome, exchange.limits)


def _is_stream(exchange: Exchange) -> bool:
    kind = exchange.headers.get("content-type", "").lower()
    return exchange.encoded is None and kind.startswith("text/event-stream")
