"""One run of one tool: how it ends when it does not end."""

import sys
from pathlib import Path

import pytest
from benchmarks.jobs import Job, JobError, Tool, run_job

JOB = Job(
    source="s",
    out="o",
    method="awq",
    scheme="W4A16",
    group_size=128,
    device="cpu",
    calibration="c",
    ids="i",
    samples=1,
    max_tokens=1,
    seed=0,
)


def _tool(program: str) -> Tool:
    return Tool(
        name="t",
        command=(sys.executable, "-c", program),
        warm="",
        python_path=None,
        at_root=False,
    )


def test_a_run_past_its_limit_is_stopped_and_tells_how_far_it_was(tmp_path: Path) -> None:
    program = "import time; print('layer 3 of 32', flush=True); time.sleep(600)"
    with pytest.raises(JobError, match=r"^stopped after 2 s; it said last: layer 3 of 32$"):
        run_job(_tool(program), JOB, tmp_path, limit_s=2)


def test_a_run_that_breaks_tells_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"^ValueError: no such layer$"):
        run_job(_tool("raise ValueError('no such layer')"), JOB, tmp_path, limit_s=60)
