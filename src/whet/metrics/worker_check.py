"""Whether workers disturb each other, and whether their devices are equally fast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from whet.core.format import percent
from whet.core.records.summary import Estimate
from whet.core.records.workers import WorkerCheck, WorkerSpeed
from whet.metrics.estimates import student_t

SAME_SPEED: Final = 0.03
"""Two starts of one configuration on one device differ by as much, and a check has one start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerVerdict:
    """See ``WorkerCheck``."""

    together: Estimate
    devices: float
    noise: float
    disturbed: bool
    alike: bool


def judge_workers(speeds: Sequence[WorkerSpeed]) -> WorkerVerdict:
    """Compare the windows of two workers or more; one of them or more also measured alone.

    For the logarithm of a speed: y[worker, window] = worker + together + error, least squares. The
    windows at the same time stand before and after those alone, so a linear drift shifts both
    means alike. Workers disturb each other where the interval of ``together`` leaves out 1
    (Student's t, 95%). They are alike where none is further from their mean at the same time than
    the error explains (Bonferroni over the workers), or where the fastest is within ``SAME_SPEED``
    of the slowest.
    """
    workers = len(speeds)
    both = np.log([each.together for each in speeds])
    levels = both.mean(axis=1)
    tested = [at for at, each in enumerate(speeds) if each.alone is not None]
    alone = np.log([each.alone for each in speeds if each.alone is not None])
    differences = levels[tested] - alone
    change = float(differences.mean())
    squares = ((both - levels[:, None]) ** 2).sum() + ((differences - change) ** 2).sum() * 2 / 3
    freedom = workers + len(tested) - 1
    sd = math.sqrt(float(squares) / freedom)
    half = student_t(freedom) * sd * math.sqrt(1.5 / len(tested))
    apart = float(np.abs(levels - levels.mean()).max())
    limit = student_t(freedom, 1 - 0.025 / workers) * sd * math.sqrt((1 - 1 / workers) / 2)
    devices = math.exp(float(levels.max() - levels.min()))
    return WorkerVerdict(
        together=Estimate(
            value=math.exp(change),
            low=math.exp(change - half),
            high=math.exp(change + half),
            samples=len(tested),
        ),
        devices=devices,
        noise=math.expm1(sd),
        disturbed=not change - half <= 0 <= change + half,
        alike=apart <= limit or devices <= 1 + SAME_SPEED,
    )


def describe_check(check: WorkerCheck) -> Iterator[str]:
    """What a reader has to know before comparing figures of two workers, in sentences."""
    if check.together is None or check.devices is None:
        yield (
            f"The workers were not compared ({check.failure}), so each round stayed on one worker; "
            "compare variants within a round only."
        )
        return
    change = check.together.value - 1
    words = f"{percent(abs(change))} {'faster' if change > 0 else 'slower'}"
    if check.disturbed:
        yield (
            f"Workers disturb each other: beside the others the baseline is {words} than alone, "
            "more than its windows differ by. Figures are those of workers beside others."
        )
    else:
        edges = (check.together.low, check.together.high)
        noise = " to ".join(percent(e - 1, signed=True) for e in edges if e is not None)
        yield (
            f"Beside the other workers the baseline is {words} than alone, within its noise "
            f"({noise})."
        )
    apart = percent(check.devices - 1)
    if check.alike:
        yield f"The fastest worker is {apart} faster than the slowest, which counts as a tie."
    else:
        yield (
            f"The fastest worker is {apart} faster than the slowest, so each round stayed on one "
            "worker: ratios of two variants hold nothing of it, figures of one cell do."
        )
