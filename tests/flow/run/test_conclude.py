"""The end of a run: answers that are none count for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.stage import FakeEngine, tiny_spec
from tests.metrics.events import steady, trial
from whet.core.load import Load, trial_key
from whet.core.protocols import Silent
from whet.core.records.decision import Decision
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.conclude import conclude as conclude_module
from whet.flow.run.conclude.conclude import conclude, decide_over, reference_of
from whet.flow.run.plan import Recorder

MARKS = "!" * 64
Start = Callable[..., AbstractContextManager[Recorder]]


@dataclass
class Told(Silent):
    """What a person was told."""

    warned: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)

    def warn(self, message: str) -> None:
        self.warned.append(message)

    def note(self, message: str) -> None:
        self.noted.append(message)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """A prepared run that no server was started for; again is the same run, resumed."""

    @contextmanager
    def opened(*, resume: bool = False, **change: Any) -> Iterator[Recorder]:
        spec = tiny_spec(tmp_path, **change)
        with RunStore.open(tmp_path / "run", resume=resume) as store:
            recorder = Recorder(store=store, observer=Told())
            prepare(spec, recorder, FakeEngine(), skip_infeasible=False)
            yield recorder

    return opened


def keep_trials(job: Recorder, name: str, text: str | None = None) -> None:
    load = Run(job.store).require_spec().load
    for size in load.concurrency:
        for number in range(load.trials):
            record = trial(steady(16), number=number, variant=name, load=Load.at(size))
            if text is not None:
                record = all_saying(record, text)
            job.store.put("trials", trial_key(name, Load.at(size), number), record)


def all_saying(record: TrialRecord, text: str) -> TrialRecord:
    return replace(record, requests=tuple(replace(one, text=text) for one in record.requests))


def told(job: Recorder) -> Told:
    assert isinstance(job.observer, Told)
    return job.observer


def test_a_variant_that_was_timed_writing_nothing_is_excluded_everywhere(start: Start) -> None:
    with start() as job:
        keep_trials(job, "fp16")
        keep_trials(job, "other", MARKS)
        decision = conclude(job.store, job.observer)
        warned = told(job).warned
    reasons = {item.variant: item.reason for item in decision.excluded if item.load}
    assert reasons["other"].startswith("its timed answers are degenerate text: 64 of 64")
    assert "degenerate" not in reasons["fp16"], "ordinary words are an answer"
    assert [line.partition(":")[0] for line in warned if "degenerate" in line] == ["other"]
    run = Run.read(job.store.root)
    record = run.degenerate["other"]
    assert record.verdict == "fail"
    assert decide_over([run]) == decision, "a store that is only read says the same"


def test_every_variant_that_was_measured_gets_its_command(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, statuses = conclude_module._decide, {"fp16": "qualifies", "other": "excluded"}

    def decide_as_planned(runs: Any) -> Decision:
        made = real(runs)
        cells = tuple(replace(cell, status=statuses[cell.variant]) for cell in made.cells)
        return replace(made, cells=cells)

    monkeypatch.setattr(conclude_module, "_decide", decide_as_planned)
    with start() as job:
        for name in statuses:
            keep_trials(job, name)
        again = job.store.path("reproduce")
        (again / "stale").mkdir(parents=True)
        conclude(job.store, job.observer)
        assert not job.store.path("deploy").exists(), "whet deploy alone writes bundles"
        assert {path.name for path in again.iterdir()} == set(statuses)
        notes = {p.parent.name: p.read_text() for p in again.glob("*/*") if p.suffix != ".sh"}
        assert notes["fp16"].startswith(("# As measured.", "As measured."))


def test_the_reference_is_the_baseline_with_the_cache_whatever_its_pool(start: Start) -> None:
    room = {"kv_cache_memory_bytes": 1 << 30}
    variants = {
        "fp16": {},
        "seqs": {"prefix_cache": True, "args": {"max_num_seqs": 3}},
        "usual": {"prefix_cache": True, "args": room},
    }
    with start(variants=variants) as job:
        assert reference_of(Run(job.store)) == "usual"
