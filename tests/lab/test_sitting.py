"""Jobs of a sitting: their order, their GPUs, and what the deadline does."""

from __future__ import annotations

from pathlib import Path

import lab.sitting
import pytest
from lab.sitting import Job, run


def test_a_job_begins_when_those_before_it_have_ended(tmp_path: Path) -> None:
    jobs = [
        Job(name="late", run="cat $WORK/made > $WORK/copied", after=["early"]),
        Job(name="early", run="sleep 0.2; echo $CUDA_VISIBLE_DEVICES > $WORK/made", gpu=1),
    ]
    assert run(jobs, tmp_path) == 0
    assert (tmp_path / "copied").read_text() == "1\n"
    assert (tmp_path / "done").exists()


def test_what_follows_a_failure_is_left_out(tmp_path: Path) -> None:
    jobs = [Job(name="bad", run="exit 3"), Job(name="next", run="touch $WORK/x", after=["bad"])]
    assert run(jobs, tmp_path) == 2
    assert not (tmp_path / "x").exists()
    assert "left out next" in (tmp_path / "sitting.txt").read_text()


def test_the_deadline_interrupts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.sitting, "GRACE_S", 5.0)
    waits = "trap 'touch $WORK/told; exit 1' INT; while :; do sleep 0.1; done"
    assert run([Job(name="waits", run=waits)], tmp_path, limit=6.0) == 1
    assert (tmp_path / "told").exists()


def test_a_job_without_enough_time_does_not_begin(tmp_path: Path) -> None:
    assert run([Job(name="long", run="true", least=500.0)], tmp_path, limit=100.0) == 1
