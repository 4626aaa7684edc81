"""This project's client in a process of its own, seen from inside; prints one JSON line.

    python -m benchmarks.instrument_loop '{"url": "…", "slots": 64, "requests": 64, "tokens": 100}'

Each piece of text is the server's clock when it was written, so the error of every arrival is
known. The CPU time is that of the loop alone: sending and receiving, without start-up and without
the reading of JSON, which this client does when the clock has stopped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.chunk_server import DIGITS, MODEL, ServerRecord
from benchmarks.instrument_truth import percentile, reset, tpot_ms, truth, ttft_ms
from whet.client import StreamClient, read_event, run_async
from whet.core.records.load import PlannedRequest, RequestEvent
from whet.core.units import NS_PER_MS
from whet.load.loops import ClosedLoop, OpenLoop, encode_all
from whet.load.quiet import quiet_interpreter
from whet.metrics import request_figures

_NS_PER_US = 1000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """``burst`` sends every request at once; otherwise ``slots`` are kept in flight."""

    url: str
    slots: int
    requests: int
    tokens: int
    burst: bool = False
    warmup: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """What the loop came to. Errors are the client's figure less the server's.

    ``piece`` is arrival less write of each piece; ``ttft`` counts from the send and from the
    server kernel's receipt; both pair each request with what the server did for that very request.
    """

    chunks: int
    cpu_us_per_chunk: float
    piece_error_p50_us: float | None
    piece_error_p99_us: float | None
    piece_error_max_us: float | None
    ttft_error_p50_us: float | None
    ttft_error_p99_us: float | None
    tpot_error_p50_us: float | None
    tpot_error_p99_us: float | None


async def drive(loop: Loop) -> tuple[list[RequestEvent], float]:
    """The events on the monotonic clock itself, and the CPU seconds of the timed loop."""
    async with StreamClient(loop.url, MODEL, max_connections=loop.slots) as client:
        await client.open(loop.slots)
        warm = ClosedLoop(client, slots=loop.slots, alive=_alive)
        await warm.run(encode_all(client, _requests(loop.warmup, loop.tokens)))
        reset(loop.url)
        exchanges = encode_all(client, _requests(loop.requests, loop.tokens))
        timed = (
            OpenLoop(client, offsets_ns=[0] * loop.requests, alive=_alive)
            if loop.burst
            else ClosedLoop(client, slots=loop.slots, alive=_alive)
        )
        with quiet_interpreter():
            cpu_s = time.process_time()
            await timed.run(exchanges)
            cpu_s = time.process_time() - cpu_s
    return [read_event(exchange, origin_ns=0) for exchange in timed.sent], cpu_s


def compare(
    events: Sequence[RequestEvent], records: Sequence[ServerRecord], cpu_s: float
) -> Inside:
    """Each request beside what the server did for it: the time of a first piece names it.

    Raises ``ValueError`` for a request that failed or that the server does not know.
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
    return Inside(
        chunks=len(pieces),
        cpu_us_per_chunk=cpu_s * 1e6 / max(1, len(pieces)),
        piece_error_p50_us=percentile(pieces, 50),
        piece_error_p99_us=percentile(pieces, 99),
        piece_error_max_us=max(pieces, default=None),
        ttft_error_p50_us=percentile(first, 50),
        ttft_error_p99_us=percentile(first, 99),
        tpot_error_p50_us=percentile(between, 50),
        tpot_error_p99_us=percentile(between, 99),
    )


def stamps(text: str) -> list[int]:
    """The times in a text of whole pieces, monotonic ns."""
    return [int(text[at : at + DIGITS]) for at in range(0, len(text), DIGITS)]


def inside(answer: Mapping[str, object]) -> Inside:
    """From the line that this module prints."""
    return Inside(**answer)  # type: ignore[arg-type]


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


if __name__ == "__main__":
    loop = Loop(**json.loads(sys.argv[1]))
    events, spent_s = run_async(drive(loop))
    print(json.dumps(asdict(compare(events, truth(loop.url), spent_s))))
