"""``whet run --budget`` on the scripted engine: what is measured, left out, resumed and refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.stage import FakeEngine, tiny_spec
from whet.core.errors import UsageError
from whet.core.protocols import Silent
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.core.spec import ObjectiveSpec, Spec
from whet.core.store import RunStore
from whet.flow.run.options import RunOptions
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder
from whet.load import run_trial
from whet.report.run.files import write_reports

VARIANTS: dict[str, Any] = {
    "fp16": {},
    **{f"cached{n}": {"prefix_cache": True, "args": {"max_num_seqs": n}} for n in (8, 16, 32)},
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def markdown(root: Path) -> str:
    """The report of a run."""
    write_reports(Run.read(root), root)
    return (root / "report.md").read_text()


def spec(folder: Path, variants: dict[str, Any] = VARIANTS, **change: Any) -> Spec:
    load = {
        "order": "blocks",
        "concurrency": [1, 2, 4],
        "trials": 1,
        "confirm": False,
        "min_requests": 4,
        "requests_per_slot": 2,
        "warmup_requests": 2,
    }
    return tiny_spec(folder, variants=variants, load=load | change)


def ran(
    engine: FakeEngine, spec: Spec, root: Path, budget_s: float, *, resume: bool = False
) -> Run:
    with RunStore.open(root, resume=resume) as store:
        run(spec, Recorder(store=store, observer=Silent()), budget_s=budget_s, engines=engine)
    return Run.read(root)


def test_a_small_budget_measures_the_baseline_and_predicts_the_others(
    engine: FakeEngine, tmp_path: Path
) -> None:
    result = ran(engine, spec(tmp_path), tmp_path / "run", 0.01)
    assert engine.started == ["fp16"]
    assert result.predicted["fp16"].measured
    left_out = [name for name, each in result.predicted.items() if not each.measured]
    assert left_out == ["cached8", "cached16", "cached32"]
    assert all(len(result.predicted[name].cells) == 3 for name in left_out)
    assert result.predicted["cached8"].reason == "the budget is spent"
    assert not result.missing


def test_a_large_budget_measures_others_and_a_resume_starts_nothing(
    engine: FakeEngine, tmp_path: Path
) -> None:
    first = ran(engine, spec(tmp_path), tmp_path / "run", 3600.0)
    started = list(engine.started)
    assert len(started) > 1
    assert first.decision is not None
    again = ran(engine, spec(tmp_path), tmp_path / "run", 3600.0, resume=True)
    assert engine.started == started
    assert again.predicted == first.predicted


def test_a_variant_that_does_not_start_is_left_and_the_others_go_on(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.refuses = {"cached8"}
    result = ran(engine, spec(tmp_path), tmp_path / "run", 3600.0)
    assert result.decision is not None
    failed = [cell for cell in result.cells if cell.variant == "cached8"]
    assert failed == [] or failed[0].status == "failed"


def test_answers_that_a_stop_left_unchecked_are_checked_by_the_resume(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("whet.flow.run.measure.session.measure_variant_quality", stopped)
        with pytest.raises(KeyboardInterrupt):
            ran(engine, spec(tmp_path), tmp_path / "run", 0.01)
    assert "fp16" not in Run.read(tmp_path / "run").quality
    result = ran(engine, spec(tmp_path), tmp_path / "run", 0.01, resume=True)
    assert "fp16" in result.quality
    assert engine.started == ["fp16", "fp16"]


@dataclass
class Disturbed:
    """Trials whose client leaves late in the first so many attempts, by variant."""

    attempts: dict[str, int]
    slow: frozenset[str] = frozenset()
    seen: Counter[str] = field(default_factory=Counter)

    def run_trial(self, *args: Any, **kwargs: Any) -> TrialRecord:
        record = run_trial(*args, **kwargs)
        self.seen[record.variant] += 1
        if record.variant in self.slow:
            events = tuple(replace(e, output_tokens=1) for e in record.requests)
            record = replace(record, requests=events)
        if self.seen[record.variant] > self.attempts.get(record.variant, 0):
            return record
        health = replace(record.health, valid=False, reason="requests left 12 ms late")
        return replace(record, health=health)


def disturb(monkeypatch: pytest.MonkeyPatch, **change: Any) -> Disturbed:
    made = Disturbed(**change)
    monkeypatch.setattr("whet.flow.serving.run_trial", made.run_trial)
    return made


ONE_LOAD = {"concurrency": [2]}


def test_an_invalid_trial_is_repeated_on_a_fresh_start(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb(monkeypatch, attempts={"fp16": 1})
    result = ran(engine, spec(tmp_path, **ONE_LOAD), tmp_path / "run", 0.01)
    assert engine.started == ["fp16", "fp16"]
    (trial,) = result.trials
    assert (trial.health.valid, trial.start) == (True, 1)
    assert result.cells[0].status == "complete"


def test_repeats_end_and_the_report_names_what_stays_invalid(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = frozenset({"fp16", "cached16", "cached32"})
    disturb(monkeypatch, attempts={"cached8": 99}, slow=dear)
    result = ran(engine, spec(tmp_path, **ONE_LOAD), tmp_path / "run", 3600.0)
    assert engine.started.count("cached8") == 3
    assert result.decision is not None
    line = "cached8 at concurrency 2 does not count, its trial is invalid: requests left 12 ms late"
    assert line in markdown(tmp_path / "run")


def test_an_invalid_trial_of_a_cell_that_cannot_win_is_not_repeated(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb(monkeypatch, attempts={"cached8": 99}, slow=frozenset({"cached8"}))
    ran(engine, spec(tmp_path, **ONE_LOAD), tmp_path / "run", 3600.0)
    assert engine.started.count("cached8") == 1


@dataclass
class Noted(Silent):
    """An observer that remembers what it was told."""

    notes: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.mark.parametrize("limit_ms", [None, 1e-6])
def test_a_load_whose_first_wave_misses_its_limit_does_not_meet_the_objective(
    engine: FakeEngine, tmp_path: Path, limit_ms: float | None
) -> None:
    objective = {"ttft_ms": [1e9], "recommend_ttft_ms": 1e9, "burst_ttft_ms": limit_ms}
    whole = spec(tmp_path, {"fp16": {}}, concurrency=[1, 2])
    whole = whole.model_copy(update={"objective": ObjectiveSpec.model_validate(objective)})
    noted = Noted()
    with RunStore.open(tmp_path / "run") as store:
        run(whole, Recorder(store=store, observer=noted), budget_s=60.0, engines=engine)
    missed = any("nothing that meets the objective" in note for note in noted.notes)
    assert missed == (limit_ms is not None)


def test_rates_are_not_searched(engine: FakeEngine, tmp_path: Path) -> None:
    load = {"order": "blocks", "rates": [1.0], "trials": 1, "seconds": 2, "min_requests": 1}
    with pytest.raises(UsageError, match="--budget searches concurrencies"):
        ran(engine, tiny_spec(tmp_path, load=load), tmp_path / "run", 60.0)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert RunOptions(budget=text).budget_s == seconds


@pytest.mark.parametrize("text", ["30", "soon", "0m", "-1h"])
def test_a_budget_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write a time such as 90s, 30m or 2h"):
        _ = RunOptions(budget=text).budget_s


def test_two_engines_share_the_requests(engine: FakeEngine, tmp_path: Path) -> None:
    one = {"prefix_cache": True}
    two = one | {"layout": {"replicas": 2}}
    variants = {"fp16": {}, "one": one, "two": two}
    result = ran(engine, spec(tmp_path, variants), tmp_path / "run", 0.01)
    single, both = (
        {cell.load.slots: cell for cell in result.predicted[name].cells} for name in ("one", "two")
    )
    alone = single[1].cost_per_1m_tokens
    assert both[1].cost_per_1m_tokens == pytest.approx(alone, rel=0.01)  # the other one is idle
    assert both[2].cost_per_1m_tokens == pytest.approx(alone / 2, rel=0.01)
    assert both[4].tpot_ms == pytest.approx(single[2].tpot_ms, rel=0.01)
