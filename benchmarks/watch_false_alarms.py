"""How often the watch alarms without a fault, and how long it takes with one, by simulation.

    python -m benchmarks.watch_false_alarms OUT --months 100 --processes 2

Writes ``false_alarms.csv`` (alarms by mix and cause over the simulated months of healthy traffic
with daily cycles, all detectors together) and ``delays.csv`` (periods from a lasting change to the
alarm with its name) to OUT. Every period goes through the functions that ``whet watch`` calls.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from tests.watch.traffic import (
    DAY,
    MIXES,
    PERIODS_30_DAYS,
    Deployment,
    Truth,
    healthy,
    shifts,
    simulated_references,
)

from whet.watch.state import WatchState, advance

_WARM_UP: Final = 90
_MOST: Final = 3 * DAY
"""Periods after a change within which it has to be named."""


def false_alarms(
    seed: int, mix: str = "stationary", *, periods: int = PERIODS_30_DAYS
) -> Counter[str]:
    """Alarms by cause over ``periods`` of healthy traffic."""
    deployment, references = Deployment(np.random.default_rng(seed)), simulated_references()
    state, alarms = WatchState(run="simulated", variant="draft+cache"), Counter[str]()
    for period in range(periods):
        done = advance(state, deployment.observe(period, healthy(mix, period)), references)
        alarms.update(finding.cause.name for finding in done.begun)
        state = done.state
    return alarms


@dataclass(frozen=True, kw_only=True, slots=True)
class Delay:
    """Periods from a change to the first alarm (``name``) and to the right one; None: never."""

    name: str | None
    first: int | None
    right: int | None


def delay(seed: int, changed: Truth, wanted: str) -> Delay:
    """The delay of one lasting change after 90 healthy periods."""
    deployment, references = Deployment(np.random.default_rng(seed)), simulated_references()
    state, first, name = WatchState(run="simulated", variant="draft+cache"), None, None
    for period in range(_WARM_UP + _MOST):
        truth = Truth() if period < _WARM_UP else changed
        done = advance(state, deployment.observe(period, truth), references)
        state = done.state
        after = period - _WARM_UP + 1
        if period >= _WARM_UP and done.begun and first is None:
            first, name = after, done.begun[0].cause.name
        if period >= _WARM_UP and wanted in state.raised:
            return Delay(name=name, first=first, right=after)
    return Delay(name=name, first=first, right=None)


def _alarm_rows(months: Sequence[Counter[str]], each: int) -> Iterator[tuple[object, ...]]:
    for at, mix in enumerate(MIXES):
        own = months[at * each : (at + 1) * each]
        total = sum(own, Counter[str]())
        causes = ", ".join(f"{name} {count}" for name, count in total.most_common())
        yield mix, each, total.total(), max(month.total() for month in own), causes


def _delay_rows(repetitions: int) -> Iterator[tuple[object, ...]]:
    before = Truth()
    for wanted, changed in shifts():
        fields = [f for f in Truth.__slots__ if getattr(changed, f) != getattr(before, f)]
        words = ", ".join(f"{f} {getattr(before, f):g} → {getattr(changed, f):g}" for f in fields)
        delays = [delay(seed, changed, wanted) for seed in range(repetitions)]
        right = [item.right for item in delays if item.right is not None]
        yield (
            words,
            wanted,
            f"{len(right)}/{repetitions}",
            f"{median(right):g}" if right else "",
            max(right, default=""),
            sum(item.name != wanted for item in delays),
        )


def _write(path: Path, header: Sequence[str], rows: Iterator[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def main() -> None:
    """Simulate and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--months", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=20)
    options = parser.parse_args()
    with Pool(options.processes) as pool:
        seeds = range(options.first_seed, options.first_seed + options.months)
        months = pool.starmap(false_alarms, [(s, m) for m in MIXES for s in seeds], chunksize=1)
    _write(
        options.out / "false_alarms.csv",
        ("mix", "months", "alarms", "most in one month", "causes"),
        _alarm_rows(months, options.months),
    )
    _write(
        options.out / "delays.csv",
        ("change", "cause", "named", "median periods", "most periods", "another name first"),
        _delay_rows(options.repetitions),
    )


if __name__ == "__main__":
    main()
