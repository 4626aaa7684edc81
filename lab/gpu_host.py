"""Jobs on a host with GPUs, side by side, each on its own GPU, until a deadline.

    python -m lab.gpu_host PLAN.yaml WORK [--limit SECONDS] [--list]
    python -m lab.gpu_host log TOKENIZER OUT.jsonl [--own TOKENS] [--answers TOKENS] …

``lab/hosts/`` has examples. PLAN has ``jobs``: a name, and its ``run`` (a shell command, in the
repository's folder, with WORK in the environment), ``gpu`` (its index; the job then has that GPU
alone and its share of the processor's cores), ``after`` (names of jobs that must have ended well),
``least`` (seconds that must be left to begin). ``also`` of the plan is put in front of every
command. WORK/jobs.txt is the journal, WORK/NAME.log a job's output, and WORK/done is written at the
end. At the deadline what runs is interrupted, which a run of whet survives.

``log`` writes a request log with one long system prompt, the traffic of the 7B testbed; with
``--own`` each request has a long text of its own and an answer of exactly ``--answers`` tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from whet.core.store import write_atomic

GRACE_S: Final = 30.0
"""From the interrupt to the kill."""
_LOOK_S: Final = 0.5
SYSTEM_TOKENS: Final = 1024
MOST_TOKENS: Final = 128
REQUESTS: Final = 4000
USER_TOKENS: Final = 85
"""The built-in user turns that are at least so long: with the ticket's number and the
template a request has about 128 tokens of its own."""


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
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=__doc__)
    if words[:1] == ["log"]:
        parser.add_argument("tokenizer", type=Path)
        parser.add_argument("out", type=Path)
        parser.add_argument("--own", type=int, default=0, help="tokens of each prompt's own text")
        parser.add_argument("--answers", type=int, default=MOST_TOKENS, help="tokens at most")
        parser.add_argument("--requests", type=int, default=REQUESTS)
        parser.add_argument("--temperature", type=float, default=0.0)
        write_log(**vars(parser.parse_args(words[1:])))
        return
    parser.add_argument("plan", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--list", action="store_true", help="print the jobs and start none")
    options = parser.parse_args(words)
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
        with (work / "jobs.txt").open("a") as journal:
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


def write_log(
    tokenizer: Path, out: Path, *, own: int, answers: int, requests: int, temperature: float
) -> None:
    """Write a log of chats: one system prompt, and the longer built-in user turns.

    The system prompt is the first long one with articles of the others' catalogues added
    until it has ``SYSTEM_TOKENS`` tokens, to within one article. With ``own`` it is left out, and
    each request has so many tokens of other turns, to within one turn, in an order of its own.
    """
    from transformers import AutoTokenizer

    from whet.data import write_inputs

    count = AutoTokenizer.from_pretrained(str(tokenizer)).encode
    with TemporaryDirectory() as folder:
        write_inputs(Path(folder))
        source = (Path(folder) / "workload.jsonl").read_text(encoding="utf-8")
    texts = [json.loads(line) for line in source.splitlines()]
    long, *others = [item["text"] for item in texts if item["kind"] == "system_long"]
    users = [item["text"] for item in texts if item["kind"] == "user"]
    more = [line for other in others for line in articles(other)]
    system = filled(long, more, limit=SYSTEM_TOKENS, count=lambda text: len(count(text)))
    turns = {text: len(count(text)) for text in users if len(count(text)) >= USER_TOKENS}
    rows = []
    for number in range(requests):
        text = f"Ticket {number}. {list(turns)[number % len(turns)]}"
        row: dict[str, Any] = {"temperature": temperature, "max_tokens": answers}
        if own:
            left = own
            for other in Random(number).sample(list(turns), len(turns)):
                left -= turns[other]
                text += f"\n{other}" if left >= 0 else ""
            row["usage"] = {"completion_tokens": answers}
        prompt = [] if own else [{"role": "system", "content": system}]
        rows.append({"messages": [*prompt, {"role": "user", "content": text}], **row})
    write_atomic(out, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def filled(text: str, lines: Iterable[str], *, limit: int, count: Callable[[str], int]) -> str:
    """Return ``text`` with ``lines`` below it, in order, while it has at most ``limit``."""
    for line in lines:
        if count(f"{text}\n{line}") > limit:
            break
        text = f"{text}\n{line}"
    return text


def articles(system: str) -> list[str]:
    """Return the lines of a system prompt's catalogue."""
    return system.partition("Catalogue:\n")[2].splitlines()


if __name__ == "__main__":
    main()
