"""One keep-alive connection. What arrives is stamped and kept as bytes; it is read later."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import cast

import httptools

MAX_BODY_BYTES = 128 * 1024 * 1024
"""An endless stream ends here, not in the machine's memory; 100,000 chunks are about 30 MB."""


@dataclass(kw_only=True, slots=True)
class Exchange:
    """One request on the wire: mutable, because the socket fills it while the clock runs.

    Times are absolute monotonic ns. ``arrivals`` and ``parts`` run side by side: when a piece of
    the body arrived, and its bytes. ``error`` is a typed word once something went wrong.
    """

    request: bytes
    index: int = 0
    prefix_id: str | None = None
    scheduled_ns: int = 0
    sent_ns: int = 0
    ended_ns: int = 0
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    arrivals: list[int] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    error: str | None = None
    detail: str | None = None

    def fail(self, word: str, detail: str) -> None:
        """Record what went wrong first, and when; later words do not replace it."""
        if self.error is None:
            self.error, self.detail = word, detail
        self.ended_ns = self.ended_ns or monotonic_ns()

    def forget_answer(self) -> None:
        """Back to before the send, for a second try on another connection."""
        self.status = self.error = self.detail = None
        self.ended_ns = 0
        self.headers.clear()
        self.arrivals.clear()
        self.parts.clear()


class Connection(asyncio.Protocol):
    """One exchange at a time; ``reusable`` says whether another may follow on the same socket."""

    def __init__(self) -> None:
        """Bound to a socket by ``connection_made``."""
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._done: asyncio.Future[None] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._now = 0
        self._received = 0
        self.reusable = False

    async def roundtrip(self, exchange: Exchange) -> None:
        """Send, and return when the answer is whole or has failed. Cancelling closes the socket."""
        if self._transport is None:
            exchange.fail("reset", "the connection was closed before the request was sent")
            return
        self._exchange, self._received, self.reusable = exchange, 0, False
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        exchange.sent_ns = monotonic_ns()
        self._transport.write(exchange.request)
        try:
            await self._done
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._exchange = self._parser = None

    def close(self) -> None:
        """Drop the socket at once, sent or not."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; uvloop's are no subclass of asyncio's, though equal in form."""
        self._transport = cast(asyncio.Transport, transport)
        self.reusable = True

    def data_received(self, data: bytes) -> None:
        """Stamp first, then let the parser cut out the body."""
        self._now = monotonic_ns()
        if self._exchange is None or self._parser is None:
            self.close()  # bytes that nobody asked for: the stream is out of step
            return
        self._received += len(data)
        if self._received > MAX_BODY_BYTES:
            self._fail("too_large", f"more than {MAX_BODY_BYTES} bytes came back")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail("bad_http", f"{type(error).__name__}: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer without a length ends here; any other answer is cut short."""
        self._now = monotonic_ns()
        self._transport = None
        exchange, self.reusable = self._exchange, False
        if exchange is None:
            return
        sized = {"content-length", "transfer-encoding"} & exchange.headers.keys()
        if exc is None and exchange.status is not None and not sized:
            self._finish(exchange)
            return
        after = f"after {self._received} bytes" if self._received else "before any answer"
        self._fail(
            "reset", f"the server closed the connection {after}" + (f" ({exc})" if exc else "")
        )

    # httptools calls these

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep headers by lower-case name."""
        if self._exchange is not None:
            self._exchange.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The status is known."""
        if self._exchange is not None and self._parser is not None:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """One piece of the body, stamped with the read that brought it."""
        exchange = self._exchange
        if exchange is not None:
            exchange.arrivals.append(self._now)
            exchange.parts.append(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._exchange is not None and self._parser is not None:
            self.reusable = bool(self._parser.should_keep_alive())
            self._finish(self._exchange)

    def _finish(self, exchange: Exchange) -> None:
        exchange.ended_ns = self._now
        self._resolve()

    def _fail(self, word: str, detail: str) -> None:
        if self._exchange is not None:
            self._exchange.ended_ns = self._now
            self._exchange.fail(word, detail)
        self.close()
        self._resolve()

    def _resolve(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
