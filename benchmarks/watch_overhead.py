"""What ``whet watch`` costs the traffic: TPOT and throughput with it and without, in turn.

    python -m benchmarks.watch_overhead RUN OUT --pairs 4

RUN is a finished run of ``whet demo`` on this machine. One server, the run's own log at its load;
each pair is a window with the watch at its default period and one without, in the order A B B A.
Writes ``overhead.csv``. Nothing else may run.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from whet.core.run import Run
from whet.engines.launch import serve_process
from whet.metrics.quantiles import clustered_mean

_WHET: Final = (sys.executable, "-m", "whet")
_METRICS: Final = ("tpot_p50_ms", "output_tps")


def measure(url: str, log: Path, load: int, requests: int, seed: int) -> dict[str, float]:
    """One window of the run's traffic."""
    words = [*_WHET, "bench", url, "--dataset-name", "custom", "--dataset-path", str(log)]
    words += ["--concurrency", str(load), "--num-prompts", str(requests), "--seed", str(seed)]
    done = subprocess.run([*words, "--json", "-q"], capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)["runs"][0]
    return {
        "tpot_p50_ms": float(answer["median_tpot_ms"]),
        "output_tps": float(answer["output_throughput"]),
    }


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--requests", type=int, default=800)
    options = parser.parse_args()
    run = Run.read(options.run)
    recommended = run.decision and run.decision.recommendation
    assert recommended
    log = options.run.with_name(f"{options.run.name}-log.jsonl")
    load, work = int(recommended.batch_size), options.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    figures: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    order = [watched for pair in range(options.pairs) for watched in _pair(pair)]
    resolved = run.engines[recommended.variant]
    with serve_process(resolved, log=work / "server.log") as server:
        measure(server.base_url, log, load, 200, 99)
        for at, watched in enumerate(order):
            with ExitStack() as stack:
                if watched:
                    stack.enter_context(_watch(options.run, server.base_url, work))
                    time.sleep(3)
                row = measure(server.base_url, log, load, options.requests, at // 2)
            figures[watched].append(row)
            print("watched" if watched else "plain", row, flush=True)
    _write(options.out / "overhead.csv", figures)


def _pair(number: int) -> tuple[bool, bool]:
    return (True, False) if number % 2 == 0 else (False, True)


def _watch(run: Path, url: str, work: Path) -> ExitStack:
    stack = ExitStack()
    words = [*_WHET, "watch", str(run), "--url", url, "--state", str(work / "watch")]
    process = subprocess.Popen(
        [*words, "--listen", "off", "-q"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return stack


def _write(path: Path, figures: dict[bool, list[dict[str, float]]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["metric", "plain", "watched", "ratio", "low", "high", "pairs"])
        for metric in _METRICS:
            plain, watched = ([row[metric] for row in figures[side]] for side in (False, True))
            logs = np.log(np.array(watched) / np.array(plain))
            ratio = clustered_mean([np.array([value]) for value in logs])
            assert ratio is not None
            low, high = (
                np.exp(bound) if bound is not None else None for bound in (ratio.low, ratio.high)
            )
            row = [np.mean(plain), np.mean(watched), np.exp(ratio.value), low, high]
            writer.writerow(
                [metric, *(f"{value:.4g}" for value in row if value is not None), len(logs)]
            )


if __name__ == "__main__":
    main()
