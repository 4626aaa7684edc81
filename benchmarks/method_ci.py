"""What `whet ci` says of identical and of dearer runs, by simulation.

Two runs of four variants at three loads; one cell is compared. A start's figure varies by sigma. A
round has its own traffic at each load, which both runs send, and may drift in each run. Intervals
and verdicts come from the product's functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated_run import Row
from whet.ci.options import CiOptions
from whet.ci.paired import paired_at
from whet.ci.speed import cost_verdict
from whet.core.load import Load
from whet.metrics.pooled import StartTable

ALLOWED: Final = CiOptions().max_regression
_LOADS: Final = (Load.at(1), Load.at(8), Load.at(32))
_PRIMARY: Final = ("0", Load.at(8))
_DEARER: Final = (
    ("identical passes", 0.0, "pass"),
    ("10% dearer fails", math.log(1.10), "fail"),
    ("a day of 3% fails", math.log(1.03), "fail"),
)
Cells = dict[tuple[str, Load], NDArray[np.float64]]
"""Logarithms of the rates of each cell's starts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Standard deviations on the log scale, as shares of a start's or in themselves.

    ``shared`` is the share of a start's variance that its loads have in common. ``shares`` are the
    sigmas of the variants, ``traffic`` the rounds' by load, ``time`` the rounds' in one run.
    """

    name: str
    shared: float = 0.5
    shares: tuple[float, ...] = (1, 1, 1, 1)
    traffic: tuple[float, ...] = (0.02, 0.02, 0.02)
    time: float = 0.0
    same_traffic: bool = True


NOISES: Final = (
    Noise(name="equal noise"),
    Noise(name="a start's noise is shared by its loads", shared=1.0),
    Noise(name="unequal noise", shares=(1, 0.75, 0.5, 0.25), traffic=(0.03, 0.02, 0.003)),
)
"""The bounds of docs/ci.md hold for these."""
HARDER: Final = (
    Noise(name="rounds drift by 1% in each run", time=0.01),
    Noise(name="rounds drift by 2% in each run", time=0.02),
    Noise(name="other traffic", same_traffic=False),
)


def rows(runs: int) -> Iterator[Row]:
    """Each noise at 2, 3 and 5 starts and a sigma of 1 and 2%."""
    for noise in (*NOISES, *HARDER):
        for sigma in (0.01, 0.02):
            for starts in (2, 3, 5):
                yield from verdicts(noise, sigma, starts, runs)


def verdicts(noise: Noise, sigma: float, starts: int, runs: int) -> Iterator[Row]:
    """How often each verdict is given, and how often the interval holds the change."""
    counts, covered, random_day = [0, 0, 0], 0, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        before, after = _two_runs(rng, noise, sigma, starts)
        day = rng.normal(0, 0.03)
        for at, (_, dearer, verdict) in enumerate(_DEARER):
            made, holds = _judged(noise, before, after, dearer)
            counts[at] += made == verdict
            covered += holds and dearer == 0
        random_day += _judged(noise, before, after, day)[0] == "fail"
    for (what, dearer, _), count in zip(_DEARER, counts, strict=True):
        bound = "at least 0.88" if dearer == 0 else _bound(noise, sigma, starts, dearer)
        if noise in HARDER or starts < 3:
            bound = "" if dearer == 0 else bound
        yield f"{noise.name}: {what}", sigma, starts, count / runs, bound
    yield f"{noise.name}: a random day, sd 3%, fails", sigma, starts, random_day / runs, ""
    yield f"{noise.name}: coverage", sigma, starts, covered / runs, "0.93 to 0.98"


def _bound(noise: Noise, sigma: float, starts: int, dearer: float) -> str:
    """How often the measured change is above the allowance: no method fails a run more often."""
    varies = sigma**2 + noise.time**2 + (0 if noise.same_traffic else noise.traffic[1] ** 2)
    above = NormalDist(dearer, math.sqrt(2 * varies / starts))
    limit = 1 - above.cdf(math.log1p(ALLOWED))
    bound = "at least 0.95" if dearer > math.log1p(ALLOWED) else "at most 0.01"
    return f"{bound}; the change is above it in {limit:.3f}"


def _two_runs(rng: np.random.Generator, noise: Noise, sigma: float, starts: int) -> list[Cells]:
    """Two runs of the same servers."""
    traffic = [rng.normal(0, sd, starts) for sd in noise.traffic]
    sides: list[Cells] = []
    for side in range(2):
        if side and not noise.same_traffic:
            traffic = [rng.normal(0, sd, starts) for sd in noise.traffic]
        common = rng.normal(0, 1, (len(noise.shares), starts))
        cells = {}
        for load, sent in zip(_LOADS, traffic, strict=True):
            own = rng.normal(0, 1, common.shape)
            start = math.sqrt(noise.shared) * common + math.sqrt(1 - noise.shared) * own
            level = sent + rng.normal(0, noise.time, starts)
            for name, share in enumerate(noise.shares):
                cells[str(name), load] = level + share * sigma * start[name]
        sides.append(cells)
    return sides


def _judged(noise: Noise, before: Cells, after: Cells, dearer: float) -> tuple[str, bool]:
    """The verdict on a candidate whose costs are all higher, and whether the interval holds it."""
    tables = [
        StartTable.of(
            "tps_mean",
            {cell: dict(enumerate(np.exp(logs - less).tolist())) for cell, logs in cells.items()},
        )
        for cells, less in ((after, dearer), (before, 0.0))
    ]
    cost = paired_at(_PRIMARY, *tables, same_traffic=noise.same_traffic).ratio(_PRIMARY)
    assert cost is not None and cost.low is not None and cost.high is not None  # noqa: PT018
    return cost_verdict(cost, ALLOWED), cost.low <= math.exp(dearer) <= cost.high
