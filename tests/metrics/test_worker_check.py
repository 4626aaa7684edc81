"""The check of workers: false alarms on equal ones, and what it sees of unequal ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from whet.core.load import Load
from whet.core.records.workers import WorkerCheck, WorkerSpeed
from whet.metrics.worker_check import SAME_SPEED, describe_check, judge_workers


def speeds(
    draw: np.random.Generator, *, workers: int, sd: float, together: float = 1.0, apart: float = 0.0
) -> list[WorkerSpeed]:
    """Windows with an error of ``sd``; the last worker is ``apart`` faster than the others."""
    made = []
    for number in range(workers):
        level = math.log(100) + (apart if number == workers - 1 else 0.0)
        first, alone, second = np.exp(level + sd * draw.normal(size=3)).tolist()
        pair = (first * together, second * together)
        measured = alone if number in (0, workers - 1) else None
        made.append(WorkerSpeed(worker=str(number), alone=measured, together=pair))
    return made


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_equal_workers_are_rarely_called_disturbed_or_unlike(workers: int) -> None:
    draw = np.random.default_rng(workers)
    verdicts = [judge_workers(speeds(draw, workers=workers, sd=0.05)) for _ in range(2000)]
    assert 0.03 < np.mean([each.disturbed for each in verdicts]) < 0.07
    assert np.mean([not each.alike for each in verdicts]) < 0.06


def test_figures_of_windows_without_an_error() -> None:
    draw = np.random.default_rng(0)
    verdict = judge_workers(speeds(draw, workers=3, sd=1e-6, together=0.9, apart=0.1))
    assert verdict.disturbed
    assert verdict.together.value == pytest.approx(0.9, rel=1e-4)
    assert verdict.devices == pytest.approx(math.exp(0.1), rel=1e-4)
    assert not verdict.alike
    nearly = judge_workers(speeds(draw, workers=3, sd=1e-6, apart=math.log1p(SAME_SPEED) * 0.99))
    assert nearly.alike


def test_a_drift_is_no_disturbance() -> None:
    drifting = [
        WorkerSpeed(worker=name, alone=98.0, together=(100.0, 96.04)) for name in ("a", "b")
    ]
    assert judge_workers(drifting).together.value == pytest.approx(1.0)


def test_what_the_windows_could_not_tell_is_said() -> None:
    windows = [WorkerSpeed(worker=name, alone=100.0, together=(94.0, 86.0)) for name in ("a", "b")]
    found = judge_workers(windows)
    check = WorkerCheck(
        variant="fp16",
        load=Load.at(64),
        workers=("a", "b"),
        speeds=tuple(windows),
        together=found.together,
        devices=found.devices,
        noise=found.noise,
        disturbed=found.disturbed,
        alike=found.alike,
    )
    assert next(describe_check(check)) == (
        "Beside the other workers the baseline is 10.1% slower than alone, within its noise "
        "(-22.0% to +3.6%)."
    )
