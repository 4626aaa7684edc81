"""A run with ``search:`` on the scripted engine: what is tried, resumed, left out and recorded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.rounds_stage import Bench, build_bench, story
from tests.flow.stage import FakeEngine, tiny_spec
from tests.run_copy import replace as copied
from whet.core.errors import UsageError
from whet.core.protocols import Silent
from whet.core.records.load import TrialRecord
from whet.core.records.quality_checks import GateVerdict
from whet.core.records.search import Standing
from whet.core.records.summary import CellSummary
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.flow.run.conclude.conclude import decide_over
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder
from whet.flow.run.search.explore import Candidate
from whet.flow.run.search.grid import Waves
from whet.flow.run.search.search import Search
from whet.load import run_trial
from whet.quality import Measured, QualityPlan, measure_quality

FAST = {"int4": 3, "int8": 2}
"""Output tokens of each answer count so many times, by what a variant's name begins with."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    speed_up(monkeypatch, FAST)
    return FakeEngine()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = build_bench(monkeypatch)
    made.passes = True
    return made


def speed_up(monkeypatch: pytest.MonkeyPatch, speeds: Mapping[str, int]) -> None:
    """Let variants write more tokens in the same time."""

    def trial(*args: Any, **kwargs: Any) -> TrialRecord:
        record = run_trial(*args, **kwargs)
        factor = speeds.get(record.variant.partition("+")[0], 1)
        events = tuple(
            replace(event, output_tokens=(event.output_tokens or 0) * factor)
            for event in record.requests
        )
        return replace(record, requests=events)

    monkeypatch.setattr("whet.flow.serving.run_trial", trial)


@dataclass
class Noted(Silent):
    """An observer that remembers what it was told."""

    notes: list[str] = field(default_factory=list)
    cells: list[tuple[str, str]] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)

    warn = note

    def cell(self, cell: CellSummary, standing: str) -> None:
        self.cells.append((cell.variant, standing))


def spec(folder: Path, search: dict[str, Any] | None = None, **change: Any) -> Spec:
    rounded = {"source": str(folder / "heldout.jsonl"), "samples": 4}
    data: dict[str, Any] = {
        "engine": {"name": "vllm", "args": {"max_model_len": 512}},
        "evidence": {"accept_unproved": ["prefix_cache", "settings", "speculation", "weights"]},
        "recipes": {
            "int4": {"method": "rtn", "calibration": rounded},
            "int8": {"method": "rtn", "scheme": "W8A8", "calibration": rounded},
        },
        "load": {
            "concurrency": [1, 2, 4],
            "confirm": False,
            "min_requests": 4,
            "requests_per_slot": 2,
            "warmup_requests": 2,
        },
        "objective": {"ttft_ms": [1e6], "recommend_ttft_ms": 1e6},
        "variants": {},
    }
    return tiny_spec(folder, **data | change, search={"time": "1h"} if search is None else search)


def ran(engine: FakeEngine, spec: Spec, root: Path, *, resume: bool = False) -> tuple[Run, Noted]:
    noted = Noted()
    with RunStore.open(root, resume=resume) as store:
        run(spec, Recorder(store=store, observer=noted), engines=engine)
    return Run.read(root), noted


def test_it_goes_from_the_default_to_the_cheapest(engine: FakeEngine, tmp_path: Path) -> None:
    result, noted = ran(engine, spec(tmp_path), tmp_path / "run")
    assert engine.started[0] == "default"
    assert set(engine.started) == set(result.tried) == {"default", "int8", "int4"}
    assert {name: each.standing for name, each in result.tried.items()} == {
        "default": "start",
        "int8": "adopted",
        "int4": "adopted",
    }
    assert next(cell for cell in noted.cells if not cell[1])[0] == "default"
    assert ("int4", "adopted") in noted.cells
    assert result.search is not None
    assert result.search.stopped == "nothing better is expected"
    assert result.search.chosen == "int4"
    (worth,) = result.search.worth
    assert (worth.change, worth.without) == ("weights=int4", "default")
    assert worth.ratio == pytest.approx(3, rel=0.3)
    reasons = dict(result.search.not_tried)
    assert reasons["fp8"] == "for GPUs"
    assert not result.missing


def test_a_resume_starts_nothing_that_is_stored(engine: FakeEngine, tmp_path: Path) -> None:
    first, _ = ran(engine, spec(tmp_path), tmp_path / "run")
    started, tried, search = list(engine.started), first.tried, first.search  # read before
    again, _ = ran(engine, spec(tmp_path), tmp_path / "run", resume=True)
    assert engine.started == started
    assert again.tried == tried
    assert again.search is not None
    assert search is not None
    assert again.search.elapsed_s >= search.elapsed_s
    assert again.search.first_cell_s == search.first_cell_s
    assert dict(again.search.spent)["measuring"] >= dict(search.spent)["measuring"] > 0


def test_the_parts_of_the_time_add_up(engine: FakeEngine, tmp_path: Path) -> None:
    """Quantizing before a wave and the last check of answers count as what they are."""
    made = Search._make
    checked = Search._check_leader

    def slow_make(self: Search, names: Any) -> Any:
        time.sleep(0.5 if names else 0.0)
        return made(self, names)

    def slow_check(self: Search) -> None:
        time.sleep(0.7)
        checked(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "_make", slow_make)
        patch.setattr(Search, "_check_leader", slow_check)
        result, _ = ran(engine, spec(tmp_path), tmp_path / "run")
    assert result.search is not None
    spent = dict(result.search.spent)
    assert set(spent) == {"starts", "measuring", "quantizing", "answers", "confirmation"}
    assert spent["answers"] >= 0.7
    assert spent["quantizing"] + spent["starts"] >= 0.5
    assert sum(spent.values()) <= result.search.elapsed_s
    for each in result.tried.values():
        assert each.cell is not None
        assert each.cell.cost_per_1m_tokens is not None
        assert each.usd == each.cell.cost_per_1m_tokens.value


def test_a_search_that_was_killed_goes_on(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("whet.flow.run.search.search.Search._propose", stop)
        with pytest.raises(KeyboardInterrupt):
            ran(engine, spec(tmp_path), tmp_path / "run")
    assert engine.started == ["default"]
    result, _ = ran(engine, spec(tmp_path), tmp_path / "run", resume=True)
    assert engine.started.count("default") == 1
    assert set(result.tried) == {"default", "int8", "int4"}


def test_a_server_that_does_not_start_is_left(engine: FakeEngine, tmp_path: Path) -> None:
    engine.refuses = {"int4"}
    result, _ = ran(engine, spec(tmp_path), tmp_path / "run")
    assert result.tried["int4"].standing == "failed"
    assert result.decision is not None


def test_never_and_always_steer(engine: FakeEngine, tmp_path: Path) -> None:
    steer = {"time": "1h", "never": ["4-bit weights"], "always": ["int8"]}
    result, _ = ran(engine, spec(tmp_path, steer), tmp_path / "run")
    assert set(result.tried) == {"default", "int8"}
    assert result.search is not None
    assert ("int4", "search.never names it") in result.search.not_tried


def test_a_move_that_there_is_not_is_refused(engine: FakeEngine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"search.never: 'int44' is not a move; did you mean"):
        ran(engine, spec(tmp_path, {"never": ["int44"]}), tmp_path / "run")


def test_too_little_time_is_refused(engine: FakeEngine, tmp_path: Path) -> None:
    says = "search.time is 1 min 00 s, and 6 server starts"
    with pytest.raises(UsageError, match=says) as error:
        ran(engine, spec(tmp_path, {"time": "60s"}), tmp_path / "run")
    assert error.value.fix == "give it more time"
    assert engine.started == []


def test_configurations_are_judged_at_the_rates_that_each_was_found_to_take(
    bench: Bench, tmp_path: Path
) -> None:
    """``int8`` and ``int4`` take 12 requests in two seconds, the default 6."""
    bench.capacity = {"default": 6, "int8": 12, "int4": 12}
    load = {
        "find": "max_rate",
        "demand_rps": 2.0,
        "seconds": 2,
        "min_requests": 2,
        "confirm": False,
    }
    limits = {"ttft_ms": [1000], "recommend_ttft_ms": 1000}
    story(bench, spec(tmp_path, load=load, objective=limits), tmp_path / "run")
    result = Run.read(tmp_path / "run")
    assert result.tried["default"].standing == "start"
    assert {cell.variant for cell in result.cells} == set(result.tried)
    first = {name: each.tried[0].rate.value for name, each in result.rate_searches.items()}
    highest = result.rate_searches["default"].points[-1].value
    assert first["default"] == 2.0, "the demand"
    assert first["int8"] == first["int4"] == highest
    assert result.decision is not None
    assert result.decision.recommendation is not None


@pytest.mark.parametrize(
    ("standing", "kind", "why"),
    [
        ("worse", "no better than its base", "its cost was worse than default's in the search"),
        ("not separated", "no better than its base", "its cost was not separated from default's"),
        ("misses", "misses its limits", "it missed a limit at each load in the search"),
        ("adopted", "answers not checked", "its answers were not checked"),
    ],
)
def test_what_the_search_dropped_says_why_its_answers_were_not_checked(
    engine: FakeEngine, tmp_path: Path, standing: Standing, kind: str, why: str
) -> None:
    result, _ = ran(engine, spec(tmp_path), tmp_path / "run")
    dropped = {**result.tried, "int8": replace(result.tried["int8"], standing=standing)}
    checked = {name: each for name, each in result.quality.items() if name != "int8"}
    decision = decide_over([copied(result, tried=dropped, quality=checked)])
    [said] = [each for each in decision.excluded if each.variant == "int8"]
    assert said.kind == kind
    assert said.reason.startswith(why)
    assert said.reason.endswith("answers were not checked")
    labels = {each.label for each in decision.cells if each.variant == "int8"}
    assert labels == {f"excluded: {kind}"}


def test_when_the_time_is_spent_there_is_an_answer(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.flow.run.search.search.Search.reserve_s", 1e9)
    result, noted = ran(engine, spec(tmp_path, {"time": "4m"}), tmp_path / "run")
    assert result.search is not None
    assert result.search.stopped == "the rest of the time is for the confirmation"
    assert any("search.time is too short" in note for note in noted.notes)
    assert result.decision is not None


def test_four_starts_of_each_finalist_are_reserved_where_that_leaves_most_of_the_time(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: list[float] = []
    propose = Search._propose

    def noted(self: Search, waves: Waves) -> list[Candidate]:
        self.each_s = 20.0
        reserved.append(self.reserve_s)
        return propose(self, waves)

    monkeypatch.setattr(Search, "_propose", noted)
    for whole in ("4m", "60m"):
        ran(engine, spec(tmp_path / whole, {"time": whole}), tmp_path / whole / "run")
    assert reserved[-1] == pytest.approx(2 * reserved[0], rel=0.01)


def test_weights_whose_answers_are_wrong_end_their_family(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(url: str, model: str, plan: QualityPlan, **options: Any) -> Measured:
        done = measure_quality(url, model, plan, **options)
        word: GateVerdict = "fail" if plan.variant.startswith("int4") else "pass"
        verdicts = tuple((tolerance, word) for tolerance in (0.01, 0.02, 0.05))
        return replace(done, record=replace(done.record, verdicts=verdicts))

    monkeypatch.setattr("whet.flow.run.measure.quality.measure_quality", measured)
    result, _ = ran(engine, spec(tmp_path), tmp_path / "run")
    assert result.tried["int4"].standing == "wrong answers"
    assert result.decision is not None
    assert result.decision.recommendation is not None
    assert result.decision.recommendation.variant == "int8"


def test_listed_variants_are_where_it_begins(engine: FakeEngine, tmp_path: Path) -> None:
    listed = {"mine": {"prefix_cache": True, "args": {"max_num_seqs": 8}}}
    whole = spec(tmp_path, variants=listed, reference="mine")
    result, _ = ran(engine, whole, tmp_path / "run")
    assert engine.started[:2] == ["default", "mine"]
    assert result.decision is not None
    assert result.require_spec().reference == "mine"
