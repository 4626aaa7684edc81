"""Error rates of the quality gate's tasks and of the speculation map, by simulation.

Rows of ``benchmarks.method``. Answers are drawn for both sides from one chance per question: most
are always or never right, some are right in half of the draws. Every verdict and every interval
comes from the product's own functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

import numpy as np

from benchmarks.gate_coverage import BASELINE
from benchmarks.simulated_run import Row
from whet.core.load import Load
from whet.core.records.quality import TaskAnswer
from whet.core.records.speculation_map import AcceptanceLevel
from whet.core.records.summary import Estimate
from whet.flow.run.conclude.speculation_map import break_even_length
from whet.metrics.pooled import StartTable
from whet.quality.answers import score_tasks
from whet.quality.verdicts import Findings, verdicts

TASKS: Final = (5, 60)
RIGHT: Final = 0.95
BREAK_EVEN: Final = 2.5
FIXED: Final = 1 / 3
"""The share of a token's time that no acceptance shortens."""
_SIZES: Final = (1, 8, 32)
_EXACT: Final = Estimate(value=1.0, low=0.999, high=1.001, samples=60)


def judged(rng: np.random.Generator, flips: float, drop: float) -> str:
    """Return the gate's verdict on tasks that lost ``drop`` of their answers."""
    chance = np.where(rng.random(TASKS) < 2 * flips, 0.5, 0.0)
    chance[(chance == 0) & (rng.random(TASKS) < (RIGHT - flips) / (1 - 2 * flips))] = 1.0
    before, here = (rng.random(TASKS) < chance for _ in range(2))
    here &= rng.random(TASKS) >= drop / RIGHT
    baseline = replace(BASELINE, answers=_answers(before))
    answers = _answers(here)
    scores = score_tasks(answers, baseline)
    findings = Findings(ratio=_EXACT, tasks=scores, answers=answers, baseline=baseline)
    return verdicts(findings, [0.01])[0][0][1]


def _answers(right: Any) -> tuple[TaskAnswer, ...]:
    return tuple(
        TaskAnswer(id=f"{t}-{q}", task=str(t), text="so", right=bool(r), finish_reason="stop")
        for t, row in enumerate(right)
        for q, r in enumerate(row)
    )


def gate(flips: float, runs: int) -> Iterator[Row]:
    """How often tasks fail: without a loss, and with one of 7 points."""

    def failing(drop: float) -> float:
        drawn = [judged(np.random.default_rng(seed), flips, drop) for seed in range(runs)]
        return float(np.mean([word == "fail" for word in drawn]))

    yield "tasks: no loss fails", flips, TASKS[0], failing(0.0), "at most 0.01"
    bound = "at least 0.90" if flips <= 0.02 else ""
    yield "tasks: a loss of 7 points fails", flips, TASKS[0], failing(0.07), bound


def speculation(
    lengths: Sequence[float], *, sigma: float, starts: int, dearer: float, runs: int
) -> Iterator[Row]:
    """How often the break-even has an interval, and how often that holds it.

    A token takes ``FIXED`` + step ÷ length of the plain server's time. A step costs ``dearer`` more
    with each accepted token, compounded, so that seconds are not linear in 1 ÷ length.
    """
    drawn = [_map(np.random.default_rng(n), lengths, sigma, starts, dearer) for n in range(runs)]
    ends = [(each.low, each.high) for each in drawn if each is not None]
    given = [(low, high) for low, high in ends if low is not None and high is not None]
    covered = sum(low <= BREAK_EVEN <= high for low, high in given) / max(1, len(given))
    name = f"speculation map at lengths {', '.join(map(str, lengths))}, steps {dearer:.0%} dearer"
    yield f"{name}: has an interval", sigma, starts, len(given) / runs, ""
    bound = "at least 0.93" if given else "no interval"
    yield f"{name}: it covers", sigma, starts, covered if given else 1.0, bound


def _map(
    rng: np.random.Generator, lengths: Sequence[float], sigma: float, starts: int, dearer: float
) -> Estimate | None:
    """The break-even of one run: half of a start's effect is common to its three loads."""
    steps = np.array([(1 + dearer) ** (length - 1) / length for length in lengths])
    step = (1 - FIXED) * BREAK_EVEN / (1 + dearer) ** (BREAK_EVEN - 1)
    true = np.array([1.0, *1 / (FIXED + step * steps)])
    half = (len(true), starts)
    common, cells = rng.normal(0, sigma / math.sqrt(2), half), {}
    for size in _SIZES:
        logs = common + rng.normal(0, math.hypot(sigma / math.sqrt(2), 0.005), half)
        rates = true[:, None] * np.exp(logs + rng.normal(0, 0.02, starts))
        cells |= {(str(v), Load.at(size)): dict(enumerate(row)) for v, row in enumerate(rates)}
    table, at = StartTable.of("tps_mean", cells), Load.at(_SIZES[1])
    levels = []
    for v, length in enumerate(lengths, start=1):
        change = table.difference(("0", at), (str(v), at), family=len(_SIZES))
        assert change is not None
        level = AcceptanceLevel(
            variant=str(v), synthetic=length, acceptance_length=length, change=change.ratio
        )
        levels.append(level)
    return break_even_length(levels)


def rows(runs: int) -> Iterator[Row]:
    """Return every row of both."""
    for flips in (0.0, 0.01, 0.02, 0.04, 0.10):
        yield from gate(flips, runs)
    for lengths, dearer in product(((1.0, 2.5, 4.0), (1.0, 3.0, 5.0), (2.3, 2.6)), (0.0, 0.05)):
        for sigma, starts in product((0.0, 0.02, 0.05, 0.10), (2, 3, 5)):
            yield from speculation(lengths, sigma=sigma, starts=starts, dearer=dearer, runs=runs)
