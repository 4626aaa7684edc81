"""A stand whose servers come up at the same time, and an observer that keeps what it hears."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.flow.rounds_stage import (
    Bench,
    LoggedServer,
    Stand,
    build_bench,
)
from whet.core.errors import EngineLostError, EngineStartError, Interrupted
from whet.core.protocols import Server, Silent
from whet.core.records.engine import ResolvedEngine
from whet.core.records.load import TrialRecord
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder
from whet.load import TrialPlan

WAIT_S = 30.0


@dataclass
class Mortal(LoggedServer):
    """Lives for so many looks at it; None is for ever."""

    looks: int | None = None

    def ensure_alive(self) -> None:
        if self.looks is not None:
            self.looks -= 1
            if self.looks < 0:
                raise EngineLostError("the engine ended; see its log")


@dataclass
class Crowd(Stand):
    """A stand whose starts and stops are noted, from whichever thread they come.

    ``meet`` is where all starts of a group wait for one another, and ``hanging`` are those that
    come up only to be told to stop. ``looks`` is how many looks a variant's first server survives.
    """

    events: list[tuple[str, str]] = field(default_factory=list)
    threads: list[tuple[str, bool]] = field(default_factory=list)
    meet: threading.Barrier | None = None
    hanging: set[str] = field(default_factory=set)
    broken: dict[str, BaseException] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    up: set[str] = field(default_factory=set)

    @contextmanager
    def serve(
        self, resolved: ResolvedEngine, *, log: Path, stop: threading.Event | None = None
    ) -> Iterator[Server]:
        name = resolved.variant.name
        assert log.name == f"{name}.log"
        number = self.started.count(name)
        self.started.append(name)
        self.threads.append((name, threading.current_thread() is threading.main_thread()))
        if stop is not None and self.meet is not None:
            self.meet.wait(WAIT_S)
        if name in self.broken:
            raise self.broken[name]
        if name in self.hanging:
            assert stop is not None
            assert stop.wait(WAIT_S), "nobody told it to stop"
            self.events.append(("gave up", name))
            raise Interrupted("told to stop")
        if (name, number) in self.refused:
            raise EngineStartError("CUDA out of memory; lower gpu_memory_utilization")
        self.up.add(name)
        self.events.append(("up", name))
        try:
            looks = self.looks.get(name) if number == 0 else None
            yield Mortal(
                scripted=None,  # type: ignore[arg-type]
                variant=name,
                dead=False,
                log="",
                looks=looks,
            )
        finally:
            self.up.discard(name)
            self.events.append(("down", name))


@dataclass
class Ear(Silent):
    """Keeps what is said, and from which thread."""

    said: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def stage(self, name: str, detail: str = "") -> None:
        self._hear(f"{name}: {detail}")

    def note(self, message: str) -> None:
        self._hear(message)

    def warn(self, message: str) -> None:
        self._hear(f"warning: {message}")

    def progress(self, label: str, _done: int, _total: int) -> None:
        self._hear(label)

    def _hear(self, message: str) -> None:
        self.said.append(message)
        if threading.current_thread() is not threading.main_thread():
            self.strangers.append(message)


@dataclass
class Desk:
    """A bench before a crowd: trials are noted among the starts and stops."""

    bench: Bench
    crowd: Crowd
    ear: Ear

    def run_trial(self, url: str, model: str, *, plan: TrialPlan, **asked: Any) -> TrialRecord:
        self.crowd.events.append(("trial", plan.variant))
        return self.bench.run_trial(url, model, plan=plan, **asked)

    def story(self, spec: Spec, root: Path, *, resume: bool = False) -> None:
        self.crowd.events.clear()
        self.crowd.started.clear()
        self.bench.plans.clear()
        with RunStore.open(root, resume=resume) as store:
            run(spec, Recorder(store=store, observer=self.ear), engines=self.crowd)

    def shape(self) -> list[tuple[str, str]]:
        """The events, a row of trials of one variant as one, starts and stops by name."""
        found: list[tuple[str, str]] = []
        for event in self.crowd.events:
            if event[0] != "trial" or found[-1:] != [event]:
                found.append(event)
        for kind in ("up", "down"):
            at = [i for i, event in enumerate(found) if event[0] == kind]
            for row in _rows(at):
                found[row[0] : row[-1] + 1] = sorted(found[row[0] : row[-1] + 1])
        return found


def _rows(numbers: list[int]) -> list[list[int]]:
    """Stretches of numbers that follow one another."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return rows


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    crowd = Crowd()
    bench = build_bench(monkeypatch)
    bench.engine = crowd
    made = Desk(bench=bench, crowd=crowd, ear=Ear())
    monkeypatch.setattr("whet.flow.serving.run_trial", made.run_trial)
    return made
