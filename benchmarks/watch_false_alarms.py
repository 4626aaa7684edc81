"""How often the watch alarms without a fault, and how long it takes with one, by simulation.

    python -m benchmarks.watch_false_alarms OUT --months 100 --processes 2

Writes ``false_alarms.csv`` (alarms by mix and cause over the simulated months of healthy traffic
with daily cycles, all detectors together) and ``delays.csv`` (periods from a lasting change to the
alarm with its name) to OUT. Every period goes through the functions that ``whet watch`` calls.
"""

from __future__ import annotations

import argparse
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

from benchmarks.table import write_rows
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


def _alarm_rows(months: Sequence[Counter[str]], each: int) -> Iterator[dict[str, object]]:
    for at, mix in enumerate(MIXES):
        own = months[at * each : (at + 1) * each]
        total = sum(own, Counter[str]())
        yield {
            "mix": mix,
            "months": each,
            "alarms": total.total(),
            "most in one month": max(month.total() for month in own),
            "causes": ", ".join(f"{name} {count}" for name, count in total.most_common()),
        }


def _delay_rows(repetitions: int) -> Iterator[dict[str, object]]:
    before = Truth()
    for wanted, changed in shifts():
        fields = [f for f in Truth.__slots__ if getattr(changed, f) != getattr(before, f)]
        delays = [delay(seed, changed, wanted) for seed in range(repetitions)]
        right = [item.right for item in delays if item.right is not None]
        yield {
            "change": ", ".join(
                f"{f} {getattr(before, f):g} → {getattr(changed, f):g}" for f in fields
            ),
            "cause": wanted,
            "named": f"{len(right)}/{repetitions}",
            "median periods": f"{median(right):g}" if right else "",
            "most periods": max(right, default=""),
            "another name first": sum(item.name != wanted for item in delays),
        }


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
    write_rows(list(_alarm_rows(months, options.months)), options.out / "false_alarms.csv")
    write_rows(list(_delay_rows(options.repetitions)), options.out / "delays.csv")


if __name__ == "__main__":
    main()
