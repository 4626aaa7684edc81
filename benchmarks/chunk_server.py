"""A streaming server of known times, as cheap as Python allows, in a process of its own.

    python -m benchmarks.chunk_server '{"ttft_s": 0.1, "gap_s": 0.02, "tokens": 100}'

prints its port. Every piece of text is the moment it was written, 20 digits of the monotonic clock
that the client reads too, so what a client measures can be held against what was done. A piece is
written to the socket at once after its time is taken, not at the end of the event loop's turn.
With ``gap_s`` 0 all pieces of an answer are written in blocks, as fast as the socket takes them,
and the pieces of a block carry one time.

It answers completions in both forms, ``/v1/models``, ``/health``, and 404 to what else is asked.
``GET /truth`` gives one JSON line for each request that was read since ``GET /reset``, in the order
of reading; times are monotonic ns and null where it never came to that.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from time import monotonic_ns
from typing import Final, cast

import uvloop

DIGITS: Final = 20
PROMPT_TOKENS: Final = 8
MODEL: Final = "paced"
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_BLOCK: Final = 256  # pieces written at once where nothing paces them
_MODELS: Final = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "max_model_len": 32768}],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """``tokens`` pieces: the first ``ttft_s`` after the request was read, then one each ``gap_s``.

    A request gets the pieces that it asks for, at most ``tokens``.
    """

    ttft_s: float = 0.0
    gap_s: float = 0.0
    tokens: int = 100


@dataclass(kw_only=True, slots=True)
class Served:
    """What was done for one request. Times are monotonic ns, None until it came to that.

    ``read_ns`` is when its last byte was read, ``first_ns`` and ``last_ns`` when its first and last
    piece were written, ``pieces`` how many were.
    """

    read_ns: int
    asked: int
    first_ns: int | None = None
    last_ns: int | None = None
    pieces: int = 0


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


class _Stream(asyncio.Protocol):
    """One connection: a request at a time."""

    def __init__(self, pace: Pace, served: list[Served]) -> None:
        self._pace = pace
        self._all = served
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket = -1
        self._buffer = b""
        self._served = Served(read_ns=0, asked=0)
        self._form = _TEXT
        self._left = 0
        self._due = 0.0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket = self._transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._pace.gap_s == 0 and self._left:
            self._flood()

    def data_received(self, data: bytes) -> None:
        # Answered when every socket of this turn is read: a burst is not read one answer apart.
        self._buffer += data
        self._loop.call_soon(self._read, monotonic_ns())

    def _read(self, read_ns: int) -> None:
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or self._transport is None:
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
            self._begin(json.loads(body[:length]), read_ns)
        else:
            self._answer(b"404 Not Found", b"{}")

    def _begin(self, asked: dict[str, object], read_ns: int) -> None:
        wanted = asked.get("max_tokens") or asked.get("max_completion_tokens")
        self._left = min(cast(int, wanted or self._pace.tokens), self._pace.tokens)
        self._served = Served(read_ns=read_ns, asked=self._left)
        self._all.append(self._served)
        if not asked.get("stream"):
            self._answer(b"501 Not Implemented", b'{"error":{"message":"ask with stream"}}')
            return
        self._write(_HEAD)
        self._due = read_ns / 1e9 + self._pace.ttft_s
        self._at(self._due, self._flood if self._pace.gap_s == 0 else self._next)

    def _get(self, path: bytes) -> None:
        if path == b"/truth":
            lines = [json.dumps(asdict(one)) for one in self._all]
            self._answer(b"200 OK", "".join(f"{line}\n" for line in lines).encode())
        elif path == b"/reset":
            self._all.clear()
            self._answer(b"200 OK", b"{}")
        elif path == b"/v1/models":
            self._answer(b"200 OK", json.dumps(_MODELS).encode())
        elif path == b"/health":
            self._answer(b"200 OK", b"{}")
        else:
            self._answer(b"404 Not Found", b"{}")

    def _answer(self, status: bytes, body: bytes) -> None:
        assert self._transport is not None
        self._transport.write(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (status, len(body), body)
        )

    def _at(self, due_s: float, call: object) -> None:
        """Call at ``due_s`` of the monotonic clock; the loop rounds it to a whole millisecond."""
        self._loop.call_later(max(0.0, due_s - monotonic_ns() / 1e9), call)  # type: ignore[arg-type]

    def _next(self) -> None:
        if self._transport is None:
            return
        self._left -= 1
        last = self._left == 0
        end = _end(self._served.asked) if last else b""
        self._write(self._stamped(last=last) + end)
        if not last:
            self._due += self._pace.gap_s
            self._at(self._due, self._next)

    def _stamped(self, *, last: bool) -> bytes:
        """The next piece, with the time of now."""
        served = self._served
        at_ns = monotonic_ns()
        served.first_ns = served.first_ns or at_ns
        served.last_ns = at_ns
        served.pieces += 1
        return self._form.piece(at_ns, last=last)

    def _write(self, data: bytes) -> None:
        """Now, where the socket takes it; the loop's own writes wait for the end of its turn."""
        assert self._transport is not None
        sent = 0
        if not self._transport.get_write_buffer_size():
            try:
                sent = os.write(self._socket, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._transport.abort()
                self._transport = None
                return
        if sent < len(data):
            self._transport.write(data[sent:])

    def _flood(self) -> None:
        """Block after block until the socket is full; ``resume_writing`` goes on."""
        while self._left and not self._paused and self._transport is not None:
            count = min(_BLOCK, self._left)
            self._left -= count
            ends = self._left == 0
            served, at_ns = self._served, monotonic_ns()
            served.first_ns = served.first_ns or at_ns
            served.last_ns = at_ns
            served.pieces += count
            block = self._form.piece(at_ns, last=False) * (count - ends)
            if ends:
                block += self._form.piece(at_ns, last=True) + _end(served.asked)
            self._transport.write(block)


def _end(tokens: int) -> bytes:
    usage = (
        b'data: {"id":"cmpl-1","object":"text_completion","model":"%b","choices":[],"usage":'
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\n'
        % (MODEL.encode(), PROMPT_TOKENS, tokens, PROMPT_TOKENS + tokens)
    )
    return _chunk(usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def _serve(pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    served: list[Served] = []
    server = await loop.create_server(lambda: _Stream(pace, served), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(Pace(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))))
