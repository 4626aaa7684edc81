"""What a second client process is worth: ``whet bench`` with 1 and 2 workers, side by side.

Two sorts of load. **gap 0**: as fast as it goes. **gap 5 ms**: 64, 128 or 256 streams at a pace,
where a client that keeps up takes all of the pace ("of the pace" near 1) with small errors and its
loop on time, and one that does not says so ("valid runs" below 1).

Servers and clients share the machine. Each server process and each worker can use a core, so
chunks/s at gap 0 can rise with workers only where there are more cores than servers and workers; on
2 cores it cannot, and a fall there says nothing of the client. What 2 cores do show is the paced
load at which one process has no more time while two still have: the server writes a piece more
cheaply than the client reads it, so the client is the first to be full. That counts only while the
server keeps its own pace: "server late" is its own p99, up to 1 ms of it its timer's.

The servers are processes behind one port, half as many as cores, at most 2; the kernel deals the
connections out by chance. Only this project's client runs here: the peers' processes are their own
choice, and they are in the other tables with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.chunk_server import Pace, ServerRecord
from benchmarks.instrument_rows import ScalingRow
from benchmarks.instrument_runs import Context, attempt
from benchmarks.instrument_tools import Client, Load, read_answer
from benchmarks.instrument_truth import (
    chunks_per_s,
    figures,
    paced_servers,
    reset,
    server_cpu_s,
    server_late_p99_ms,
    timed,
    truth,
)
from benchmarks.jobs import JobError
from whet.core.provenance import now
from whet.core.units import NS_PER_S

WORKERS: Final = (1, 2)
_PACED: Final = Pace(ttft_s=0.1, gap_s=0.005, tokens=400)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A load on ``servers`` processes of one pace."""

    load: Load
    pace: Pace
    servers: int


def settings(*, quick: bool, cores: int) -> list[Setting]:
    """Each load with each number of workers, the workers in turn."""
    servers = max(1, min(2, cores // 2))
    tokens = 40 if quick else 1000
    settings = [
        Setting(
            load=Load(
                in_flight=32, requests=128 if quick else 3072, tokens=tokens, warmup=32,
            ),
            pace=Pace(tokens=tokens),
            servers=servers,
        )
    ]  # fmt: skip
    pace = replace(_PACED, tokens=40) if quick else _PACED
    for streams in (16,) if quick else (64, 128, 256):
        load = Load(in_flight=streams, requests=4 * streams, tokens=pace.tokens, warmup=streams)
        settings.append(Setting(load=load, pace=pace, servers=servers))
    return [
        replace(one, load=replace(one.load, workers=workers))
        for one in settings
        for workers in WORKERS
    ]


def scaling_rows(context: Context, repeat: int) -> Iterator[ScalingRow]:
    """This project's client alone."""
    cores = len(os.sched_getaffinity(0))
    for client in context.clients:
        if client.name != "whet":
            continue
        for setting in settings(quick=context.quick, cores=cores):
            row = ScalingRow(
                tool=client.name,
                table="scaling",
                repeat=repeat,
                in_flight=setting.load.in_flight,
                requests=setting.load.requests,
                pieces=setting.load.tokens,
                workers=setting.load.workers,
                servers=setting.servers,
                gap_ms=setting.pace.gap_s * 1e3,
                version=context.versions.get(client.name),
                started_at=now(),
            )
            yield attempt(row, _measure(context, client, setting))


def _measure(
    context: Context, client: Client, setting: Setting
) -> Callable[[ScalingRow], ScalingRow]:
    def measure(row: ScalingRow) -> ScalingRow:
        load = setting.load
        with paced_servers(setting.pace, setting.servers) as (url, own):
            for one in own:
                reset(one)
            before_s = server_cpu_s(*own)
            spent = context.run(client, url, load)
            cpu_s = server_cpu_s(*own) - before_s
            records = truth(*own)
        answer = read_answer(client, context.folder)
        if answer.count != load.requests:
            shortfall = f"figures of {answer.count} of {load.requests} requests"
            raise JobError(spent.complaint or shortfall)
        chosen = timed(records, answer.count)
        wrong = answer.figures.minus(figures(chosen, client.percentile))
        taken = chunks_per_s(chosen, load.in_flight)
        allowed = pace_chunks_per_s(load.in_flight, setting.pace)
        return replace(
            row,
            chunks_per_s=taken,
            pace_share=None if taken is None or allowed is None else taken / allowed,
            ttft_p99_error_ms=wrong.ttft_p99_ms,
            tpot_p99_error_ms=wrong.tpot_p99_ms,
            server_late_p99_ms=server_late_p99_ms(chosen),
            server_cores=cpu_s / _seconds(records),
            client_cpu_s=spent.cpu_s,
            complaint=spent.complaint,
            **_health(context.report(client)),
        )

    return measure


def pace_chunks_per_s(in_flight: int, pace: Pace) -> float | None:
    """What ``in_flight`` streams that follow one another at once come to; None without a gap."""
    if pace.gap_s == 0:
        return None
    return in_flight * pace.tokens / (pace.ttft_s + (pace.tokens - 1) * pace.gap_s)


def _seconds(records: list[ServerRecord]) -> float:
    """From the first arrival to the last write, warm-up included, as the sum of CPU has it."""
    ends = [one.last_ns for one in records if one.last_ns is not None]
    if not ends:
        raise JobError("the servers wrote nothing")
    return (max(ends) - min(one.arrived_ns for one in records)) / NS_PER_S


def _health(report: Any) -> dict[str, Any]:
    info = report["run_info"]
    return {
        "client_cpu_share": info["client_cpu_share"],
        "loop_lag_p99_ms": info["loop_lag_p99_ms"],
        "valid": info["valid"],
    }
