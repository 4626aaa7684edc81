"""What the reading of paced streams costs before any client: bare ``epoll`` and ``recvmsg``.

    python -m benchmarks.instrument_floor '{"url": "…", "slots": 64, "requests": 64, "tokens": 100}'

prints the CPU of one streamed piece, µs: no parser, no event loop, no dates but the kernel's. A
client in Python that takes one date a piece cannot be below it on the same machine.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from urllib.parse import urlsplit

from benchmarks.instrument_loop import Loop

_SO_TIMESTAMPNS = 35
_END = b"0\r\n\r\n"


def bare_us(loop: Loop) -> float:
    """CPU µs for each of ``loop.tokens`` pieces of ``loop.requests`` streams at once."""
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": loop.tokens, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: floor\r\nContent-Length: %d\r\n\r\n"
    address = urlsplit(loop.url)
    poll, streams = select.epoll(), {}
    for _ in range(loop.requests):
        stream = socket.create_connection((address.hostname, address.port))
        stream.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        stream.setblocking(False)
        streams[stream.fileno()] = stream
        poll.register(stream.fileno(), select.EPOLLIN)
    for stream in streams.values():
        stream.sendall(head % len(body) + body)
    parts = []
    begun_s = time.process_time()
    while streams:
        for number, _ in poll.poll():
            data, dates, *_ = streams[number].recvmsg(65536, 64)
            parts.append((data, dates))
            if data.endswith(_END) or not data:
                poll.unregister(number)
                streams.pop(number).close()
    return (time.process_time() - begun_s) * 1e6 / (loop.requests * loop.tokens)


if __name__ == "__main__":
    print(json.dumps(bare_us(Loop(**json.loads(sys.argv[1])))))
