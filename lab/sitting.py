"""One sitting on a host of several GPUs: jobs side by side, each on its GPU, until a deadline.

    python -m lab.sitting PLAN.yaml WORK [--limit SECONDS] [--list]

PLAN has ``jobs``: a name, and its ``run`` (a shell command, in the repository's folder, with WORK
in the environment), ``gpu`` (its index; the job then has that GPU alone and its share of the
processor's cores), ``after`` (names of jobs that must have ended well), ``least`` (seconds that
must be left to begin). ``also`` of the plan is put in front of every command. WORK/sitting.txt is
the journal, WORK/NAME.log a job's output, and WORK/done is written at the end. At the deadline what
runs is interrupted, which a run of whet survives.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

GRACE_S: Final = 30.0
"""From the interrupt to the kill."""
_LOOK_S: Final = 0.5


@dataclass(kw_only=True)
class Job:
    """A command and what it waits for."""

    name: str
    run: str
    gpu: int | None = None
    after: list[str] = field(default_factory=list)
    least: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, run and exit with the number of jobs that did not end well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--list", action="store_true", help="print the jobs and start none")
    options = parser.parse_args(argv)
    plan = yaml.safe_load(options.plan.read_text(encoding="utf-8"))
    jobs = [Job(**{"run": "", **job}) for job in plan["jobs"]]
    if options.list:
        print("\n".join(f"{job.name}: {job.run}" for job in jobs))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    sys.exit(run(jobs, options.work.resolve(), limit=options.limit, also=plan.get("also", "")))


def run(jobs: Sequence[Job], work: Path, *, limit: float = float("inf"), also: str = "") -> int:
    """Run the jobs and return how many did not end well, those that never began included."""
    # A shell that starts a command in the background has it ignore this, and its children too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began, ended = time.monotonic(), dict[str, int]()
    waiting, running = list(jobs), list[Job]()
    gpus = 1 + max((job.gpu for job in jobs if job.gpu is not None), default=0)
    interrupted = False

    def say(*words: Any) -> None:
        with (work / "sitting.txt").open("a") as journal:
            print(f"{time.monotonic() - began:7.1f}", *words, file=journal)

    while waiting or running:
        left = limit - (time.monotonic() - began)
        for job in list(waiting):
            if any(ended.get(name, 0) for name in job.after) or left < max(job.least, GRACE_S):
                waiting.remove(job)
                ended[job.name] = -1
                say("left out", job.name)
            elif all(name in ended for name in job.after):
                waiting.remove(job)
                running.append(job)
                _begin(job, work, gpus, also)
                say("begin", job.name)
        for job in list(running):
            assert job.process is not None
            if (code := job.process.poll()) is not None:
                running.remove(job)
                ended[job.name] = code
                say("end", job.name, f"exit {code},", f"{time.monotonic() - job.began:.0f} s")
            elif left < (0 if interrupted else GRACE_S):
                os.killpg(job.process.pid, signal.SIGKILL if interrupted else signal.SIGINT)
                say("interrupt" if not interrupted else "kill", job.name)
        interrupted = interrupted or left < GRACE_S
        time.sleep(_LOOK_S)
    (work / "done").touch()
    return sum(code != 0 for code in ended.values())


def _begin(job: Job, work: Path, gpus: int, also: str) -> None:
    env, cores = {**os.environ, "WORK": str(work)}, sorted(os.sched_getaffinity(0))
    if job.gpu is not None:
        env["CUDA_VISIBLE_DEVICES"] = str(job.gpu)
        share = len(cores) // gpus
        cores = cores[job.gpu * share : (job.gpu + 1) * share] or cores
    job.began = time.monotonic()
    with (work / f"{job.name}.log").open("ab") as log:
        job.process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cores)), "bash", "-c", f"{also}\n{job.run}"],
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


if __name__ == "__main__":
    main()
