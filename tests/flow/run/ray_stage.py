"""Two workers of a real Ray cluster on one host, with a scripted engine and trials in no time.

``install_worker`` is the hook with which Ray makes a worker's process. The folder in
``WHET_TEST_FOLDER`` has ``lethal.json``, the variants that kill their worker, and ``ledger.txt``, a
line a trial.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.flow.rounds_stage import Bench, Stand, build_bench
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import Claim, Verdict
from whet.core.records.load import TrialRecord
from whet.engines.process import EngineProcess
from whet.load import TrialPlan

FOLDER = "WHET_TEST_FOLDER"
TRIAL_S = 0.1
SPEEDS = {("b", 1): 1.5, ("b", 2): 1.5, ("c", 1): 1.2, ("c", 2): 1.2}


def mark() -> str:
    """The argument of every engine process of this test session."""
    return f"600.{int.from_bytes(os.environ[FOLDER].encode()[-6:]) % 10**9:09d}"


@dataclass
class GuardedStand(Stand):
    """Servers without a socket, each with a process below a guardian."""

    @contextmanager
    def _serve(self, resolved: ResolvedEngine, log: Path) -> Iterator[Server]:
        process = EngineProcess(["sleep", mark()], env=os.environ, log=log, grace_s=0.5)
        try:
            with super()._serve(resolved, log) as server:
                yield server
        finally:
            process.stop()


@dataclass
class WorkerBench(Bench):
    """Trials that take ``TRIAL_S``, are noted in the ledger, and may kill their worker."""

    def run_trial(self, _url: str, _model: str, *, plan: TrialPlan, **asked: Any) -> TrialRecord:
        folder = Path(os.environ[FOLDER])
        time.sleep(TRIAL_S)
        if plan.variant in json.loads((folder / "lethal.json").read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
        record = super().run_trial(_url, _model, plan=plan, **asked)
        with (folder / "ledger.txt").open("a") as file:
            file.write(f"{plan.variant} {plan.load} {plan.trial}\n")
        return record


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted trials and answers in this process."""
    build_bench(monkeypatch, WorkerBench(engine=GuardedStand(), speeds=SPEEDS, passes=True))
    results = "whet.flow.run.conclude.results"
    monkeypatch.setattr(f"{results}.judge_start", lambda item, *_: [_proved(item)])
    monkeypatch.setattr(f"{results}.judge_cell", lambda *_: [])


def _proved(resolved: ResolvedEngine) -> Verdict:
    return Verdict(
        variant=resolved.variant.name,
        claim=Claim(kind="weights", statement="s", expected="e", per_cell=False),
        load=None,
        outcome="proved",
        observed="o",
        sources=(),
    )


def engines() -> list[psutil.Process]:
    """Engine processes of this session that still run."""
    return [
        each
        for each in psutil.process_iter(["cmdline", "status"])
        if each.info["cmdline"] == ["sleep", mark()] and each.info["status"] != "zombie"
    ]


def install_worker() -> None:
    """The same in a worker's process."""
    install(pytest.MonkeyPatch())
