"""Analyse a large request log: time and memory. Makes results/prefix-cpu.

python -m benchmarks.prefix write LOG --requests 100000
python -m benchmarks.prefix analyse LOG OUT
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from whet.core.store import write_atomic
from whet.demo import pair_paths
from whet.prompts.analyse import PromptLog, PromptQuestion, analyse

_SYSTEMS: Final = 8
_LINES: Final = 26
_RARE: Final = {"date": 0.01, "id": 0.01, "whitespace": 0.005, "name": 0.01}
_OFTEN: Final = {"date": 0.2, "id": 0.2, "whitespace": 0.1, "name": 0.2}
"""Shares of the requests that differ in one place near the start of their prompt."""
_WORDS: Final = tuple(
    word
    for line in (
        "answer order refund parcel ticket customer polite short never always before after reply",
        "product warranty return address delivery payment invoice contact agent support policy",
        "level region store price stock offer model part cable lamp kettle router printer battery",
    )
    for word in line.split()
)


def lines(requests: int, shares: Mapping[str, float], *, seed: int = 0) -> Iterator[str]:
    """The log's lines: eight system prompts, a question of its own in each, planted causes."""
    rng = random.Random(seed)
    heads = [
        [f"Rule {i}: {' '.join(rng.choices(_WORDS, k=16))}." for i in range(_LINES)]
        for _ in range(_SYSTEMS)
    ]
    start = datetime(2026, 11, 1, tzinfo=UTC)
    weights = [*shares.values(), 1 - sum(shares.values())]
    for index in range(requests):
        (kind,) = rng.choices([*shares, ""], weights)
        system = index % _SYSTEMS
        at = start + timedelta(seconds=index / 20)
        head = "\n".join([*_varying(kind, system, at, rng), *heads[system]])
        messages = [
            {"role": "system", "content": head},
            {"role": "user", "content": " ".join(rng.choices(_WORDS, k=330)) + "?"},
        ]
        yield json.dumps({"timestamp": at.timestamp(), "model": "demo", "messages": messages})


def _varying(kind: str, system: int, at: datetime, rng: random.Random) -> list[str]:
    blanks = " " * (rng.randrange(1, 400) if kind == "whitespace" else 0)
    name = f"{rng.choice(_WORDS)}{rng.choice(_WORDS)}".capitalize() if kind == "name" else "Alice"
    return [
        f"You are desk {'ABCDEFGH'[system]} of a shop.{blanks}",
        f"Today is {at:%Y-%m-%d %H:%M:%S}." if kind == "date" else "Today is 2026-11-01.",
        f"Session {rng.getrandbits(48) if kind == 'id' else 0:012x}-77.",
        f"You are talking to {name} Jones, a customer of ours.",
    ]


def measure(log: Path, *, max_requests: int | None) -> dict[str, Any]:
    """Analyse, with the time and the highest memory of the process."""
    began = time.monotonic()
    target = str(pair_paths()[0])
    question = PromptQuestion(
        log=log, target=target, cache_blocks=40_000, max_requests=max_requests
    )
    analysis, _ = analyse(
        PromptLog(question), progress=lambda n: print(n, end="\r", file=sys.stderr)
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "requests": analysis.requests,
        "prompt_tokens": analysis.hits.prompt_tokens,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "highest_rss_bytes": used.ru_maxrss * 1024,
        "hit_rate": round(analysis.hits.rate, 4),
        "causes": {cause.kind: cause.requests for cause in analysis.causes},
        "unnamed": analysis.unnamed,
        "fixes": {fix.kinds[0]: round(fix.hits.rate, 4) for fix in analysis.fixes},
        "fixed_hit_rate": round(analysis.best.rate, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("log", type=Path)
    write.add_argument("--requests", type=int, default=100_000)
    write.add_argument("--often", action="store_true", help="70%% of the requests differ")
    analyse_log = commands.add_parser("analyse")
    analyse_log.add_argument("log", type=Path)
    analyse_log.add_argument("out", type=Path)
    analyse_log.add_argument("--max-requests", type=int)
    options = parser.parse_args()
    if options.command == "write":
        shares = _OFTEN if options.often else _RARE
        with options.log.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines(options.requests, shares))
        return
    figures = measure(options.log, max_requests=options.max_requests)
    print(json.dumps(figures, indent=2))
    write_atomic(options.out, (json.dumps(figures, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
