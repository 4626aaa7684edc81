"""A run under every fault: its exit code, its message, its records, and what a resume makes of it.

``make test`` tries a seeded sample, ``make test-full`` all.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from tests.faults.cells import Cell, cells
from tests.faults.oracle import Undisturbed, judge, judge_truth
from tests.faults.stage import Stage, Writes
from whet.core.errors import StorageError

Item = TypeVar("Item")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
KILL = -1
TRIALS = 4


def sampled(items: Sequence[Item], count: int) -> list[Any]:
    """All items; a seeded sample of so many is run by ``make test``, the rest is ``full``."""
    first = set(random.Random(57).sample(range(len(items)), count))
    return [
        item if number in first else pytest.param(item, marks=pytest.mark.full)
        for number, item in enumerate(items)
    ]


@pytest.mark.parametrize("cell", sampled(cells(), 8), ids=str)
def test_a_fault_at_a_point_of_the_run(stage: Stage, undisturbed: Undisturbed, cell: Cell) -> None:
    result = stage.run(cell=cell)
    assert (stage.folder / "fault").exists(), "the point was not reached"
    if cell.fault.is_of_server:
        judge_truth(stage, cell)
    assert judge(stage, result, (cell.fault.code,), TRIALS) == undisturbed.measured


@pytest.mark.parametrize("number", sampled(range(200), 3))
def test_a_kill_at_any_moment(stage: Stage, undisturbed: Undisturbed, number: int) -> None:
    process = stage.start()
    time.sleep(random.Random(f"kill {number}").random() * undisturbed.seconds)
    process.kill()
    assert judge(stage, stage.end(process), (-9, None), TRIALS) == undisturbed.measured


@pytest.mark.parametrize("number", sampled(range(200), 4))
def test_a_write_that_fails(stage: Stage, undisturbed: Undisturbed, number: int) -> None:
    """One call, or all from then on, by turns; every tenth time the process ends there."""
    at = random.Random(f"write {number}").randrange(undisturbed.writes)
    error = KILL if number % 10 == 9 else ERRORS[number % len(ERRORS)]
    last = at + 1 if number % 2 else Writes().last
    result = stage.run(writes=Writes(first=at, last=last, error=error))
    code = -9 if error == KILL else StorageError.exit_code
    assert judge(stage, result, (code, None), TRIALS) == undisturbed.measured
