"""What the paced server really did, and what a client's figures are held against."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final, Literal

import numpy as np

from benchmarks.chunk_server import Pace, ServerRecord
from benchmarks.jobs import ROOT, JobError
from whet.client import get_text
from whet.core.units import NS_PER_MS, NS_PER_S

Method = Literal["linear", "inverted_cdf"]
_STOP_S: Final = 10.0


Figures = dict[str, float | None]
"""Percentiles over requests in ms, as a tool has them or as they were, by name: ``ttft_p50_ms``.

``ttft`` counts from the send, ``e2e`` is the whole request; ``max`` stands for the largest.
"""


@contextmanager
def paced_server(pace: Pace) -> Iterator[str]:
    """A server process of its own; yields its URL. ``JobError`` where it does not start."""
    command = [sys.executable, "-m", "benchmarks.chunk_server", json.dumps(asdict(pace))]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise JobError("the paced server did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=_STOP_S)


def reset(url: str) -> None:
    """Forget the requests so far."""
    get_text(url, "/reset")


def truth(url: str) -> list[ServerRecord]:
    """Every request since the reset, in the order of arrival."""
    records = (ServerRecord(**json.loads(line)) for line in get_text(url, "/truth").splitlines())
    return sorted(records, key=lambda one: one.arrived_ns)


def timed(records: Sequence[ServerRecord], count: int) -> list[ServerRecord]:
    """The last ``count`` requests: what a client warms up with comes before.

    Raises ``JobError`` where there are fewer, or where one of them was not served whole.
    """
    if not 0 < count <= len(records):
        raise JobError(f"the tool speaks of {count} requests; the server read {len(records)}")
    chosen = list(records)[-count:]
    broken = sum(one.pieces < one.num_chunks or one.pieces == 0 for one in chosen)
    if broken:
        raise JobError(f"{broken} of {count} requests were not served to their end")
    return chosen


def ttft_ms(one: ServerRecord) -> float | None:
    """First piece written less request received by the kernel."""
    return None if one.first_ns is None else (one.first_ns - one.arrived_ns) / NS_PER_MS


def server_late_p99_ms(records: Sequence[ServerRecord]) -> float | None:
    """How late the server itself wrote: p99 over all paced pieces; None where none is paced."""
    late = percentile([late_ns for one in records for late_ns in one.late_ns], 99)
    return None if late is None else late / NS_PER_MS


def tpot_ms(one: ServerRecord) -> float | None:
    """(Last written − first written) / (pieces − 1); None for a single piece."""
    if one.first_ns is None or one.last_ns is None or one.pieces < 2:
        return None
    return (one.last_ns - one.first_ns) / (one.pieces - 1) / NS_PER_MS


def figures(records: Sequence[ServerRecord], method: Method = "linear") -> Figures:
    """The true percentiles, in the definition of percentile that the tool has."""
    first = [value for one in records if (value := ttft_ms(one)) is not None]
    between = [value for one in records if (value := tpot_ms(one)) is not None]
    return {
        f"{name}_p{p}_ms": percentile(values, p, method)
        for name, values in (("ttft", first), ("tpot", between))
        for p in (50, 99)
    }


def percentile(values: Sequence[float], p: float, method: Method = "linear") -> float | None:
    """None of nothing."""
    return float(np.percentile(values, p, method=method)) if len(values) else None


def chunks_per_s(records: Sequence[ServerRecord], in_flight: int) -> float | None:
    """How fast a closed loop of ``in_flight`` took the pieces, whatever the tool says.

    When the last request is read, all but the ``in_flight`` − 1 others that may still be under way
    were taken whole, since each was followed by another. None for too few requests.
    """
    taken = list(records)[:-in_flight]
    seconds = (records[-1].read_ns - records[0].read_ns) / NS_PER_S if records else 0.0
    if not taken or seconds <= 0:
        return None
    return sum(one.pieces for one in taken) / seconds
