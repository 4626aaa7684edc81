"""A streaming server of known times, as cheap as Python allows, in a process of its own.

    python -m benchmarks.chunk_server '{"ttft_s": 0.1, "gap_s": 0.02, "tokens": 100}'

prints its port. Every piece of text is the moment it was written, 20 digits of the monotonic clock
that the client reads too, so what a client measures can be held against what was done. With
``gap_s`` 0 all pieces of an answer are written at once, as fast as the socket takes them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final, cast

import uvloop

DIGITS: Final = 20
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_BEFORE: Final = b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"'
_AFTER: Final = b'","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
_BLOCK: Final = 256  # pieces written at once where nothing paces them


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """``tokens`` pieces: the first ``ttft_s`` after the request was read, then one each ``gap_s``.

    ``spread_s`` spaces the requests that arrive together: the n-th gets n times as much more before
    its first piece, which is no latency of a client's.
    """

    ttft_s: float = 0.0
    gap_s: float = 0.0
    tokens: int = 100


class _Stream(asyncio.Protocol):
    """One connection: a request at a time."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._left = 0
        self._due = 0.0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._pace.gap_s == 0 and self._left:
            self._flood()

    def data_received(self, data: bytes) -> None:
        read_s = self._loop.time()
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self._buffer = b""
            self._get()
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) < length:
            return
        self._buffer = body[length:]
        asked = json.loads(body[:length]).get("max_tokens") or self._pace.tokens
        self._left = min(asked, self._pace.tokens)
        self._due = read_s + self._pace.ttft_s
        assert self._transport is not None
        self._transport.write(_HEAD)
        self._loop.call_at(self._due, self._flood if self._pace.gap_s == 0 else self._next)

    def _get(self) -> None:
        body = b'{"object":"list","data":[{"id":"paced","object":"model","max_model_len":32768}]}'
        assert self._transport is not None
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )

    def _next(self) -> None:
        if self._transport is None:
            return
        self._left -= 1
        self._transport.write(_piece() if self._left else _piece() + _end(self._pace.tokens))
        if self._left:
            self._due += self._pace.gap_s
            self._loop.call_at(self._due, self._next)

    def _flood(self) -> None:
        while self._left and not self._paused and self._transport is not None:
            count = min(_BLOCK, self._left)
            self._left -= count
            self._transport.write(_piece() * count)
            if not self._left:
                self._transport.write(_end(self._pace.tokens))


def _piece() -> bytes:
    return _chunk(_BEFORE + b"%020d" % monotonic_ns() + _AFTER)


def _end(tokens: int) -> bytes:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":%d}}\n\n' % tokens
    last = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
    return _chunk(last) + _chunk(usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Stream(pace), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(Pace(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))))
