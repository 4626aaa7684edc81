"""Servers that come up at the same time: what overlaps, what does not, and what ends them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.flow.rounds_stage import (
    DECLARED,
    FORTH,
    Bench,
    LoggedServer,
    Stand,
    build_bench,
    cells,
    patch_declared,
    spec_of,
)
from whet.core.errors import EngineLostError, EngineStartError, Interrupted, StorageError
from whet.core.protocols import Server, Silent
from whet.core.records.engine import ResolvedEngine, StartFacts
from whet.core.records.evidence import Declared, EngineFacts
from whet.core.records.load import TrialRecord
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder
from whet.load import TrialInterrupted, TrialPlan

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


def group_spec(folder: Path, *groups: list[str], **change: Any) -> Spec:
    load = {"concurrency": [1, 2], "trials": 2, "min_requests": 2, "warmup_requests": 2}
    load["order"] = "blocks"
    return spec_of(folder, load={**load, "requests_per_slot": 1, "together": groups}, **change)


def three(kind: str, *names: str) -> list[tuple[str, str]]:
    return [(kind, name) for name in sorted(names)]


def test_starts_overlap_and_measuring_is_one_after_the_other_when_all_are_up(
    desk: Desk, tmp_path: Path
) -> None:
    desk.crowd.meet = threading.Barrier(2)  # none of them comes up before all have begun
    desk.story(group_spec(tmp_path, ["fp16", "c"]), tmp_path / "run")
    group = ("fp16", "c")
    assert desk.shape() == [
        *three("up", *group),
        ("trial", "fp16"),
        ("trial", "c"),
        *three("down", *group),
        ("up", "b"),
        ("trial", "b"),
        ("down", "b"),
    ]
    assert {cell.status for cell in cells(tmp_path / "run").values()} == {"complete"}
    assert desk.bench.judged == [("fp16", False), ("c", True), ("b", True)]


def test_members_follow_in_the_order_of_the_rounds_whatever_the_order_of_their_names(
    desk: Desk, tmp_path: Path
) -> None:
    desk.story(group_spec(tmp_path, ["c", "fp16"]), tmp_path / "run")
    trials = [name for kind, name in desk.shape() if kind == "trial"]
    assert trials == ["fp16", "c", "b"]


def test_interleaved_servers_start_together_in_every_round_forwards_and_backwards(
    desk: Desk, tmp_path: Path
) -> None:
    load = {"order": "interleaved", "trials": 3, "concurrency": [1, 2], "min_requests": 2}
    groups = [["fp16", "b"]]
    spec = spec_of(tmp_path, load={**load, "together": groups, "warmup_requests": 2})
    desk.story(spec, tmp_path / "run")
    assert desk.crowd.started.count("fp16") == 3
    visits = [name for kind, name in desk.shape() if kind == "trial"]
    forth = ["fp16", "b", "c"]
    assert visits == [*forth, *forth[::-1], *forth]
    of_b = [(size, trial) for name, size, trial in desk.bench.measured if name == "b"]
    assert of_b == [(2, 0), (1, 0), (2, 1), (1, 1), (2, 2), (1, 2)]
    assert desk.bench.judged == [("fp16", False), ("b", True), ("c", True)]


def test_a_server_that_dies_in_its_round_gets_that_trial_alone(desk: Desk, tmp_path: Path) -> None:
    desk.crowd.looks = {"b": 1}  # a look before the trials and one in each
    load = {"order": "interleaved", "trials": 3, "concurrency": [1], "min_requests": 2}
    groups = [["fp16", "b"]]
    spec = spec_of(tmp_path, load={**load, "together": groups, "warmup_requests": 2})
    desk.story(spec, tmp_path / "run")
    assert desk.crowd.started.count("b") == 4
    assert [trial for name, _, trial in desk.bench.measured if name == "b"] == [0, 1, 2]


def test_without_groups_every_server_is_alone_and_in_the_main_thread(
    desk: Desk, tmp_path: Path
) -> None:
    desk.story(group_spec(tmp_path), tmp_path / "run")
    assert desk.crowd.threads == [(name, True) for name in FORTH]
    wanted = [(kind, name) for name in FORTH for kind in ("up", "trial", "down")]
    assert desk.shape() == wanted


def test_the_observer_hears_how_many_came_up_together_from_the_main_thread_alone(
    desk: Desk, tmp_path: Path
) -> None:
    desk.story(group_spec(tmp_path, ["fp16", "b", "c"]), tmp_path / "run")
    assert desk.ear.strangers == []
    assert "serve: fp16, b, c together (session 1 of 1)" in desk.ear.said
    for name in ("fp16", "b", "c"):
        heard = [said for said in desk.ear.said if said.startswith(f"{name} ready in ")]
        assert [said.endswith(", one of 3 that came up together") for said in heard] == [True]


def test_what_each_server_said_is_kept_by_its_name(desk: Desk, tmp_path: Path) -> None:
    desk.story(group_spec(tmp_path, ["b", "c"]), tmp_path / "run")
    store = RunStore.read(tmp_path / "run")
    for name in ("b", "c"):
        start = store.get("starts", name, StartFacts)
        assert start is not None
        assert start.variant == name
        assert store.get("facts", name, EngineFacts) is not None
        assert store.get("declared", name, Declared) == DECLARED


def test_a_member_that_does_not_start_is_journalled_and_the_others_are_measured(
    desk: Desk, tmp_path: Path
) -> None:
    desk.crowd.meet = threading.Barrier(3)
    desk.crowd.refused = {("b", 0)}
    root = tmp_path / "run"
    desk.story(group_spec(tmp_path, ["fp16", "b", "c"]), root)
    assert desk.crowd.started.count("b") == 1
    assert "CUDA out of memory" in str(RunStore.read(root).reason("starts", "b"))
    assert any(said.startswith("warning: b: CUDA") for said in desk.ear.said)
    found = cells(root)
    assert found["b", 1].status == "failed"
    assert {found[name, 1].status for name in ("fp16", "c")} == {"complete"}
    desk.crowd.refused.clear()
    desk.story(group_spec(tmp_path, ["fp16", "b", "c"]), root, resume=True)
    assert desk.shape() == [("up", "b"), ("trial", "b"), ("down", "b")]
    assert desk.crowd.threads[-1] == ("b", True), "alone, so as ever"


def test_a_resume_brings_up_only_the_members_that_lack_something(
    desk: Desk, tmp_path: Path
) -> None:
    spec, root = group_spec(tmp_path, ["fp16", "b", "c"]), tmp_path / "run"
    desk.story(spec, root)
    with RunStore.open(root, resume=True) as store:
        store.note("trials", "b--b001-t1", status="failed", reason="lost")
        store.note("quality", "c", status="failed", reason="lost")
    desk.story(spec, root, resume=True)
    assert desk.shape() == [*three("up", "b", "c"), ("trial", "b"), *three("down", "b", "c")]
    assert desk.bench.measured == [("b", 1, 1)]


def test_a_server_that_died_while_idle_is_started_again_alone_and_loses_no_trial(
    desk: Desk, tmp_path: Path
) -> None:
    desk.crowd.looks = {"c": 0}
    desk.story(group_spec(tmp_path, ["b", "c"]), tmp_path / "run")
    assert desk.shape()[3:] == [
        *three("up", "b", "c"),
        ("trial", "b"),
        *three("down", "b", "c"),
        ("up", "c"),
        ("trial", "c"),
        ("down", "c"),
    ]
    assert cells(tmp_path / "run")["c", 1].status == "complete"


def test_a_server_that_dies_in_a_trial_is_started_again_alone_after_the_others(
    desk: Desk, tmp_path: Path
) -> None:
    desk.crowd.looks = {"b": 2}  # one before it is measured, one in each trial
    desk.story(group_spec(tmp_path, ["b", "c"]), tmp_path / "run")
    assert [event for event in desk.shape() if event[0] == "trial"][1:] == [
        ("trial", "b"),
        ("trial", "c"),
        ("trial", "b"),
    ]
    assert desk.crowd.started.count("b") == 2
    assert "serve: b (started again)" in desk.ear.said
    found = cells(tmp_path / "run")
    assert found["b", 1].status == "failed", "its lost trial waits for a resume"
    assert found["b", 2].status == found["c", 1].status == "complete"


def test_a_death_in_a_group_uses_up_one_of_three_lives(desk: Desk, tmp_path: Path) -> None:
    @contextmanager
    def mortal(resolved: ResolvedEngine, **given: Any) -> Iterator[Server]:
        desk.crowd.looks = {"c": 0}
        with Crowd.serve(desk.crowd, resolved, **given) as server:
            if resolved.variant.name == "c":
                server.looks = 0  # type: ignore[attr-defined]
            yield server

    desk.crowd.serve = mortal  # type: ignore[method-assign]
    desk.story(group_spec(tmp_path, ["b", "c"]), tmp_path / "run")
    assert desk.crowd.started.count("c") == 3
    assert cells(tmp_path / "run")["b", 1].status == "complete"


def test_a_baseline_that_is_lost_is_measured_before_those_that_are_held_against_it(
    desk: Desk, tmp_path: Path
) -> None:
    desk.crowd.looks = {"fp16": 0}
    desk.story(group_spec(tmp_path, ["fp16", "b", "c"]), tmp_path / "run")
    assert desk.bench.judged == [("fp16", False), ("b", True), ("c", True)]
    assert {cell.status for cell in cells(tmp_path / "run").values()} == {"complete"}


def test_a_baseline_that_is_lost_before_anything_is_measured_still_comes_first(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def declared(url: str) -> Declared:
        asked.append(url)
        if len(asked) == 1:
            raise EngineLostError("nobody answers")
        return DECLARED

    patch_declared(monkeypatch, declared)
    desk.story(group_spec(tmp_path, ["fp16", "b", "c"]), tmp_path / "run")
    assert desk.bench.judged == [("fp16", False), ("b", True), ("c", True)]


def test_speculation_is_checked_after_the_same_weights_without_it(
    desk: Desk, tmp_path: Path
) -> None:
    desk.crowd.looks = {"plain": 0}
    guess = {"prefix_cache": True, "speculation": {"method": "ngram", "num_tokens": 2}}
    variants = {"fp16": {}, "plain": {"args": {"dtype": "float32"}}, "c": {"prefix_cache": True}}
    variants["guess"] = {**guess, "args": {"dtype": "float32"}}
    spec = group_spec(tmp_path, ["plain", "c", "guess"], variants=variants)
    desk.story(spec, tmp_path / "run")
    assert [name for name, _ in desk.bench.judged] == ["fp16", "c", "plain", "guess"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageError("the disk is full")])
def test_a_start_that_ends_the_run_stops_those_that_are_up_and_those_on_their_way(
    desk: Desk, tmp_path: Path, error: BaseException
) -> None:
    desk.crowd.meet = threading.Barrier(3)
    desk.crowd.broken = {"b": error}
    desk.crowd.hanging = {"c"}
    with pytest.raises(type(error)):
        desk.story(group_spec(tmp_path, ["fp16", "b", "c"]), tmp_path / "run")
    assert desk.crowd.up == set()
    assert ("gave up", "c") in desk.crowd.events
    assert desk.bench.measured == []
    assert not [t for t in threading.enumerate() if t.name.startswith("whet-start")]


def test_an_interrupt_while_they_come_up_stops_all(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.crowd.hanging = {"b", "c"}

    def interrupt(label: str, _done: int, _total: int) -> None:
        if label == "starting":
            raise KeyboardInterrupt

    monkeypatch.setattr(desk.ear, "progress", interrupt)
    with pytest.raises(KeyboardInterrupt):
        desk.story(group_spec(tmp_path, ["fp16", "b", "c"]), tmp_path / "run")
    assert desk.crowd.up == set()
    assert {event for event in desk.crowd.events if event[0] == "gave up"} == {
        ("gave up", "b"),
        ("gave up", "c"),
    }


def test_an_interrupt_while_one_is_measured_stops_all_and_keeps_what_was_measured(
    desk: Desk, tmp_path: Path
) -> None:
    desk.bench.stop_at = 6  # the second trial of b, after the four of fp16
    spec, root = group_spec(tmp_path, ["fp16", "b", "c"]), tmp_path / "run"
    with pytest.raises(TrialInterrupted):
        desk.story(spec, root)
    assert desk.crowd.up == set()
    found = cells(root)
    assert {found["fp16", size].status for size in (1, 2)} == {"complete"}
    desk.bench.stop_at = None
    desk.story(spec, root, resume=True)
    assert sorted(desk.crowd.started[:2]) == ["b", "c"]
    assert {cell.status for cell in cells(root).values()} == {"complete"}


def test_a_server_that_cannot_be_stopped_is_told(desk: Desk, tmp_path: Path) -> None:
    @contextmanager
    def clinging(resolved: ResolvedEngine, **given: Any) -> Iterator[Server]:
        with Crowd.serve(desk.crowd, resolved, **given) as server:
            yield server
        if resolved.variant.name == "b":
            raise StorageError("the log is gone")

    desk.crowd.serve = clinging  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="the log is gone"):
        desk.story(group_spec(tmp_path, ["b", "c"]), tmp_path / "run")
    assert desk.crowd.up == set()
