"""Error rates of the quality gate's tasks, by simulation.

Rows of ``benchmarks.method``. Answers are drawn for both sides from one chance per question: most
are always or never right, some are right in half of the draws. Every verdict and every interval
comes from the product's own functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks.gate_coverage import BASELINE
from benchmarks.simulated_run import Row
from whet.core.records.quality import TaskAnswer
from whet.core.records.summary import Estimate
from whet.quality.answers import score_tasks
from whet.quality.verdicts import Findings, verdicts

TASKS: Final = (5, 60)
RIGHT: Final = 0.95
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


def rows(runs: int) -> Iterator[Row]:
    """Return every row."""
    for flips in (0.0, 0.01, 0.02, 0.04, 0.10):
        yield from gate(flips, runs)
