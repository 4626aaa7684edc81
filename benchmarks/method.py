"""Error rates of the method by simulation: false differences, coverage, and the winner's curse.

    python -m benchmarks.method --out results/method [--runs 1000]

Starts are drawn from the model of docs/method.md: six variants at three batch sizes, rounds that
drift by 2%, half of a start's effect common to its batch sizes, and 0.5% left of what one trial
varies. Every interval and every verdict comes from the product's own functions.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from whet.metrics.pooled import StartTable
from whet.metrics.starts import rate_over_starts

VARIANTS: Final = 6
SIZES: Final = (1, 8, 32)
SIGMAS: Final = (0.0, 0.02, 0.05, 0.10)
_CELLS: Final = 25
_FRESH: Final = 2

Row = tuple[str, float, int, float, str]


def drawn(rng: np.random.Generator, sigma: float, starts: int) -> StartTable:
    """One run of identical variants."""
    common = rng.normal(0, sigma * math.sqrt(0.5), (VARIANTS, starts))
    cells = {}
    for size in SIZES:
        logs = common + rng.normal(0, sigma * math.sqrt(0.5), (VARIANTS, starts))
        logs += rng.normal(0, 0.02, starts) + rng.normal(0, 0.005, (VARIANTS, starts))
        cells |= {(str(v), size): dict(enumerate(np.exp(row))) for v, row in enumerate(logs)}
    return StartTable.of("tps_mean", cells)


def false_differences(sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """Per comparison alone, and per run with the family corrected."""
    alone = runs_with = 0
    for seed in range(runs):
        table = drawn(np.random.default_rng(seed), sigma, starts)
        tested = [
            table.difference(("0", 32), (str(v), 32), family=VARIANTS - 1)
            for v in range(1, VARIANTS)
        ]
        runs_with += any(each is not None and each.different for each in tested)
        one = table.difference(("0", 32), ("1", 32), family=1)
        alone += one is not None and one.different
    yield "false differences per comparison", sigma, starts, alone / runs, "at most 0.05"
    yield "runs with a false difference", sigma, starts, runs_with / runs, "at most 0.05"


def coverage(sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """How often a 95% interval holds the truth, of one cell and of a ratio."""
    cell = ratio = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        rates = np.exp(rng.normal(0, math.hypot(sigma, 0.005), starts)).tolist()
        one = rate_over_starts(rates, samples=100)
        cell += one.low is not None and one.high is not None and one.low <= 1 <= one.high
        table = drawn(rng, sigma, starts)
        two = table.difference(("0", 8), ("1", 8), family=0)
        assert two is not None
        assert two.ratio.low is not None
        assert two.ratio.high is not None
        ratio += two.ratio.low <= 1 <= two.ratio.high
    yield "coverage of a cell's rate", sigma, starts, cell / runs, "0.93 to 0.97"
    yield "coverage of a ratio", sigma, starts, ratio / runs, "0.93 to 0.97"


def winners(sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """The mean error of the cheapest of equal cells: as selected, and as confirmed."""
    rng = np.random.default_rng(0)
    selected = rng.normal(0, sigma, (runs, _CELLS, starts)).mean(axis=2).min(axis=1)
    confirmed = rng.normal(0, sigma, (runs, _FRESH)).mean(axis=1)
    yield "bias of the selected cost", sigma, starts, math.expm1(selected.mean()), "none"
    yield "bias of the confirmed cost", sigma, starts, math.expm1(confirmed.mean()), "within 0.005"


def main() -> None:
    """Write ``simulations.csv``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/method"))
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "simulations.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("figure", "sigma", "starts", "value", "bound"))
        for sigma in SIGMAS:
            for starts in (2, 3, 5):
                for rows in (
                    false_differences(sigma, starts, options.runs),
                    coverage(sigma, starts, options.runs),
                    winners(sigma, starts, 20 * options.runs),
                ):
                    for figure, at, count, value, bound in rows:
                        writer.writerow((figure, at, count, f"{value:.4f}", bound))


if __name__ == "__main__":
    main()
