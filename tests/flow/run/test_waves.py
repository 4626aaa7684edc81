"""Waves of a search: what overlaps, what is measured alone, what is lost and what is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.crowd import WAIT_S, Crowd, Desk, Ear
from tests.flow.rounds_stage import build_bench, spec_of
from tests.flow.run.test_traced import mooncake
from tests.flow.stage import recorder
from whet.core.load import Load
from whet.core.records.load import RateSearch, TrialRecord
from whet.core.records.summary import CellSummary
from whet.core.run import Run
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.measure.rounds import Executor, Measurer, Rounds
from whet.flow.run.plan import Engines, Plan, Recorder, Wave, cells_of
from whet.flow.run.search.grid import Waves
from whet.load import TrialInterrupted, TrialPlan
from whet.quality import Measured, QualityPlan

VARIANTS: dict[str, Any] = {"fp16": {}, "b": {}, "c": {"prefix_cache": True}, "d": {}}


@dataclass
class Cells(Ear):
    """Keeps the cells that are said, too."""

    cells: list[tuple[str, float, str]] = field(default_factory=list)

    def cell(self, cell: CellSummary, standing: str) -> None:
        self._hear("cell")
        self.cells.append((cell.variant, cell.load.value, standing))


@dataclass
class Stage(Desk):
    """A desk that notes checks of answers among starts and trials, and spoils trials.

    ``spoiled`` are how many of a variant's trials come back invalid; a check waits for ``go``.
    """

    spoiled: dict[str, int] = field(default_factory=dict)
    go: threading.Event | None = None

    def run_trial(self, url: str, model: str, *, plan: TrialPlan, **asked: Any) -> TrialRecord:
        record = super().run_trial(url, model, plan=plan, **asked)
        if self.spoiled.get(plan.variant, 0) > 0:
            self.spoiled[plan.variant] -= 1
            return replace(record, health=replace(record.health, valid=False, reason="late"))
        return record

    def measure_quality(self, url: str, model: str, plan: QualityPlan, **asked: Any) -> Measured:
        assert threading.current_thread() is not threading.main_thread()
        if self.go is not None:
            assert self.go.wait(WAIT_S)
        assert plan.variant in self.crowd.up, "it is asked while it is up"
        self.crowd.events.append(("check", plan.variant))
        return self.bench.measure_quality(url, model, plan, **asked)

    @property
    def kinds(self) -> list[str]:
        return [f"{kind} {name}" for kind, name in self.crowd.events]


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Stage:
    crowd = Crowd()
    bench = build_bench(monkeypatch)
    bench.engine = crowd
    made = Stage(bench=bench, crowd=crowd, ear=Cells())
    monkeypatch.setattr("whet.flow.serving.run_trial", made.run_trial)
    monkeypatch.setattr("whet.flow.run.measure.quality.measure_quality", made.measure_quality)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2))
    return made


@dataclass
class Search:
    """An open search on a desk."""

    plan: Plan
    store: RunStore
    waves: Waves

    def wave(self, *names: str, check: set[str] | None = None, **given: Any) -> None:
        self.waves.measure(self.plan, self.of(*names, check=check or set()), **given)

    def of(self, *names: str, check: set[str], rate: Load | None = None) -> Wave:
        by_name = {item.variant.name: item for item in self.plan.resolved}
        cells = tuple(cells_of(self.plan.spec.load.points, range(self.plan.spec.load.trials)))
        servers = tuple((by_name[name], cells) for name in names)
        return Wave(servers=servers, check=lambda: check, rate=rate)


@contextmanager
def searching(
    desk: Stage,
    folder: Path,
    *,
    resume: bool = False,
    load: dict[str, Any] | None = None,
    executor: Executor | None = None,
) -> Iterator[Search]:
    small = {"order": "blocks", "trials": 1, "min_requests": 2, "warmup_requests": 2}
    load = {"concurrency": [1, 2], "requests_per_slot": 1} if load is None else load
    pool = {"env": {"VLLM_CPU_KVCACHE_SPACE": "1"}, "args": {"max_model_len": 512}}
    spec = spec_of(folder, variants=VARIANTS, load=small | load, engine={"name": "fake", **pool})
    with RunStore.open(folder / "run", resume=resume) as store:
        record = recorder(store, desk.ear)
        plan = prepare(spec, record, desk.crowd, skip_infeasible=False)
        executor = executor or Executor()
        measurer = Measurer(recorder=record, engines=desk.crowd, executor=executor)
        with measurer.open_waves() as waves:
            yield Search(plan=plan, store=store, waves=waves)


def test_answers_are_checked_while_the_next_wave_starts_and_before_it_is_timed(
    desk: Stage, tmp_path: Path
) -> None:
    desk.go = threading.Event()
    with searching(desk, tmp_path) as search:
        search.wave("fp16", "b", check={"fp16"})
        assert desk.crowd.up == {"fp16"}, "the other one has ended"
        desk.crowd.meet = threading.Barrier(2, action=desk.go.set)
        search.wave("c", "d", check={"d"})
    begun, check = desk.crowd.started.index("c"), desk.kinds.index("check fp16")
    assert begun == 2
    assert desk.kinds.index("trial c") > desk.kinds.index("down fp16") > check
    assert desk.kinds.index("check d") < desk.kinds.index("down d"), "at the end of the search"
    assert desk.kinds[-1] == "down d"
    assert [kind for kind in desk.kinds if kind.startswith("trial")] == [
        *["trial fp16"] * 2,
        *["trial b"] * 2,
        *["trial c"] * 2,
        *["trial d"] * 2,
    ]
    assert [name for name, _ in desk.bench.judged] == ["fp16", "d"]
    assert not desk.crowd.up


def test_each_cell_is_stored_and_said_as_it_is_measured_from_the_calling_thread(
    desk: Stage, tmp_path: Path
) -> None:
    with searching(desk, tmp_path) as search:
        search.wave("fp16", "b", check={"fp16", "b"})
        assert desk.ear.cells == [  # type: ignore[attr-defined]
            (name, size, "") for name in ("fp16", "b") for size in (2, 1)
        ]
        assert {cell.status for cell in Run(search.store).cells} == {"complete"}
    assert desk.ear.strangers == []


def test_quantizing_runs_in_the_calling_thread_as_servers_start(
    desk: Stage, tmp_path: Path
) -> None:
    quantized = threading.Event()
    desk.crowd.meet = threading.Barrier(2, action=lambda: quantized.wait(WAIT_S))

    def quantize() -> None:
        assert threading.current_thread() is threading.main_thread()
        assert desk.crowd.events == []
        quantized.set()

    with searching(desk, tmp_path) as search:
        search.wave("fp16", "b", meanwhile=quantize)
        assert set(search.waves.spent) == {"starts", "measuring", "quantizing", "answers"}
        calls: list[int] = []
        search.wave("fp16", "b", meanwhile=lambda: calls.append(1))
        assert calls == [1], "also where nothing is left to measure"


def test_what_is_stored_is_not_measured_again(desk: Stage, tmp_path: Path) -> None:
    with searching(desk, tmp_path) as search:
        search.wave("fp16", "b", check={"b"})
    with searching(desk, tmp_path, resume=True) as search:
        search.wave("fp16", "b", check={"b"})
        assert desk.crowd.started == ["fp16", "b"]
        search.wave("b", check={"b"})
    assert len(desk.bench.judged) == 1


def test_answers_that_a_stop_left_unchecked_are_checked_by_the_resume(
    desk: Stage, tmp_path: Path
) -> None:
    with searching(desk, tmp_path) as search:
        search.wave("fp16")
    desk.crowd.events.clear()
    with searching(desk, tmp_path, resume=True) as search:
        search.wave("fp16", check={"fp16"})
    assert desk.kinds == ["up fp16", "check fp16", "down fp16"]


def give_memory(monkeypatch: pytest.MonkeyPatch, gib: int) -> None:
    monkeypatch.setattr("whet.flow.run.measure.waves.free_bytes", lambda _plan: gib * 2**30)


def test_no_more_servers_start_together_than_the_cores_allow(
    desk: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_memory(monkeypatch, 64)
    with searching(desk, tmp_path) as search:
        assert search.waves.width(search.plan, search.plan.resolved) == 2
        search.wave("fp16", "b", "c")
    assert desk.kinds.index("down b") < desk.kinds.index("up c")


@pytest.mark.parametrize("gib", [1, 5])
def test_where_one_server_fits_the_next_one_waits_for_the_checks_of_the_last(
    desk: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: int
) -> None:
    give_memory(monkeypatch, gib)  # a server takes 3 GiB
    with searching(desk, tmp_path) as search:
        assert search.waves.width(search.plan, search.plan.resolved) == 1
        search.wave("fp16", "b", "c", check={"fp16", "b", "c"})
    assert [each for each in desk.kinds if not each.startswith("trial")] == [
        f"{kind} {name}" for name in ("fp16", "b", "c") for kind in ("up", "check", "down")
    ]


def test_a_server_that_is_lost_next_to_others_is_started_once_more_and_alone(
    desk: Stage, tmp_path: Path
) -> None:
    desk.crowd.refused = {("b", 0)}
    desk.crowd.looks = {"fp16": 0}
    with searching(desk, tmp_path) as search:
        search.wave("fp16", "b", check={"b"})
    assert desk.crowd.started[2:] == ["fp16", "b"]
    assert desk.kinds.index("down fp16") < desk.kinds.index("up b")
    store = RunStore.read(tmp_path / "run")
    assert store.status("starts", "b") == store.status("starts", "fp16") == "complete"
    assert {cell.status for cell in Run(store).cells} == {"complete"}


def test_a_server_that_never_starts_is_journalled_and_the_others_go_on(
    desk: Stage, tmp_path: Path
) -> None:
    desk.crowd.refused = {("b", 0), ("b", 1), ("b", 2)}
    with searching(desk, tmp_path) as search:
        search.wave("fp16", "b", check={"b"})
        search.wave("b")
    assert desk.crowd.started.count("b") == 3, "alone after the first wave, once in the second"
    store = RunStore.read(tmp_path / "run")
    assert "CUDA out of memory" in str(store.reason("starts", "b"))
    status = {cell.variant: cell.status for cell in Run(store).cells}
    assert status == {"fp16": "complete", "b": "failed"}


def test_an_invalid_trial_is_repeated_on_a_fresh_start_if_it_is_worth_it(
    desk: Stage, tmp_path: Path
) -> None:
    desk.spoiled = {"fp16": 1, "b": 9}
    asked: list[str] = []

    def worth(trial: TrialRecord) -> bool:
        asked.append(trial.variant)
        return trial.variant != "b"

    with searching(desk, tmp_path) as search:
        search.wave("fp16", "b", worth_repeating=worth)
        assert desk.crowd.started == ["fp16", "b", "fp16"]
        search.wave("fp16", "b", worth_repeating=worth)
    assert desk.crowd.started == ["fp16", "b", "fp16"], "a replay repeats nothing either"
    assert set(asked) == {"fp16", "b"}


def test_repeats_end(desk: Stage, tmp_path: Path) -> None:
    desk.spoiled = {"fp16": 99}
    with searching(desk, tmp_path) as search:
        search.wave("fp16")
    assert desk.crowd.started == ["fp16"] * 3


def test_an_interrupt_keeps_what_was_measured_and_leaves_no_server(
    desk: Stage, tmp_path: Path
) -> None:
    desk.bench.stop_at = 4
    with pytest.raises(TrialInterrupted), searching(desk, tmp_path) as search:
        search.wave("fp16", "b", check={"fp16"})
    assert not desk.crowd.up
    assert not [t for t in threading.enumerate() if t.name.startswith("whet-")]
    cells = Run.read(tmp_path / "run").cells
    assert [(c.variant, c.load.slots) for c in cells] == [("fp16", 1), ("fp16", 2), ("b", 2)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("the disk is gone")])
def test_what_ends_quantizing_ends_the_servers_on_their_way(
    desk: Stage, tmp_path: Path, error: BaseException
) -> None:
    desk.crowd.hanging = {"b"}

    def fail() -> None:
        raise error

    with pytest.raises(type(error)), searching(desk, tmp_path) as search:
        search.wave("fp16", "b", meanwhile=fail)
    assert not desk.crowd.up
    assert ("gave up", "b") in desk.crowd.events


FIND = {"find": "max_rate", "demand_rps": 8.0, "seconds": 4, "min_requests": 4}


def test_the_highest_rate_is_searched_and_measured_on_one_start(
    desk: Stage, tmp_path: Path
) -> None:
    desk.bench.capacity = dict.fromkeys(VARIANTS, 16.0)  # requests in 4 seconds
    prompts: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    note = desk.bench.run_trial

    def run_trial(*given: Any, plan: TrialPlan, **asked: Any) -> TrialRecord:
        sent = prompts.setdefault((str(plan.load), len(desk.bench.plans)), set())
        sent |= {each.prompt_token_ids for each in plan.workload.requests}
        return note(*given, plan=plan, **asked)

    desk.bench.run_trial = run_trial  # type: ignore[method-assign]
    with searching(desk, tmp_path, load=FIND) as search:
        search.wave("fp16")
        found = search.store.get("rates", "fp16", RateSearch)
        assert found is not None
        highest = found.points[-1]
        said = desk.ear.said
        announced = said.index("rates: fp16, the highest that meets the limits")
        assert announced > said.index("starting")
        [met] = [each.ttft_p95_ms for each in found.tried if each.rate == highest]
        words = f"fp16 at {highest} meets the limits: {met:,.0f} ms to the first token at p95"
        assert words in said
        assert sum(line.startswith("fp16 at ") for line in said[announced:]) == len(found.tried)
        wave = search.of("b", check=set(), rate=highest)
        search.waves.measure(search.plan, wave)
        warm = search.store.get("rates", "b", RateSearch)
        assert warm is not None
        assert warm.tried[0].rate == highest
        assert len(warm.tried) == 3 < len(found.tried)
        measured = {cell.load for cell in Run(search.store).cells if cell.variant == "b"}
        assert measured == set(warm.points)
    assert desk.crowd.started == ["fp16", "b"]
    same = [sent for (load, _), sent in prompts.items() if load == str(highest)]
    assert len(same) >= 2
    assert not same[0] & same[1], "no prompt of the search comes again on its start"


def test_each_variant_has_the_points_of_the_log(desk: Stage, tmp_path: Path) -> None:
    log = mooncake(tmp_path)
    with searching(desk, tmp_path, load={"trace": str(log), "seconds": 4}) as search:
        search.wave("fp16", "b")
        for name in ("fp16", "b"):
            stored = search.store.get("rates", name, RateSearch)
            assert stored is not None
            assert Run(search.store).points_of(name) == stored.points != ()
    assert len(desk.bench.plans) == 2


@dataclass
class Elsewhere(Executor):
    """Other devices, which this process stands in for; ``calls`` are the sessions of each."""

    is_local = False
    calls: list[list[tuple[tuple[str, ...], bool, bool]]] = field(default_factory=list)

    def measure(self, plan: Plan, recorder: Recorder, engines: Engines, rounds: Rounds) -> None:
        sessions = [each for part in rounds for each in part]
        assert all(len(part) == 1 for part in rounds), "each has a device of its own"
        self.calls.append([(each.name, each.quality, each.search) for each in sessions])
        super().measure(plan, recorder, engines, rounds)


def test_on_other_devices_a_wave_is_a_round_of_sessions_side_by_side(
    desk: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.flow.run.measure.quality.measure_quality", desk.bench.measure_quality)
    away = Elsewhere()
    with searching(desk, tmp_path, executor=away) as search:
        done: list[str] = []
        search.wave("b", "fp16", "c", check={"fp16", "c"}, meanwhile=lambda: done.append("made"))
        assert done == ["made"]
        assert Run(search.store).quality.keys() == {"fp16", "b", "c"}
        search.wave("b")
    assert away.calls == [
        [("fp16", True, False)],  # its answers are what the others are compared with
        [("b", True, False), ("c", True, False)],  # each is asked on the start that is measured
    ]
    assert len(desk.ear.cells) == 6  # type: ignore[attr-defined]


def test_on_other_devices_rates_are_searched_first(
    desk: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.flow.run.measure.quality.measure_quality", desk.bench.measure_quality)
    desk.bench.capacity = dict.fromkeys(VARIANTS, 16.0)
    away = Elsewhere()
    with searching(desk, tmp_path, load=FIND, executor=away) as search:
        search.wave("fp16", "b")
        points = Run(search.store).points_of("b")
        assert {c.load for c in Run(search.store).cells if c.variant == "b"} == set(points) != set()
    assert [search for _, _, search in away.calls[0]] == [True] * 2


def test_a_listed_run_says_each_cell_when_it_is_measured_and_none_for_its_confirmation(
    desk: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.flow.run.measure.quality.measure_quality", desk.bench.measure_quality)
    desk.bench.passes, desk.bench.speeds = True, {("c", 1): 2.0, ("c", 2): 2.0}
    seen: list[str] = []
    monkeypatch.setattr(
        desk.ear, "cell", lambda cell, standing: seen.append(f"{cell.variant} {cell.load}")
    )
    load = {"order": "blocks", "trials": 2, "concurrency": [1, 2], "min_requests": 2}
    variants = {"fp16": {}, "c": {"prefix_cache": True}}
    accepted = {"accept_unproved": ["weights", "settings", "prefix_cache", "speculation"]}
    spec = spec_of(tmp_path, load=load, variants=variants, evidence=accepted)
    desk.story(spec, tmp_path / "run")
    assert any(trial >= 2 for *_, trial in desk.bench.measured), "the finalists are confirmed"
    assert seen == ["fp16 2", "fp16 1", "c 2", "c 1"]


def test_threads_store_records_at_the_same_time(tmp_path: Path) -> None:
    with RunStore.open(tmp_path / "run") as store:

        def put(kind: str) -> None:
            for number in range(40):
                store.put(kind, str(number), {"n": number})

        threads = [threading.Thread(target=put, args=(kind,)) for kind in ("a", "b", "c")]
        for each in threads:
            each.start()
        while any(each.is_alive() for each in threads):
            store.keys("a")
        lines = (tmp_path / "run" / "journal.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 120
