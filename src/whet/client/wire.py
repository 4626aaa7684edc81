"""One keep-alive connection. What arrives is stamped and kept as bytes; it is read later.

``KernelStamped`` reads its socket itself and takes the time at which the kernel received the bytes;
``Transported`` leaves the socket to the event loop (TLS, other systems than Linux) and stamps when
the loop hands the bytes over.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Final, Self, cast

import httptools

from whet.client.calls import RequestLimits

MAX_BODY_BYTES = 128 * 1024 * 1024
"""An endless stream ends here, not in the machine's memory; 100,000 chunks are about 30 MB."""

_READ_BYTES: Final = 65536
_SO_TIMESTAMPNS: Final = 35  # Linux; Python has no name for it
_TIMESPEC: Final = struct.Struct("@ll")
_CLOCKS_APART_NS: Final = 5_000
_CLOCK_READS: Final = 10
_FINAL: Final = 200
"""Answers below it announce the answer: an early hint, a sign of life."""
_SWITCH: Final = 101


@dataclass(kw_only=True, slots=True)
class Exchange:
    """One request on the wire: mutable, because the socket fills it while the clock runs.

    Times are absolute monotonic ns. ``arrivals`` and ``parts`` run side by side: when a piece of
    the body arrived, and its bytes. ``error`` is a typed word once something went wrong.
    ``limits`` is what the answer is checked against, None for no check; ``retried`` says that the
    request was sent a second time.
    """

    request: bytes
    limits: RequestLimits | None = None
    retried: bool = False
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

    @property
    def text(self) -> str:
        """The body; what is not UTF-8 becomes U+FFFD."""
        return b"".join(self.parts).decode("utf-8-sig", "replace")

    @property
    def encoded(self) -> str | None:
        """How the body is compressed; None where it is plain."""
        coding = self.headers.get("content-encoding", "identity").lower()
        return None if coding in ("", "identity") else coding

    def fail(self, word: str, detail: str) -> None:
        """Record what went wrong first, and when; later words do not replace it."""
        if self.error is None:
            self.error, self.detail = word, detail
        self.ended_ns = self.ended_ns or monotonic_ns()

    def retry(self) -> None:
        """Go back to before the send, for a second try on another connection."""
        self.retried = True
        self.status = self.error = self.detail = None
        self.ended_ns = 0
        self.headers.clear()
        self.arrivals.clear()
        self.parts.clear()


class Connection(ABC):
    """One exchange at a time; ``reusable`` says whether another may follow on the same socket."""

    def __init__(self) -> None:
        """Not yet bound to a socket."""
        self._exchange: Exchange | None = None
        self._done: asyncio.Future[None] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._now = 0
        self._received = 0
        self._descriptor = -1
        self.reusable = False

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether there is a socket."""

    @abstractmethod
    def close(self) -> None:
        """Drop the socket at once, sent or not."""

    @property
    @abstractmethod
    def _sent(self) -> bool:
        """Whether the socket has taken the whole request."""

    @abstractmethod
    def _write(self, data: bytes) -> None:
        """Send all of ``data``, now or as the socket takes it."""

    def is_idle(self) -> bool:
        """Whether another request may be sent: nothing is unread, and the server is there."""
        if not self.reusable:
            return False
        unread = select.poll()  # the loop may not have seen what came since the answer
        unread.register(self._descriptor, select.POLLIN)
        return not unread.poll(0)

    async def roundtrip(self, exchange: Exchange) -> None:
        """Send, and return when the answer is whole or has failed. Cancelling closes the socket."""
        if not self.connected:
            exchange.fail("reset", "the connection was closed before the request was sent")
            return
        self._exchange, self._received, self.reusable = exchange, 0, False
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        exchange.sent_ns = monotonic_ns()
        self._write(exchange.request)
        try:
            await self._done
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._exchange = self._parser = None

    def _take(self, data: bytes, at_ns: int) -> None:
        """Let the parser cut the body out of what arrived at ``at_ns``."""
        self._now = at_ns
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

    def _lost(self, error: Exception | None) -> None:
        """An answer without a length ends here; any other answer is cut short."""
        self._now = monotonic_ns()
        self.close()
        exchange = self._exchange  # None once the answer is whole
        if exchange is None:
            return
        sized = {"content-length", "transfer-encoding"} & exchange.headers.keys()
        if error is None and (exchange.status or 0) >= _FINAL and not sized:
            self._finish(exchange)
            return
        after = f"after {self._received} bytes" if self._received else "before any answer"
        self._fail(
            "reset",
            f"the server closed the connection {after}" + (f" ({error})" if error else ""),
        )

    # httptools calls these

    def on_message_begin(self) -> None:
        """Bytes after the answer are nobody's: the stream is out of step."""
        if self._exchange is None:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep headers by lower-case name; after the body they are trailers, which say nothing."""
        if self._exchange is not None and (self._exchange.status or 0) < _FINAL:
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
        """The answer is whole, or the real one follows."""
        exchange, parser = self._exchange, self._parser
        if exchange is None or parser is None:
            return
        status = parser.get_status_code()
        if status < _FINAL and status != _SWITCH:
            exchange.headers.clear()
            return
        self.reusable = status >= _FINAL and bool(parser.should_keep_alive()) and self._sent
        self._finish(exchange)

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
        self._exchange = None
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class Transported(Connection, asyncio.Protocol):
    """On a transport of the event loop."""

    def __init__(self) -> None:
        """Bound to a socket by ``connection_made``."""
        super().__init__()
        self._transport: asyncio.Transport | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a socket."""
        return self._transport is not None

    def close(self) -> None:
        """Drop the socket at once, sent or not."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    @property
    def _sent(self) -> bool:
        return self._transport is not None and not self._transport.get_write_buffer_size()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; uvloop's has the interface of asyncio's without being a subclass."""
        self._transport = cast(asyncio.Transport, transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self.reusable = True

    def data_received(self, data: bytes) -> None:
        """Stamp first."""
        self._take(data, monotonic_ns())

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has gone, or this one has closed."""
        self._transport = None
        self._lost(exc)


class KernelStamped(Connection):
    """On a plain socket, with the kernel's own time of each arrival.

    A client that is busy with another stream, or has lost the processor, reads late; the kernel
    has written down when the bytes came. What two reads of one socket would have split is one piece
    then, with the time of its last byte.
    """

    available = sys.platform == "linux"

    def __init__(self, sock: socket.socket) -> None:
        """``sock`` is connected and does not block."""
        super().__init__()
        self._socket: socket.socket | None = sock
        self._descriptor = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._unsent = b""
        self.reusable = True
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._loop.add_reader(sock, self._readable)

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Connect to the first address of ``host`` that answers; ``OSError`` where none does."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        refused: OSError | None = None
        for family, kind, protocol, _, address in addresses:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                refused = error
            except asyncio.CancelledError:
                sock.close()
                raise
            else:
                return cls(sock)
        raise refused or OSError(f"no address for {host}")

    @property
    def connected(self) -> bool:
        """Whether there is a socket."""
        return self._socket is not None

    def close(self) -> None:
        """Drop the socket at once, sent or not."""
        self.reusable = False
        sock, self._socket, self._unsent = self._socket, None, b""
        if sock is not None:
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
            sock.close()

    @property
    def _sent(self) -> bool:
        return not self._unsent

    def _write(self, data: bytes) -> None:
        assert self._socket is not None
        self._unsent = data
        self._writable()
        if self._unsent and self._socket is not None:
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        if self._socket is None:
            return
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        """Read until nothing is left: where a reset came with the data, libuv reports the socket
        once and then never again, so the next read would not happen."""
        while self._socket is not None:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, 64)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._lost(error)
                return
            if not data:
                self._lost(None)
                return
            sent_ns = self._exchange.sent_ns if self._exchange is not None else 0
            self._take(data, max(arrival_ns(ancillary), sent_ns))


def arrival_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """When the kernel received what was just read, on the monotonic clock; now where it says not.

    The kernel stamps on the wall clock. Only the age of the stamp is taken from that clock, so a
    step of it does no harm unless it falls between the arrival and this call; then it is now. The
    two clocks are read again where the process lost the processor between them: the age would be
    wrong by that.
    """
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, rest = _TIMESPEC.unpack(data)
            for _ in range(_CLOCK_READS):
                now_ns, wall_ns = monotonic_ns(), time.time_ns()
                if monotonic_ns() - now_ns < _CLOCKS_APART_NS:
                    break
            age_ns: int = wall_ns - seconds * 1_000_000_000 - rest
            return now_ns - max(0, age_ns)
    return monotonic_ns()
