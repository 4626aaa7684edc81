"""Analyse a large request log: how long it takes, and what memory. Makes results/prefix-cpu.

    python -m benchmarks.prefix write LOG --requests 1000000
    python -m benchmarks.prefix analyse LOG OUT

The floor, on 2 cores, of 1,000,000 requests × 1,500 tokens, each with a third of new text: reading
6 GB of JSON at 250 MB/s a core is 12 s, tokenizing 500 new tokens a request at 1.5 M tokens/s a
core 170 s, rendering a chat template at 40 µs 20 s. What is judged one after another (two caches,
a tree, the causes) is one core's work beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psutil
from whet.prefix.analyse import PromptQuestion, analyse

from whet.core.store import write_atomic
from whet.demo import pair_paths

_SYSTEMS: Final = 8
_LINES: Final = 26
_PLANTED: Final = {"date": 0.01, "id": 0.01, "version": 0.005, "whitespace": 0.005, "name": 0.01,
                   "json": 0.005}  # fmt: skip
_WORDS: Final = tuple(
    word
    for line in (
        "answer order refund parcel ticket customer polite short never always before after reply",
        "product warranty return address delivery payment invoice contact agent support policy",
        "level region store price stock offer model part cable lamp kettle router printer battery",
    )
    for word in line.split()
)
_KEYS: Final = ("brand", "country", "currency", "hours", "language", "support")


def lines(requests: int, *, seed: int = 0) -> Iterator[str]:
    """The log's lines: several system prompts, questions of their own, and planted causes."""
    rng = random.Random(seed)
    heads = [
        [f"Rule {i}: {' '.join(rng.choices(_WORDS, k=16))}." for i in range(_LINES)]
        for _ in range(_SYSTEMS)
    ]
    start = datetime(2026, 11, 1, tzinfo=UTC)
    for index in range(requests):
        kind = next(iter(rng.choices([*_PLANTED, ""], [*_PLANTED.values(), 1.0])))
        system = index % _SYSTEMS
        at = start + timedelta(seconds=index / 20)
        yield json.dumps(
            {
                "timestamp": at.timestamp(),
                "model": "demo",
                "messages": [
                    {"role": "system", "content": _head(kind, system, heads[system], at, rng)},
                    {"role": "user", "content": " ".join(rng.choices(_WORDS, k=330)) + "?"},
                ],
            }
        )


def _head(kind: str, system: int, rules: list[str], at: datetime, rng: random.Random) -> str:
    keys = list(_KEYS)
    if kind == "json":
        rng.shuffle(keys)
    name = f"{rng.choice(_WORDS)}{rng.choice(_WORDS)}".capitalize() if kind == "name" else "Alice"
    told = [
        f"You are desk {'ABCDEFGH'[system]} of a shop." + " " * (rng.randrange(1, 400)
                                                             if kind == "whitespace" else 0),
        f"Today is {at:%Y-%m-%d %H:%M:%S}." if kind == "date" else "Today is 2026-11-01.",
        f"Session {rng.getrandbits(48) if kind == 'id' else 0:012x}-77.",
        f"Assistant 2.{rng.randrange(10**6) if kind == 'version' else 14}.3.",
        f"You are talking to {name} Jones, a customer of ours.",
        json.dumps(dict.fromkeys(keys, "x")),
    ]  # fmt: skip
    return "\n".join([*told, *rules])


class Watch:
    """The highest memory of this process and all it started, in bytes, read now and then."""

    def __init__(self) -> None:
        self.highest = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(1.0):
            total = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    info = process.memory_full_info()
                except psutil.Error:
                    continue
                total += int(info.pss)
            self.highest = max(self.highest, total)

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()


def measure(log: Path, *, max_requests: int | None) -> dict[str, Any]:
    """Analyse and say what it took."""
    watch = Watch()
    began = time.monotonic()
    question = PromptQuestion(log=log, target=str(pair_paths()[0]), cache_blocks=40_000,
                              max_requests=max_requests)  # fmt: skip
    found = analyse(question, progress=lambda n: print(n, end="\r", file=sys.stderr))
    seconds = time.monotonic() - began
    watch.close()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "requests": found.requests,
        "prompt_tokens": found.hits.prompt_tokens,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(each.ru_utime + each.ru_stime for each in used), 1),
        "highest_pss_bytes": watch.highest,
        "hit_rate": round(found.hits.rate, 4),
        "repaired_hit_rate": round(found.repaired.rate, 4),
        "causes": {cause.kind: cause.requests for cause in found.causes},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("log", type=Path)
    write.add_argument("--requests", type=int, default=1_000_000)
    look = commands.add_parser("analyse")
    look.add_argument("log", type=Path)
    look.add_argument("out", type=Path)
    look.add_argument("--max-requests", type=int)
    asked = parser.parse_args()
    if asked.command == "write":
        with asked.log.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines(asked.requests))
        return
    told = measure(asked.log, max_requests=asked.max_requests)
    print(json.dumps(told, indent=2))
    write_atomic(asked.out, (json.dumps(told, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
