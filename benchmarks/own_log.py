"""A request log as traffic: what ``whet init`` takes, and whether a sample is like its log.

python -m benchmarks.own_log OUT     makes results/log-cpu (about five minutes, 1.5 GB of disk)
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from whet.checkpoint.encoder import PromptEncoder, load_encoder
from whet.core.request_log import LogReader
from whet.core.request_log.sample import sample_log
from whet.demo import pair_paths
from whet.load import Draw
from whet.load.logged import build_logged
from whet.load.sharing import ideal_hit_rate

Chat = list[dict[str, str]]
_INIT: Final = """
from whet.cli.main import main
main()
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
"""The command, and the highest memory of its process alone (a fork begins with its parent's)."""
_TARGET: Final = pair_paths()[0]
_BLOCK: Final = 16
_TRIAL: Final = 256
_REQUESTS: Final = 30_000
_LARGE: Final = {"100,000 requests": 100_000, "1 GB": 545_000}


def words(rng: random.Random, count: int) -> str:
    """Text of ``count`` words of two to nine letters."""
    return " ".join("".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(count))


def desk(rng: random.Random, requests: int) -> Iterator[Chat]:
    """Conversations of one to five turns behind eight system prompts, twenty open at a time."""
    systems = [words(rng, 150) for _ in range(8)]
    open_talks: list[tuple[Chat, int]] = []
    for _ in range(requests):
        if len(open_talks) < 20:
            open_talks.append(
                ([{"role": "system", "content": rng.choice(systems)}], rng.randint(1, 5))
            )
        at = rng.randrange(len(open_talks))
        chat, left = open_talks[at]
        chat = [*chat, {"role": "user", "content": words(rng, 30)}]
        yield chat
        if left == 1:
            open_talks.pop(at)
        else:
            open_talks[at] = ([*chat, {"role": "assistant", "content": words(rng, 30)}], left - 1)


def documents(rng: random.Random, requests: int) -> Iterator[Chat]:
    """Five questions about each of many texts, the text in the question, one system prompt."""
    system, waiting = words(rng, 40), []
    for _ in range(requests):
        if not waiting:
            texts = [words(rng, 200) for _ in range(50)]
            waiting = [text for text in texts for _ in range(5)]
            rng.shuffle(waiting)
        question = f"{waiting.pop()}\n\n{words(rng, 15)}"
        yield [{"role": "system", "content": system}, {"role": "user", "content": question}]


def single(rng: random.Random, requests: int) -> Iterator[Chat]:
    """Questions that share nothing."""
    for _ in range(requests):
        yield [{"role": "user", "content": words(rng, 150)}]


def mixed(rng: random.Random, requests: int) -> Iterator[Chat]:
    """A third of each."""
    sources = [desk(rng, requests), documents(rng, requests), single(rng, requests)]
    for at in range(requests):
        yield next(sources[at % 3])


LOGS: Final[dict[str, Callable[[random.Random, int], Iterator[Chat]]]] = {
    "conversations behind 8 system prompts": desk,
    "5 questions about each text": documents,
    "nothing shared": single,
    "a third of each": mixed,
}


def write_log(path: Path, make: Callable[[random.Random, int], Iterator[Chat]], count: int) -> None:
    """A log as a gateway writes it, five requests a second."""
    rng = random.Random(1)
    at_s = 1_790_000_000.0
    with path.open("w") as file:
        for chat in make(rng, count):
            at_s += rng.expovariate(5)
            answer = {"message": {"role": "assistant", "content": words(rng, 20)}}
            line = {
                "timestamp": at_s,
                "request": {"model": "m", "messages": chat},
                "response": {"choices": [answer], "usage": {"completion_tokens": 40}},
            }
            file.write(json.dumps(line) + "\n")


def hit_rates(path: Path, encoder: PromptEncoder) -> dict[str, Any]:
    """The ideal hit rate of a whole log, of its sample, and of eight trials of 256 requests."""
    log = list(LogReader(path))
    sample = sample_log(LogReader(path))
    trials = [
        build_logged(
            sample.part("load"),
            encoder,
            draw=Draw(requests=_TRIAL, batch_size=8, trial=trial, block_size=_BLOCK),
            warmup=20,
        ).workload.facts.expected_hit_rate
        for trial in range(8)
    ]
    requests = [each.request for each in sample.requests]
    return {
        "log_hit_rate": ideal_hit_rate(encoder.ids_many(log), block_size=_BLOCK),
        "sample_hit_rate": ideal_hit_rate(encoder.ids_many(requests), block_size=_BLOCK),
        "trials_hit_rate": fmean(trials),
        "trials_lowest": min(trials),
        "trials_highest": max(trials),
    }


def time_init(path: Path) -> dict[str, Any]:
    """Seconds and highest memory of ``whet init`` on a log."""
    spec = path.with_suffix(".yaml")
    words = ["init", str(spec), "--model", str(_TARGET), "--traffic", str(path)]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _INIT, *words], check=True, capture_output=True, text=True
    )
    return {
        "gb": path.stat().st_size / 1e9,
        "init_s": time.monotonic() - began,
        "peak_gib": int(done.stdout.split()[-2]) / 2**20,
    }


def main() -> None:
    """Every row, written as ``log.csv``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    encoder, rows = load_encoder(_TARGET), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        for name, make in LOGS.items():
            write_log(path, make, _REQUESTS)
            rows.append({"log": name, "requests": _REQUESTS, **hit_rates(path, encoder)})
            print(rows[-1], flush=True)
        for name, count in _LARGE.items():
            write_log(path, mixed, count)
            rows.append({"log": name, "requests": count, **time_init(path)})
            print(rows[-1], flush=True)
            path.with_suffix(".yaml").unlink()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out.mkdir(parents=True, exist_ok=True)
    with (out / "log.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        )


if __name__ == "__main__":
    main()
