"""How long a user waits: from the start of a process to its first request, or to its end.

    python -m benchmarks.startup --out results/instrument-cpu [--runs 10] [--vllm-rs PATH]

Each row is a command in a process of its own, whet's, the Rust client's and ``python -c pass``, all
in turn so that a slower minute meets each of them. ``first request`` is when the kernel of the
paced server received the first completion (``chunk_server``); what a client asks before, such as
the models, is part of the wait. The first round warms the caches and is left out. Ratios are to
``python -c pass`` of the same round: they keep their meaning on another machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.chunk_server import MODEL, Pace
from benchmarks.instrument_truth import paced_server, reset, truth
from benchmarks.jobs import JobError, last_words
from benchmarks.table import write_rows
from whet.core.units import NS_PER_S
from whet.demo import pair_paths

_BARE: Final = "python -c pass"
_WHET: Final = (sys.executable, "-m", "whet")
_REQUESTS, _IN_FLIGHT, _INPUT, _OUTPUT = 8, 4, 64, 8


@dataclass(frozen=True, kw_only=True, slots=True)
class StartRow:
    """One command: medians over the rounds, in seconds; ratios to the bare interpreter.

    ``first_request_s`` is None for a command that sends none.
    """

    command: str
    runs: int
    first_request_s: float | None
    first_request_ratio: float | None
    total_s: float
    total_ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Timing:
    first_request_s: float | None
    total_s: float


def commands(url: str, scratch: Path, vllm_rs: Path | None) -> Mapping[str, Sequence[str]]:
    """What is started, by name."""
    target = str(pair_paths()[0])
    load = (
        *("bench", url, "--tokenizer", target, "--num-prompts", str(_REQUESTS)),
        *("--concurrency", str(_IN_FLIGHT), "--isl", str(_INPUT), "--osl", str(_OUTPUT)),
    )
    run, spec = str(scratch / "runs" / "demo-h200"), str(scratch / "whet.yaml")
    named: dict[str, Sequence[str]] = {
        _BARE: (sys.executable, "-c", "pass"),
        "whet bench": (*_WHET, *load),
        "whet bench --form chat": (*_WHET, *load, "--form", "chat"),
        "whet --help": (*_WHET, "--help"),
        "whet bench --help": (*_WHET, "bench", "--help"),
        "whet check": (*_WHET, "check", spec, "--device", "H100 SXM"),
        "whet decide": (*_WHET, "decide", run),
        "whet report": (*_WHET, "report", run),
    }
    if vllm_rs is not None:
        named["vllm-rs bench serve"] = (
            *(str(vllm_rs), "bench", "serve", "--base-url", url, "--model", MODEL),
            *("--tokenizer", target, "--num-prompts", str(_REQUESTS), "--ignore-eos"),
            *("--max-concurrency", str(_IN_FLIGHT), "--random-input-len", str(_INPUT)),
            *("--random-output-len", str(_OUTPUT)),
        )
    return named


def prepare(scratch: Path) -> None:
    """The stored run that is decided and reported, and the spec that is checked."""
    target, draft = map(str, pair_paths())
    _call([*_WHET, "demo", "--replay", "--output-dir", str(scratch / "runs")], scratch)
    spec = str(scratch / "whet.yaml")
    _call([*_WHET, "init", spec, "--model", target, "--draft", draft], scratch)


def measure(command: Sequence[str], url: str, scratch: Path) -> _Timing:
    """One process from its start to its end. ``JobError`` where it fails."""
    reset(url)
    started_ns = time.monotonic_ns()
    _call(command, scratch)
    total_ns = time.monotonic_ns() - started_ns
    arrived = [one.arrived_ns for one in truth(url)]
    return _Timing(
        first_request_s=(min(arrived) - started_ns) / NS_PER_S if arrived else None,
        total_s=total_ns / NS_PER_S,
    )


def rows(timings: Mapping[str, Sequence[_Timing]]) -> Iterator[StartRow]:
    """One row a command, from its runs in the order of the rounds."""
    bare = [one.total_s for one in timings[_BARE]]
    for name, runs in timings.items():
        firsts = [one.first_request_s for one in runs if one.first_request_s is not None]
        totals = [one.total_s for one in runs]
        yield StartRow(
            command=name,
            runs=len(runs),
            first_request_s=median(firsts) if firsts else None,
            first_request_ratio=_ratio(firsts, bare) if firsts else None,
            total_s=median(totals),
            total_ratio=_ratio(totals, bare),
        )


def _ratio(values: Sequence[float], bare: Sequence[float]) -> float:
    return median(value / base for value, base in zip(values, bare, strict=True))


def _call(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise JobError(f"{' '.join(command)} failed: {last_words(done.stderr)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--vllm-rs", type=Path, help="binary of the Rust client, in vLLM's wheel")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, paced_server(Pace(tokens=_OUTPUT)) as url:
        scratch = Path(folder)
        prepare(scratch)
        named = commands(url, scratch, options.vllm_rs)
        timings: dict[str, list[_Timing]] = {name: [] for name in named}
        for number in range(options.runs + 1):
            for name, command in named.items():
                one = measure(command, url, scratch)
                if number:
                    timings[name].append(one)
    options.out.mkdir(parents=True, exist_ok=True)
    write_rows(list(rows(timings)), options.out / "startup.csv")
    print(json.dumps({row.command: row.first_request_s or row.total_s for row in rows(timings)}))


if __name__ == "__main__":
    main()
