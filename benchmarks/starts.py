"""Plain and forked starts of one vLLM server in turn: what a start takes, and the server's speed.

Prints a CSV, a row per start: wall-clock and CPU seconds of the start, memory, and those of one
trial of 64 requests, 8 in flight. CPU seconds count on a machine with other work.
``python benchmarks/starts.py MODEL --pairs 3 --args '{"max_model_len": 1152}'``.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from whet.core.protocols import Engine
from whet.core.records.engine import ResolvedEngine, Variant
from whet.core.spec import EngineSpec
from whet.engines import get_engine
from whet.engines.fork_starts import warm_engine
from whet.engines.probe import request

HEADS = ("kind", "health_s", "ready_s", "start_cpu_s", "memory_mib", "trial_s", "trial_cpu_s")


def main() -> None:
    """Alternate the two ways of starting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of the checkpoint")
    parser.add_argument("--pairs", type=int, default=3, help="starts of each kind (default: 3)")
    parser.add_argument("--args", default="{}", help="vLLM's flags as JSON (default: none)")
    parser.add_argument("--env", default="{}", help="variables as JSON (default: none)")
    options = parser.parse_args()
    variant = Variant(
        name="start",
        weights="16bit",
        scheme="16bit",
        model_path=options.model,
        speculation=None,
        prefix_cache=True,
        engine_args=tuple(json.loads(options.args).items()),
        env=tuple(json.loads(options.env).items()),
    )
    plain = get_engine("vllm")
    resolved = plain.resolve(variant, EngineSpec())
    table = csv.writer(sys.stdout)
    table.writerow(HEADS)
    with TemporaryDirectory() as name, warm_engine(plain, resolved, log=Path(name, "up")) as forks:
        for engine in (plain, forks) * (1 + options.pairs):  # the first pair fills the caches
            table.writerow(_measure(engine, resolved, Path(name, "server.log")))
            sys.stdout.flush()


def _measure(engine: Engine, resolved: ResolvedEngine, log: Path) -> tuple[object, ...]:
    with engine.serve(resolved, log=log) as server:
        start, up_cpu_s, began = server.start, _cpu_s(server.start.pid), time.monotonic()
        body = {"model": server.model_name, "max_tokens": 64, "ignore_eos": True}
        bodies = [body | {"prompt": f"{number} " + "a word and " * 40} for number in range(64)]
        ask = partial(request, server.base_url, "/v1/completions", timeout_s=300)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda body: ask(body=body), bodies))
        trial_s, trial_cpu_s = time.monotonic() - began, _cpu_s(start.pid) - up_cpu_s
        memory = (server.memory_bytes() or 0) >> 20
    figures = (start.health_s, start.ready_s, up_cpu_s, memory, trial_s, trial_cpu_s)
    return ("forked" if start.forked else "plain", *(f"{each:.1f}" for each in figures))


def _cpu_s(pid: int | None) -> float:
    server = psutil.Process(pid)
    return sum(sum(each.cpu_times()[:4]) for each in (server, *server.children(recursive=True)))


if __name__ == "__main__":
    main()
