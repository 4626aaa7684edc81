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
  machine (``instrument_loop``): the floor of any client in Python that dates each piece.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.chunk_server import Pace
from benchmarks.instrument_rows import TABLES, markdown
from benchmarks.instrument_runs import Context, attempt
from benchmarks.instrument_schedule import schedule_rows
from benchmarks.instrument_tools import (
    Client,
    Load,
    aiperf_client,
    guidellm_client,
    rust_client,
    vllm_client,
    whet_client,
)
from benchmarks.instrument_truth import chunks_per_s, figures, paced_server, server_late_p99_ms
from benchmarks.jobs import ROOT, JobError, last_words
from benchmarks.table import Results, Row, scrub
from whet.core.errors import WhetError
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
            rows = run(options, clients, Path(work))
    except (WhetError, JobError) as error:
        print(f"instrument: {error}", file=sys.stderr)
        return 1
    return 0 if all(row["failure"] is None for row in rows) else 1


def run(options: argparse.Namespace, clients: Sequence[Client], work: Path) -> list[Row]:
    """Every setting by every tool in turn, ``repeats`` times; the order turns each time.

    ``work`` holds what the tools write, which is deleted once it is read.
    """
    context = Context(
        clients=clients,
        versions={client.name: version_of(client, work) for client in clients},
        folder=work / "run",
        limit_s=options.limit_s,
        quick=options.quick,
    )
    results = Results(options.out, markdown, clients=dict(context.versions))
    for repeat in range(options.repeats):
        for trial in plan(options.tables, quick=options.quick):
            for client in context.in_turn(repeat):
                row = context.row(client, trial.table, repeat, trial.load)
                row |= {"gap_ms": trial.gap_s * 1e3}
                row = attempt(row, partial(_measure, context, client, trial))
                results.keep(row, _line(row))
        if "schedule" in options.tables:
            for row in schedule_rows(context, repeat):
                results.keep(row, _line(row))
    print(markdown(results.rows))
    return results.rows


def _measure(context: Context, client: Client, trial: Trial) -> Row:
    """One run, for a difference two; this project's client is seen from inside too."""
    row = _once(context, client, trial)
    load = trial.load
    if trial.fewer_tokens is not None:
        fewer = replace(trial, load=replace(load, tokens=trial.fewer_tokens))
        less = _once(context, client, fewer)
        chunks = load.requests * (load.tokens - trial.fewer_tokens)
        row["cpu_us_per_chunk"] = (row["cpu_s"] - less["cpu_s"]) / chunks * 1e6
    if client.name == "whet" and trial.table != "speed":
        row |= _alone(trial, context.limit_s)
        row |= _alone(trial, context.limit_s, "bare") if trial.table == "cpu" else {}
    return row


def _once(context: Context, client: Client, trial: Trial) -> Row:
    speed = trial.table == "speed"
    row, report, chosen = context.run(client, _pace(trial), trial.load, memory=speed)
    true = figures(chosen, client.percentile)
    for name, value in true.items():
        reported = report.figures[name]
        error = None if reported is None or value is None else reported - value
        row |= {f"true_{name}": value, f"{name.removesuffix('_ms')}_error_ms": error}
    row["server_late_p99_ms"] = server_late_p99_ms(chosen)
    if speed:
        row["chunks_per_s"] = chunks_per_s(chosen, trial.load.in_flight)
    return row


def _alone(trial: Trial, limit_s: float, *how: str) -> Row:
    """What ``instrument_loop`` prints of a trial, in a process of its own."""
    with paced_server(_pace(trial)) as url:
        load = json.dumps(asdict(trial.load))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.instrument_loop", url, load, *how],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    if done.returncode:
        raise JobError(f"instrument_loop: {last_words(done.stderr)}")
    columns: Row = json.loads(done.stdout)
    return columns


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


def _line(row: Row) -> str:
    """One run, for whoever waits."""
    gap = f", gap {row['gap_ms']:g} ms" if "gap_ms" in row else ""
    name = f"{row['table']} {row['tool']}, {row['in_flight']} in flight{gap}"
    known = {word: row.get(field) for field, word in _WORDS.items()}
    answer = [f"{word} {value:.4g}" for word, value in known.items() if value is not None]
    return f"{name}, run {row['repeat'] + 1}: {', '.join(answer)}".removesuffix(": ")


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
