"""README's client table: ``whet bench`` beside vLLM's two clients, GuideLLM and AIPerf.

    python -m benchmarks.instrument --out results/instrument-cpu --vllm-python .venv/bin/python \
        --guidellm PATH --aiperf PATH

All read the same paced server (``chunk_server``), in turn, on one machine; a peer that is not given
is left out. The server notes when it read each request and wrote each piece, and every tool's
figures are held against that. Writes runs.csv, table.md and environment.json without any path of
this machine. A tool that fails is a row that says so.

Tables: **accuracy** (32 in flight, first piece after 100 ms, then one each 20, 10 or 5 ms),
**burst** (64 requests at once), **cpu** (64 streams, a piece each 20 ms; the difference of two runs
that differ in pieces only, so start-up and the cost of a request fall out), **speed** (no gap);
**schedule** (a server that stalls, Poisson arrivals: ``instrument_schedule``, whose docstring says
what it shows and does not).

Equal for all:

- Server, machine, tokenizer, completions endpoint, token counts from the server's usage, prompts of
  32 tokens, requests, pieces, in flight; a fresh process each; a server of its own for each run.
- TTFT is counted from the send, as the peers count it. This project's headline TTFT counts from
  the schedule; it is in runs.csv beside it.
- TPOT is (last − first) / (tokens − 1) of a request: GuideLLM's and AIPerf's "inter-token latency",
  not GuideLLM's "time per output token", which holds the first token. GuideLLM weights it by
  tokens, which changes nothing if all requests have equally many.
- The true percentile is of the same definition as the tool's: a member of the sample for GuideLLM,
  interpolated for the others.
- CPU is of all processes of a tool, memory the peak of their proportional set size (sampled each
  0.25 s, in the speed table only); chunks/s come from the server's record, not from the tool.

Not equal:

- TTFT "truth" is from the receipt by the server's kernel, a tool's from its own send: the error
  holds the way between, but not how long a busy server takes to read what came.
- A server that is beyond its own pace writes late. That is not an error of a client, for the truth
  is when it wrote, but the load is then not the requested one: "server late" is its p99, including
  up to 1 ms of its timer's rounding.
- Warm-up: whet, vLLM and AIPerf send it before; GuideLLM leaves its first requests out of the
  figures, and in a burst it has none, so its connections open within the timed requests.
- Prompts: whet sends token ids, the others text.
- whet reads JSON when the clock has stopped, the others while it runs: "within the timed loop" is
  without it, "whole process tree" and "s in all" are with it.
- "bare reads" is ``epoll`` and ``recvmsg`` of the same streams and nothing else, on the same
  machine (``instrument_floor``): the floor of any client in Python that dates each piece.
- whet's "one piece" columns pair each piece with its own write; the peers give no such figure.
- AIPerf believes itself online, so that it takes a tokenizer's folder; its hub's address is dead.
- vLLM's own client runs without its command, which a CPU build of vLLM breaks: its ``main`` is the
  same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.chunk_server import Pace
from benchmarks.instrument_loop import Inside, Loop, inside
from benchmarks.instrument_rows import TABLES, Row, Run, markdown
from benchmarks.instrument_runs import Context, attempt
from benchmarks.instrument_schedule import schedule_rows
from benchmarks.instrument_tools import (
    Client,
    Load,
    aiperf_client,
    guidellm_client,
    read_answer,
    rust_client,
    vllm_client,
    whet_client,
)
from benchmarks.instrument_truth import (
    chunks_per_s,
    figures,
    paced_server,
    reset,
    server_late_p99_ms,
    timed,
    truth,
)
from benchmarks.jobs import ROOT, JobError, last_words
from benchmarks.table import scrub, write_rows
from whet.core.errors import WhetError
from whet.core.provenance import environment, now
from whet.core.store import write_atomic
from whet.core.units import MIB
from whet.demo import pair_paths

_TTFT_S: Final = 0.1
_VERSION_LIMIT_S: Final = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One setting that every tool runs. ``fewer_tokens`` is the other run of a difference."""

    table: str
    gap_s: float
    load: Load
    fewer_tokens: int | None = None


def plan(tables: Sequence[str], *, quick: bool) -> list[Trial]:
    """The settings of the tables; ``quick`` is too short for any figure to mean much."""
    many, warm, tokens = (32, 8, 20) if quick else (640, 64, 64)
    slots = 8 if quick else 32
    load = Load(in_flight=slots, requests=many, tokens=tokens, warmup=warm)
    burst = 16 if quick else 64
    trials = [
        Trial(table="accuracy", gap_s=gap_s, load=load)
        for gap_s in ((0.02,) if quick else (0.02, 0.01, 0.005))
    ]
    at_once = replace(load, in_flight=burst, requests=burst, warmup=burst, burst=True)
    trials += [Trial(table="burst", gap_s=0.02, load=at_once)]
    streams = Load(in_flight=burst, requests=burst, tokens=60 if quick else 1100, warmup=0)
    trials += [Trial(table="cpu", gap_s=0.02, load=streams, fewer_tokens=10 if quick else 100)]
    flood = replace(load, requests=64 if quick else 512, tokens=200 if quick else 1000)
    trials += [Trial(table="speed", gap_s=0.0, load=flood)]
    return [trial for trial in trials if trial.table in tables]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; what is finished is on the disk whatever happens later."""
    options = _options(arguments)
    clients = _clients(options)
    try:
        with tempfile.TemporaryDirectory(prefix="instrument-") as work:
            rows = Benchmark(options, Path(work)).run(clients)
    except (WhetError, JobError) as error:
        print(f"instrument: {error}", file=sys.stderr)
        return 1
    return 0 if all(row.failure is None for row in rows) else 1


class Benchmark:
    """One comparison, and the rows so far."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        """``work`` holds what the tools write, which is deleted once it is read."""
        self._options = options
        self._work = work
        self._rows: list[Run] = []

    def run(self, clients: Sequence[Client]) -> list[Run]:
        """Every setting by every tool in turn, ``repeats`` times; the order turns each time."""
        options = self._options
        context = Context(
            clients=clients,
            versions={client.name: version_of(client, self._work) for client in clients},
            folder=self._work / "run",
            limit_s=options.limit_s,
            quick=options.quick,
        )
        card = asdict(environment()) | {"clients": dict(context.versions)}
        write_atomic(options.out / "environment.json", (json.dumps(card, indent=1) + "\n").encode())
        for repeat in range(options.repeats):
            for trial in plan(options.tables, quick=options.quick):
                for client in context.in_turn(repeat):
                    self._keep([self._one(context, client, trial, repeat)])
            if "schedule" in options.tables:
                self._keep(schedule_rows(context, repeat))
        print(markdown(self._rows))
        return self._rows

    def _keep(self, rows: Iterable[Run]) -> None:
        """Each on the disk as soon as it is there."""
        for row in rows:
            self._rows.append(row)
            write_rows(self._rows, self._options.out / "runs.csv")
            write_atomic(self._options.out / "table.md", markdown(self._rows).encode())
            print(_line(row), flush=True)

    def _one(self, context: Context, client: Client, trial: Trial, repeat: int) -> Row:
        row = Row(
            tool=client.name,
            table=trial.table,
            repeat=repeat,
            gap_ms=trial.gap_s * 1e3,
            in_flight=trial.load.in_flight,
            requests=trial.load.requests,
            pieces=trial.load.tokens,
            version=context.versions.get(client.name),
            started_at=now(),
        )

        def measure(row: Row) -> Row:
            row = self._measure(context, client, trial, row)
            if client.name == "whet" and trial.table != "speed":
                answer = self._alone(trial, "instrument_loop")
                row = replace(row, **inside_values(inside(answer)))
            if client.name == "whet" and trial.table == "cpu":
                row = replace(row, bare_us_per_chunk=self._alone(trial, "instrument_floor"))
            return row

        return attempt(row, measure)

    def _measure(self, context: Context, client: Client, trial: Trial, row: Row) -> Row:
        """One run; for a difference, two."""
        row, cpu_s = self._once(context, client, trial, row)
        if trial.fewer_tokens is None:
            return row
        fewer = replace(trial, load=replace(trial.load, tokens=trial.fewer_tokens))
        _, less_s = self._once(context, client, fewer, row)
        chunks = trial.load.requests * (trial.load.tokens - trial.fewer_tokens)
        return replace(row, cpu_us_per_chunk=(cpu_s - less_s) / chunks * 1e6)

    def _once(self, context: Context, client: Client, trial: Trial, row: Row) -> tuple[Row, float]:
        load = trial.load
        with paced_server(_pace(trial)) as url:
            reset(url)
            spent = context.run(client, url, load, memory=trial.table == "speed")
            records = truth(url)
        answer = read_answer(client, context.folder)
        chosen = timed(records, answer.count)
        true = figures(chosen, client.percentile)
        wrong = answer.figures.minus(true)
        values: dict[str, Any] = asdict(answer.figures)
        values |= {f"true_{name}": value for name, value in asdict(true).items()}
        values |= {
            f"{name.removesuffix('_ms')}_error_ms": value for name, value in asdict(wrong).items()
        }
        row = replace(
            row,
            **values,
            counted=answer.count,
            schedule_ttft_p50_ms=answer.from_schedule[0],
            schedule_ttft_p99_ms=answer.from_schedule[1],
            server_late_p99_ms=server_late_p99_ms(chosen),
            cpu_s=spent.cpu_s,
            total_s=spent.total_s,
            peak_mib=None if spent.peak_bytes is None else spent.peak_bytes / MIB,
            chunks_per_s=chunks_per_s(chosen, load.in_flight) if trial.table == "speed" else None,
            complaint=spent.complaint,
        )
        if answer.count != load.requests:
            row = replace(row, complaint=f"figures of {answer.count} of {load.requests} requests")
        return row, spent.cpu_s

    def _alone(self, trial: Trial, module: str) -> Any:
        """What a module of this folder prints of a trial, in a process of its own."""
        load = trial.load
        with paced_server(_pace(trial)) as url:
            loop = Loop(
                url=url,
                slots=load.in_flight,
                requests=load.requests,
                tokens=load.tokens,
                burst=load.burst,
                warmup=load.warmup,
            )
            command = [sys.executable, "-m", f"benchmarks.{module}", json.dumps(asdict(loop))]
            done = subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=self._options.limit_s,
            )
        if done.returncode:
            raise JobError(f"{module}: {last_words(done.stderr)}")
        return json.loads(done.stdout)


def inside_values(inside_loop: Inside) -> dict[str, Any]:
    """Its columns of a row."""
    values = asdict(inside_loop)
    values.pop("chunks")
    return {f"inside_{name}": value for name, value in values.items()}


def version_of(client: Client, folder: Path) -> str:
    """What the tool calls itself, or why it cannot; starts it once, so that its files are read."""
    try:
        done = subprocess.run(
            client.version,
            env=client.environment(),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_VERSION_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return scrub(str(error))
    return scrub(last_words(done.stdout) or last_words(done.stderr))


def _pace(trial: Trial) -> Pace:
    ttft_s = 0.0 if trial.table == "speed" else _TTFT_S
    return Pace(ttft_s=ttft_s, gap_s=trial.gap_s, tokens=trial.load.tokens)


_WORDS: Final = {
    "ttft_p50_error_ms": "TTFT p50 error ms",
    "ttft_p99_error_ms": "TTFT p99 error ms",
    "tpot_p50_error_ms": "TPOT p50 error ms",
    "e2e_p99_ms": "E2E p99 ms",
    "true_e2e_p99_ms": "true ms",
    "expected_e2e_p99_ms": "expected ms",
    "ks_p": "KS p",
    "cpu_us_per_chunk": "CPU µs a chunk",
    "chunks_per_s": "chunks/s",
    "server_late_p99_ms": "server late ms",
}


def _line(row: Run) -> str:
    """One run, for whoever waits."""
    setting = [f"{row.in_flight} in flight"]
    gap_ms = getattr(row, "gap_ms", None)
    setting += [] if gap_ms is None else [f"gap {gap_ms:g} ms"]
    name = f"{row.table} {row.tool}, {', '.join(setting)}, run {row.repeat + 1}"
    if row.failure is not None:
        return f"{name}: {scrub(row.failure)}"
    known = {word: getattr(row, field, None) for field, word in _WORDS.items()}
    answer = [f"{word} {value:.4g}" for word, value in known.items() if value is not None]
    return f"{name}: " + ", ".join(answer)


def _clients(options: argparse.Namespace) -> list[Client]:
    """This project's, and each peer that was given."""
    where: Path = options.tokenizer or pair_paths()[0]
    tokenizer = where.resolve()
    clients = [whet_client(tokenizer)]
    if options.vllm_python:
        clients.append(vllm_client(options.vllm_python, tokenizer))
    if options.vllm_rs:
        clients.append(rust_client(options.vllm_rs, tokenizer))
    if options.guidellm:
        clients.append(guidellm_client(options.guidellm, tokenizer))
    if options.aiperf:
        clients.append(aiperf_client(options.aiperf, tokenizer))
    return clients


def _program(path: str) -> str:
    """Absolute, since tools run in folders of their own; a link is kept, for a venv is one."""
    return str(Path(path).absolute()) if "/" in path else path


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.instrument", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for runs.csv and table.md")
    add("--vllm-python", type=_program, help="interpreter that has vLLM")
    add("--vllm-rs", type=_program, help="the Rust client, vllm/vllm-rs of vLLM's wheel")
    add("--guidellm", type=_program, help="its program")
    add("--aiperf", type=_program, help="its program")
    add("--tokenizer", type=Path, help="folder (default: the demo target's)")
    add("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    add("--repeats", type=int, default=3)
    add("--quick", action="store_true", help="a short pass that shows that all works")
    add("--limit-s", type=float, default=600.0, help="a run that takes longer is a failure")
    options = parser.parse_args(arguments)
    if options.quick:
        options.repeats = 1
    return options


if __name__ == "__main__":
    sys.exit(main())
