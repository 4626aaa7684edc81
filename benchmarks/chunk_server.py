"""A streaming server of known times, as cheap as Python allows, in a process of its own.

    python -m benchmarks.chunk_server '{"ttft_s": 0.1, "gap_s": 0.02, "tokens": 100}'

prints its port. Every piece of text is the moment it was written, 20 digits of the monotonic clock
that the client reads too, so what a client measures can be held against what was done. A request is
dated by the kernel's receipt of its last byte (``SO_TIMESTAMPNS``), in code of its own, not the
client's: a server that is busy with another stream reads late, and that is not the client's error.
A piece is written to the socket at once after its time is taken, not at the end of the event loop's
turn. Each piece's time less its due time is kept: where that grows, the server is beyond its pace.
With ``gap_s`` 0 all pieces of an answer are written in blocks, as fast as the socket takes them,
and the pieces of a block carry one time.

It answers completions in both forms, ``/v1/models``, ``/health``, and 404 to what else is asked.
``GET /truth`` gives one JSON line for each request that was read since ``GET /reset``, in the order
of reading; times are monotonic ns and null if it never came to that.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import monotonic_ns
from typing import Final, cast

import uvloop

from whet.core.units import NS_PER_S

DIGITS: Final = 20
PROMPT_TOKENS: Final = 8
MODEL: Final = "paced"
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_BLOCK: Final = 1024  # pieces written at once where nothing paces them
_READ_BYTES: Final = 65536
_BACKLOG: Final = 1024
SO_TIMESTAMPNS: Final = 35  # Linux; Python has no name for it
_TIMESPEC: Final = struct.Struct("@ll")
_APART_NS: Final = 5000
_MODELS: Final = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "max_model_len": 32768}],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """``tokens`` pieces: the first ``ttft_s`` after the request arrived, then one each ``gap_s``.

    A request gets the pieces that it asks for, at most ``tokens``. From ``stall_at_s`` after the
    arrival of the first request since the reset nothing is answered for ``stall_s``, and what was
    due meanwhile is written at its end. None: it never stalls. Without a gap it cannot stall.
    """

    ttft_s: float = 0.0
    gap_s: float = 0.0
    tokens: int = 100
    stall_at_s: float | None = None
    stall_s: float = 0.0


@dataclass(kw_only=True, slots=True)
class ServerRecord:
    """What was done for one request. Times are monotonic ns, None until it came to that.

    ``arrived_ns`` is when the kernel received its last byte and ``read_ns`` when this process read
    it, ``first_ns`` and ``last_ns`` when its first and last piece were written, ``pieces`` how many
    were, ``late_ns`` how much later than due each was where they are paced (the loop's timer rounds
    to a whole millisecond, so a little below 0 at times).
    """

    arrived_ns: int
    read_ns: int
    num_chunks: int
    first_ns: int | None = None
    last_ns: int | None = None
    pieces: int = 0
    late_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Form:
    """The bytes around the time in a piece; ``last`` is what follows it in the last one."""

    before: bytes
    after: bytes
    last: bytes

    def piece(self, at_ns: int, *, last: bool) -> bytes:
        return _chunk(self.before + b"%020d" % at_ns + (self.last if last else self.after))


def _form(name: str, opened: str, closed: str) -> _Form:
    start = f'data: {{"id":"cmpl-1","object":"{name}","model":"{MODEL}","choices":[{{"index":0,'
    end = '}],"usage":null}\n\n'
    return _Form(
        before=(start + opened).encode(),
        after=f'{closed},"logprobs":null,"finish_reason":null{end}'.encode(),
        last=f'{closed},"logprobs":null,"finish_reason":"length"{end}'.encode(),
    )


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_TEXT: Final = _form("text_completion", '"text":"', '"')
_CHAT: Final = _form("chat.completion.chunk", '"delta":{"role":"assistant","content":"', '"}')


def received_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """When the kernel received what was just read, monotonic ns; now where it says not.

    The stamp is of the wall clock, so its age is. The two clocks are read again where the process
    lost the processor between them: the age would be wrong by that.
    """
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, rest = _TIMESPEC.unpack(data)
            for _ in range(10):
                now_ns = monotonic_ns()
                wall_ns = time.time_ns()
                if monotonic_ns() - now_ns < _APART_NS:
                    break
            return now_ns - max(0, wall_ns - seconds * NS_PER_S - rest)
    return monotonic_ns()


class _Desk:
    """What the connections share: the pace, and every request since the reset."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.records: list[ServerRecord] = []

    def answered_s(self, due_s: float) -> float:
        """When a piece that is due then is written: at the stall's end where it falls into it."""
        if self.pace.stall_at_s is None or not self.records:
            return due_s
        stall_s = self.records[0].arrived_ns / NS_PER_S + self.pace.stall_at_s
        end_s = stall_s + self.pace.stall_s
        return end_s if stall_s <= due_s < end_s else due_s


class _Stream:
    """One connection: a request at a time."""

    def __init__(self, sock: socket.socket, desk: _Desk) -> None:
        self._pace = desk.pace
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = sock
        self._buffer = b""
        self._unsent = b""
        self._head = b""
        self._record = ServerRecord(arrived_ns=0, read_ns=0, num_chunks=0)
        self._form = _TEXT
        self._left = 0
        self._due_s = 0.0
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._loop.add_reader(sock, self._readable)

    def _close(self) -> None:
        sock, self._socket, self._unsent = self._socket, None, b""
        if sock is not None:
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
            sock.close()

    def _readable(self) -> None:
        if self._socket is None:
            return
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, 64)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._close()
            return
        # Answered when every socket of this turn is read: a burst is not read one answer apart.
        self._buffer += data
        self._loop.call_soon(self._read, received_ns(ancillary), monotonic_ns())

    def _read(self, arrived_ns: int, read_ns: int) -> None:
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator or self._socket is None:
            return
        method, path = head.split(b" ", 2)[:2]
        path = path.partition(b"?")[0]
        length = 0
        if method == b"POST":
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) < length:
            return
        self._buffer = body[length:]
        if method == b"GET":
            self._get(path)
        elif path.endswith(b"/completions"):
            self._form = _CHAT if path.endswith(b"/chat/completions") else _TEXT
            self._begin(json.loads(body[:length]), arrived_ns, read_ns)
        else:
            self._answer(b"404 Not Found", b"{}")

    def _begin(self, body: dict[str, object], arrived_ns: int, read_ns: int) -> None:
        wanted = body.get("max_tokens") or body.get("max_completion_tokens")
        self._left = min(cast(int, wanted or self._pace.tokens), self._pace.tokens)
        self._record = ServerRecord(arrived_ns=arrived_ns, read_ns=read_ns, num_chunks=self._left)
        self._desk.records.append(self._record)
        if not body.get("stream"):
            self._answer(b"501 Not Implemented", b'{"error":{"message":"ask with stream"}}')
            return
        now_s = read_ns / NS_PER_S
        self._head = _HEAD
        if self._desk.answered_s(now_s) == now_s:
            self._write(b"")
        self._due_s = arrived_ns / NS_PER_S + self._pace.ttft_s
        self._at_due(self._flood if self._pace.gap_s == 0 else self._next)

    def _get(self, path: bytes) -> None:
        if path == b"/truth":
            lines = [json.dumps(asdict(one)) for one in self._desk.records]
            self._answer(b"200 OK", "".join(f"{line}\n" for line in lines).encode())
        elif path == b"/reset":
            self._desk.records.clear()
            self._answer(b"200 OK", b"{}")
        elif path == b"/v1/models":
            self._answer(b"200 OK", json.dumps(_MODELS).encode())
        elif path == b"/health":
            self._answer(b"200 OK", b"{}")
        else:
            self._answer(b"404 Not Found", b"{}")

    def _answer(self, status: bytes, body: bytes) -> None:
        self._write(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (status, len(body), body)
        )

    def _at_due(self, call: Callable[[], None]) -> None:
        """Call when the next piece is to be written; the loop rounds it to a whole millisecond."""
        left_s = self._desk.answered_s(self._due_s) - monotonic_ns() / NS_PER_S
        self._loop.call_later(max(0.0, left_s), call)

    def _next(self) -> None:
        if self._socket is None:
            return
        self._left -= 1
        last = self._left == 0
        end = _end(self._record.num_chunks) if last else b""
        self._write(self._stamped(last=last) + end)
        if not last:
            self._due_s += self._pace.gap_s
            self._at_due(self._next)

    def _stamped(self, *, last: bool) -> bytes:
        """The next piece, with the time of now."""
        record = self._record
        due_ns = round(self._desk.answered_s(self._due_s) * NS_PER_S)
        at_ns = monotonic_ns()
        record.first_ns = record.first_ns or at_ns
        record.last_ns = at_ns
        record.pieces += 1
        record.late_ns.append(at_ns - due_ns)
        return self._form.piece(at_ns, last=last)

    def _write(self, data: bytes) -> None:
        """Now, as far as the socket takes it; the rest when it can. The head goes first."""
        if self._head:
            data, self._head = self._head + data, b""
        if self._unsent:
            self._unsent += data
            return
        assert self._socket is not None
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._close()
            return
        if sent < len(data):
            self._unsent = data[sent:]
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        if self._socket is None:
            return
        self._loop.remove_writer(self._socket)
        unsent, self._unsent = self._unsent, b""
        self._write(unsent)
        if self._pace.gap_s == 0 and self._left:
            self._flood()

    def _flood(self) -> None:
        """Block after block until the socket is full; ``_writable`` goes on."""
        while self._left and not self._unsent and self._socket is not None:
            count = min(_BLOCK, self._left)
            self._left -= count
            ends = self._left == 0
            record, at_ns = self._record, monotonic_ns()
            record.first_ns = record.first_ns or at_ns
            record.last_ns = at_ns
            record.pieces += count
            block = self._form.piece(at_ns, last=False) * (count - ends)
            if ends:
                block += self._form.piece(at_ns, last=True) + _end(record.num_chunks)
            self._write(block)


def _end(tokens: int) -> bytes:
    usage = (
        b'data: {"id":"cmpl-1","object":"text_completion","model":"%b","choices":[],"usage":'
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\n'
        % (MODEL.encode(), PROMPT_TOKENS, tokens, PROMPT_TOKENS + tokens)
    )
    return _chunk(usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _listen(desk: _Desk) -> int:
    """Take connections at a free port of this machine and return it."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # what is accepted inherits it
    listener.setblocking(False)
    listener.bind(("127.0.0.1", 0))
    listener.listen(_BACKLOG)

    def accept() -> None:
        while True:
            try:
                _Stream(listener.accept()[0], desk)
            except OSError:
                return

    asyncio.get_running_loop().add_reader(listener, accept)
    return int(listener.getsockname()[1])


async def _serve(pace: Pace) -> None:
    print(_listen(_Desk(pace)), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    _pace = Pace(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))
    uvloop.run(_serve(_pace))
