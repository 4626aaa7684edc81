"""Jobs on a GPU host: their order, their GPUs, the deadline, and the examples."""

from __future__ import annotations

from pathlib import Path

import lab.gpu_host
import pytest
import yaml
from lab.gpu_host import Job, articles, filled, run

HOSTS = Path(lab.gpu_host.__file__).parent / "hosts"


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
    assert "left out next" in (tmp_path / "jobs.txt").read_text()


def test_the_deadline_interrupts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.gpu_host, "GRACE_S", 5.0)
    waits = "trap 'touch $WORK/noticed; exit 1' INT; while :; do sleep 0.1; done"
    assert run([Job(name="waits", run=waits)], tmp_path, limit=6.0) == 1
    assert (tmp_path / "noticed").exists()


def test_a_job_without_enough_time_does_not_begin(tmp_path: Path) -> None:
    assert run([Job(name="long", run="true", least=500.0)], tmp_path, limit=100.0) == 1


@pytest.mark.parametrize("plan", sorted(HOSTS.glob("*_gpu*.yaml")), ids=lambda plan: plan.stem)
def test_the_example_plans_have_jobs_that_wait_for_earlier_ones(plan: Path) -> None:
    jobs = [Job(**job) for job in yaml.safe_load(plan.read_text(encoding="utf-8"))["jobs"]]
    for number, job in enumerate(jobs):
        assert set(job.after) <= {before.name for before in jobs[:number]}


def test_a_system_prompt_is_filled_up_to_its_tokens() -> None:
    found = filled("a b", ["c d", "e f", "g"], limit=6, count=lambda text: len(text.split()))
    assert found == "a b\nc d\ne f"


def test_articles_are_the_lines_of_the_catalogue() -> None:
    assert articles("Rules:\n- one\nCatalogue:\nA lamp.\nA rug.") == ["A lamp.", "A rug."]
    assert articles("Rules:\n- one") == []
