"""This project's client in a process of its own, seen from inside, and what reading costs at least.

    python -m benchmarks.instrument_loop URL '{"in_flight": 64, "requests": 64, …}' [bare]

prints a line of JSON. Each piece of text is the server's clock when it was written, so the error of
every arrival is known. The CPU time is that of the loop alone: sending and receiving, without
start-up and without the reading of JSON, which this client does when the clock has stopped.

``bare`` reads the same streams by ``epoll`` and ``recvmsg``: no parser, no event loop, no dates but
the kernel's. A client in Python that takes one date a piece cannot be below it on the same machine.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from benchmarks.chunk_server import DIGITS, MODEL, SO_TIMESTAMPNS, ServerRecord
from benchmarks.instrument_tools import Load
from benchmarks.instrument_truth import Figures, percentile, reset, tpot_ms, truth, ttft_ms
from whet.client import StreamClient, read_event, run_async
from whet.core.records.load import PlannedRequest, RequestEvent
from whet.core.units import NS_PER_MS
from whet.load.loops import ClosedLoop, OpenLoop, encode_all
from whet.load.quiet import quiet_interpreter
from whet.metrics import request_figures

_NS_PER_US = 1000.0
_END = b"0\r\n\r\n"


async def drive(url: str, load: Load) -> tuple[list[RequestEvent], float]:
    """The events on the monotonic clock itself, and the CPU seconds of the timed loop."""
    slots = load.in_flight
    async with StreamClient(url, MODEL, max_connections=slots) as client:
        await client.open(slots)
        warm = ClosedLoop(client, slots=slots, alive=_alive)
        await warm.run(encode_all(client, _requests(load.warmup, load.tokens)))
        reset(url)
        exchanges = encode_all(client, _requests(load.requests, load.tokens))
        timed = (
            OpenLoop(client, offsets_ns=[0] * load.requests, alive=_alive)
            if load.burst
            else ClosedLoop(client, slots=slots, alive=_alive)
        )
        with quiet_interpreter():
            cpu_s = time.process_time()
            await timed.run(exchanges)
            cpu_s = time.process_time() - cpu_s
    return [read_event(exchange, origin_ns=0) for exchange in timed.sent], cpu_s


def compare(
    events: Sequence[RequestEvent], records: Sequence[ServerRecord], cpu_s: float
) -> Figures:
    """Each request beside what the server did for it: the time of a first piece names it.

    Errors are the client's figure less the server's, µs. ``piece`` is arrival less write of each
    piece; ``ttft`` counts from the send and from the server kernel's receipt. Raises ``ValueError``
    for a request that failed or that the server does not know.
    """
    known = {one.first_ns: one for one in records}
    pieces: list[float] = []
    first: list[float] = []
    between: list[float] = []
    for event in events:
        written = stamps(event.text)
        if event.error is not None or not written or written[0] not in known:
            raise ValueError(f"request {event.index}: {event.error or 'unknown to the server'}")
        arrived = zip(event.chunk_ns, written, strict=True)
        pieces += [(at - stamp) / _NS_PER_US for at, stamp in arrived]
        one, figures = known[written[0]], request_figures(event)
        assert figures is not None
        if (true := ttft_ms(one)) is not None:
            first.append((figures.ttft_from_send_ns - true * NS_PER_MS) / _NS_PER_US)
        if (true := tpot_ms(one)) is not None and figures.tpot_ns is not None:
            between.append((figures.tpot_ns - true * NS_PER_MS) / _NS_PER_US)
    return {
        f"inside_{name}_error_p{p}_us": percentile(values, p)
        for name, values in (("ttft", first), ("tpot", between), ("piece", pieces))
        for p in (50, 99)
    } | {
        "inside_piece_error_max_us": max(pieces, default=None),
        "inside_cpu_us_per_chunk": cpu_s * 1e6 / max(1, len(pieces)),
    }


def stamps(text: str) -> list[int]:
    """The times in a text of whole pieces, monotonic ns."""
    return [int(text[at : at + DIGITS]) for at in range(0, len(text), DIGITS)]


def _requests(count: int, tokens: int) -> list[PlannedRequest]:
    return [
        PlannedRequest(
            index=index,
            prompt_token_ids=(1, 2, 3),
            max_tokens=tokens,
            prefix_id=None,
            shared_tokens=0,
        )
        for index in range(count)
    ]


def _alive() -> None:
    """A request that fails is seen afterwards."""


def bare_us(url: str, load: Load) -> float:
    """CPU µs for each of ``load.tokens`` pieces of ``load.requests`` streams at once."""
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": load.tokens, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: floor\r\nContent-Length: %d\r\n\r\n"
    address = urlsplit(url)
    poll, streams = select.epoll(), {}
    for _ in range(load.requests):
        stream = socket.create_connection((address.hostname, address.port))
        stream.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
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
    return (time.process_time() - begun_s) * 1e6 / (load.requests * load.tokens)


def main(url: str, load: str, *bare: str) -> None:
    """Print this client's columns of a row, or those of bare reads."""
    trial = Load(**json.loads(load))
    if bare:
        columns: Figures = {"bare_us_per_chunk": bare_us(url, trial)}
    else:
        events, spent_s = run_async(drive(url, trial))
        columns = compare(events, truth(url), spent_s)
    print(json.dumps(columns))


if __name__ == "__main__":
    main(*sys.argv[1:])
