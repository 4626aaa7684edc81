"""Interleaved rounds: which server starts when, and what a resume takes up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.flow.crowd import Ear
from tests.flow.rounds_stage import (
    BACK,
    FORTH,
    VARIANTS,
    Bench,
    build_bench,
    cells,
    spec_of,
    story,
)
from whet.core.errors import UsageError
from whet.core.load import Load
from whet.core.protocols import Silent
from whet.core.records.decision import Recommendation
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.core.spec import LoadSpec, Spec
from whet.core.store import RunStore
from whet.flow.run.conclude.conclude import reference_of
from whet.flow.run.conclude.results import summarize_run
from whet.load import TrialInterrupted

ACCEPTED: dict[str, Any] = {
    "evidence": {"accept_unproved": ["speculation", "settings", "prefix_cache"]}
}


@dataclass
class Warned(Silent):
    """The warnings of a run."""

    lines: list[str] = field(default_factory=list)

    def warn(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return build_bench(monkeypatch)


def test_every_second_round_runs_backwards(bench: Bench, tmp_path: Path) -> None:
    root = tmp_path / "run"
    story(bench, spec_of(tmp_path), root)
    assert bench.engine.started == [*FORTH, *BACK, *FORTH]
    visits = zip([*FORTH, *BACK, *FORTH], [0] * 3 + [1] * 3 + [2] * 3, strict=True)
    wanted = [(name, size, number) for name, number in visits for size in (2, 1)]
    assert bench.measured == wanted
    assert {cell.status for cell in cells(root).values()} == {"complete"}
    assert set(cells(root)) == {(name, size) for name in VARIANTS for size in (1, 2)}


def test_quality_is_measured_once_on_the_first_visit_the_baseline_before_the_others(
    bench: Bench, tmp_path: Path
) -> None:
    story(bench, spec_of(tmp_path), tmp_path / "run")
    assert bench.judged == [("fp16", False), ("b", True), ("c", True)]


def test_the_traffic_of_a_trial_is_the_same_for_all_and_every_fresh_server_is_warmed(
    bench: Bench, tmp_path: Path
) -> None:
    story(bench, spec_of(tmp_path), tmp_path / "run")
    hashes: dict[tuple[int, int], set[str]] = {}
    for plan in bench.plans:
        sha256 = plan.workload.facts.sha256
        hashes.setdefault((plan.load.slots, plan.trial), set()).add(sha256)
        assert plan.warmup, "each concurrency is new to a server that measures it once"
    assert len(hashes) == 6
    assert all(len(one) == 1 for one in hashes.values())


def test_blocks_are_one_server_a_variant(bench: Bench, tmp_path: Path) -> None:
    story(bench, spec_of(tmp_path, order="blocks", trials=2), tmp_path / "run")
    assert bench.engine.started == FORTH
    assert bench.measured[:4] == [("fp16", 2, 0), ("fp16", 1, 0), ("fp16", 2, 1), ("fp16", 1, 1)]
    assert [bool(plan.warmup) for plan in bench.plans[:4]] == [True, True, False, False]


def test_interleaved_with_two_starts_is_the_default() -> None:
    assert (LoadSpec().order, LoadSpec().trials, LoadSpec().confirm) == ("interleaved", 2, True)


def ratios(root: Path) -> list[float]:
    """Throughput of the others over the reference's, which is c."""
    run = Run.read(root)
    table, reference = summarize_run(run).tables["tps_mean"], reference_of(run)
    pairs = [
        table.difference((reference, load), (name, load), family=0)
        for load in run.loads
        for name in run.variants
        if name != reference
    ]
    return [pair.ratio.value for pair in pairs if pair is not None]


def test_a_linear_drift_falls_on_all_alike(bench: Bench, tmp_path: Path) -> None:
    """Rates fall by a hundredth a start: 0 and 5, 1 and 4, 2 and 3 have one mean."""
    bench.slower = 0.01
    story(bench, spec_of(tmp_path, trials=2), tmp_path / "run")
    assert ratios(tmp_path / "run") == pytest.approx([1.0] * 4, abs=1e-3)


def test_the_same_drift_shifts_blocks(bench: Bench, tmp_path: Path) -> None:
    bench.slower = 0.01
    story(bench, spec_of(tmp_path, order="blocks", trials=2), tmp_path / "run")
    assert sorted(ratios(tmp_path / "run")) == pytest.approx([0.99 / 0.98] * 2 + [1 / 0.98] * 2)


def pair_spec(folder: Path, load: dict[str, Any] | None = None, **change: Any) -> Spec:
    """A default and one variant, d, whose claims count without proof."""
    variants: dict[str, Any] = {"fp16": {}, "d": {"args": {"seed": 1}}}
    small = {"concurrency": [2], "trials": 2, "min_requests": 2} | (load or {})
    return spec_of(folder, **{"variants": variants, "load": small, **ACCEPTED, **change})


def recommended(root: Path) -> Recommendation:
    decision = Run.read(root).decision
    assert decision is not None
    assert decision.recommendation is not None
    return decision.recommendation


def sent_again(bench: Bench) -> set[tuple[str, int, int]]:
    """What was measured after the first two starts of each."""
    return {each for each in bench.measured if each[2] >= 2}


def assert_resume_starts_nothing(bench: Bench, spec: Spec, root: Path) -> None:
    bench.engine.started.clear()
    story(bench, spec, root, resume=True)
    assert bench.engine.started == []


def test_the_cheapest_and_the_default_have_two_fresh_starts_and_fresh_traffic(
    bench: Bench, tmp_path: Path
) -> None:
    """d is cheapest at 2 in flight, by so much that two starts of each show it."""
    bench.passes = True
    bench.speeds = {("b", 2): 1.5, ("d", 2): 2.0, ("e", 2): 1.2}
    root = tmp_path / "run"
    variants: dict[str, Any] = {name: {"args": {"seed": at}} for at, name in enumerate("bde")}
    spec = spec_of(tmp_path, trials=2, variants={"fp16": {}, **variants}, **ACCEPTED)
    story(bench, spec, root)
    assert bench.engine.started[8:] == ["d", "fp16", "fp16", "d"]
    assert sent_again(bench) == {(name, 2, number) for name in ("d", "fp16") for number in (2, 3)}
    shas = {
        (trial.load.slots, trial.trial): trial.workload_sha256
        for trial in RunStore.read(root).all("trials", TrialRecord)
    }
    assert len(set(shas.values())) == len(shas)
    best = recommended(root)
    assert (best.variant, best.measured_again, best.cheaper) == ("d", True, True)
    assert_resume_starts_nothing(bench, spec, root)


def test_where_the_cheapest_misses_a_limit_again_the_next_choice_is_measured(
    bench: Bench, tmp_path: Path
) -> None:
    bench.passes = True
    bench.speeds = {("d", 2): 2.0, ("d", 1): 1.5}
    bench.tired = {("d", 2)}
    root, spec = tmp_path / "run", pair_spec(tmp_path, {"concurrency": [1, 2]})
    ear = Ear()
    story(bench, spec, root, observer=ear)
    why = "d at concurrency 2 was not confirmed: it misses TTFT p95; next: d at concurrency 1 and "
    [at] = [number for number, line in enumerate(ear.said) if line.startswith(why)]
    assert ear.said[at + 1].startswith("serve: ")
    assert {(size, number) for name, size, number in sent_again(bench) if name == "d"} == {
        (2, 2), (2, 3), (1, 12), (1, 13)
    }  # fmt: skip
    best = recommended(root)
    assert (best.variant, best.load, best.measured_again) == ("d", Load.at(1), True)
    assert "d at concurrency 2 was not confirmed: it misses TTFT p95" in best.cautions
    assert_resume_starts_nothing(bench, spec, root)


def test_three_choices_at_most_are_measured_again(bench: Bench, tmp_path: Path) -> None:
    bench.passes = True
    bench.speeds = {(name, 2): 2.0 + at for at, name in enumerate("gfed")}
    bench.tired = set(bench.speeds)
    variants: dict[str, Any] = {name: {"args": {"seed": at}} for at, name in enumerate("defg")}
    root, observer = tmp_path / "run", Warned()
    spec = pair_spec(tmp_path, variants={"fp16": {}, **variants})
    story(bench, spec, root, observer=observer)
    assert {name for name, _, _ in sent_again(bench)} == {"d", "e", "f", "fp16"}
    best = recommended(root)
    assert (best.variant, best.measured_again) == ("g", False)
    [line] = observer.lines
    assert line.startswith("3 choices of the cheapest configuration missed a limit, or failed")
    assert_resume_starts_nothing(bench, spec, root)


def test_where_nothing_is_confirmed_the_exclusions_say_so(bench: Bench, tmp_path: Path) -> None:
    bench.passes = True
    bench.tired = {(name, size) for name in ("fp16", "d") for size in (1, 2)}
    root = tmp_path / "run"
    story(bench, pair_spec(tmp_path, {"concurrency": [1, 2]}), root)
    decision = Run.read(root).decision
    assert decision is not None
    assert decision.recommendation is None
    assert len(decision.excluded) == 4
    for item in decision.excluded:
        assert (item.kind, item.reason) == (
            "not confirmed", "measured again on fresh starts it misses TTFT p95"
        )  # fmt: skip


@pytest.mark.parametrize(
    ("speed", "most", "starts", "shown"),
    [
        pytest.param((1.5, 0.05), 10, 2, True, id="shown at once"),
        pytest.param((1.1, 0.03), 10, 6, True, id="shown in the end"),
        pytest.param((1.02, 0.05), 10, 2, False, id="hopeless at once"),
        pytest.param((1.1, 0.05), 5, 4, False, id="hopeless in the end"),
        pytest.param((1.2, 0.08), 5, 5, False, id="spent"),
    ],
)
def test_fresh_starts_are_added_two_by_two_until_the_difference_is_shown_or_hopeless(
    bench: Bench, tmp_path: Path, speed: tuple[float, float], most: int, starts: int, shown: bool
) -> None:
    """Twice the default's speed is 2; the second number is the standard deviation of a start."""
    bench.passes = True
    bench.speeds, bench.wobble = {("d", 2): speed[0]}, speed[1]
    root, spec = tmp_path / "run", pair_spec(tmp_path, {"max_starts": most})
    story(bench, spec, root)
    assert bench.engine.started[4:] == (["d", "fp16", "fp16", "d"] * most)[: 2 * starts]
    decision = Run.read(root).decision
    assert decision is not None
    [change] = decision.differences
    assert (change.fresh, change.ratio.samples, change.different) == (True, starts, shown)
    assert_resume_starts_nothing(bench, spec, root)


def test_a_resumed_confirmation_measures_what_the_whole_one_would(
    bench: Bench, tmp_path: Path
) -> None:
    bench.passes, bench.wobble = True, 0.03
    bench.speeds = {("d", 2): 1.1}
    root, spec = tmp_path / "run", pair_spec(tmp_path)
    bench.engine.stop_at = 9  # the third fresh round
    with pytest.raises(KeyboardInterrupt):
        story(bench, spec, root)
    bench.engine.stop_at = None
    story(bench, spec, root, resume=True)
    assert bench.engine.started == ["fp16", "d", "d", "fp16", *["d", "fp16", "fp16", "d"] * 3]


def test_nothing_is_confirmed_where_fewer_than_two_variants_qualify(
    bench: Bench, tmp_path: Path
) -> None:
    bench.passes = True
    bench.failing = {("d", 2)}
    root = tmp_path / "run"
    story(bench, pair_spec(tmp_path), root)
    assert bench.engine.started == ["fp16", "d", "d", "fp16"]
    assert not recommended(root).measured_again


@pytest.mark.parametrize("good", [0, 1])
def test_a_finalist_that_does_not_start_again_gives_way(
    bench: Bench, tmp_path: Path, good: int
) -> None:
    """After two starts and ``good`` fresh ones. Its own figures stay stored."""
    bench.passes = True
    bench.speeds = {("d", 2): 2.0}
    bench.engine.refused = {("d", number) for number in range(2 + good, 20)}
    root, observer = tmp_path / "run", Warned()
    story(bench, pair_spec(tmp_path), root, observer=observer)
    assert bench.engine.started[4:] == ["d", "fp16", "fp16", "d"][: 3 + good]
    assert [line[:7] for line in observer.lines] == ["d: CUDA"]
    best = recommended(root)
    assert (best.variant, best.measured_again) == ("fp16", True)
    [why] = [line for line in best.cautions if "not confirmed" in line]
    assert why.startswith("d at concurrency 2 was not confirmed: the cell is failed: the server")
    run = Run.read(root)
    cell, status = run.cell("d", Load.at(2)), run.decided("d", Load.at(2))
    assert cell is not None
    assert cell.tps_mean is not None
    assert status is not None
    assert (status.status, status.detail) == ("excluded", "not confirmed")


def test_a_run_may_leave_the_confirmation_out(bench: Bench, tmp_path: Path) -> None:
    bench.passes = True
    load = {"concurrency": [1], "trials": 2, "min_requests": 2, "confirm": False}
    story(bench, spec_of(tmp_path, load=load), tmp_path / "run")
    assert bench.engine.started == [*FORTH, *BACK]


def test_a_run_stopped_between_visits_goes_on_with_the_next_one(
    bench: Bench, tmp_path: Path
) -> None:
    bench.engine.stop_at = 6
    with pytest.raises(KeyboardInterrupt):
        story(bench, spec_of(tmp_path), tmp_path / "run")
    assert bench.engine.started == [*FORTH, *BACK]
    assert cells(tmp_path / "run")["c", 1].failure == "2 of 3 trials were measured"
    bench.engine.started.clear()
    bench.engine.stop_at = None
    story(bench, spec_of(tmp_path), tmp_path / "run", resume=True)
    assert bench.engine.started == FORTH
    assert len(bench.judged) == 3
    assert {cell.status for cell in cells(tmp_path / "run").values()} == {"complete"}


def test_a_visit_stopped_in_the_middle_is_finished_and_no_trial_measured_twice(
    bench: Bench, tmp_path: Path
) -> None:
    bench.stop_at = 8  # the second trial of c's visit in the second round
    with pytest.raises(TrialInterrupted):
        story(bench, spec_of(tmp_path), tmp_path / "run")
    assert bench.measured[-1] == ("c", 1, 1)
    before = bench.measured[:-1]
    bench.plans.clear()
    bench.engine.started.clear()
    bench.stop_at = None
    story(bench, spec_of(tmp_path), tmp_path / "run", resume=True)
    assert bench.engine.started == ["c", "b", "fp16", *FORTH]
    assert bench.measured[0] == ("c", 1, 1)
    assert not set(before) & set(bench.measured)
    assert len(before) + len(bench.measured) == 3 * 2 * 3


def test_a_resume_starts_a_server_only_for_what_lacks(bench: Bench, tmp_path: Path) -> None:
    spec, root = spec_of(tmp_path), tmp_path / "run"
    story(bench, spec, root)
    bench.engine.started.clear()
    bench.plans.clear()
    story(bench, spec, root, resume=True)
    assert bench.engine.started == []
    with RunStore.open(root, resume=True) as store:
        store.note("trials", "b--b001-t1", status="failed", reason="lost")
        store.note("quality", "c", status="failed", reason="lost")
    story(bench, spec, root, resume=True)
    assert bench.engine.started == ["c", "b"]
    assert bench.measured == [("b", 1, 1)]


def test_a_variant_that_fails_to_start_in_the_second_round_ends_and_the_others_go_on(
    bench: Bench, tmp_path: Path
) -> None:
    bench.engine.refused = {("b", 1)}
    spec, root = spec_of(tmp_path), tmp_path / "run"
    story(bench, spec, root)
    assert bench.engine.started == [*FORTH, *BACK, "fp16", "c"]
    failure = str(cells(root)["b", 2].failure)
    assert failure.startswith("1 of 3 trials were measured; then the server did not start: CUDA")
    assert {cells(root)[name, 1].status for name in ("fp16", "c")} == {"complete"}
    bench.engine.started.clear()
    bench.engine.refused.clear()
    story(bench, spec, root, resume=True)
    assert bench.engine.started == ["b", "b"], "its two rounds that lack, and nothing else"
    assert cells(root)["b", 2].status == "complete"


def test_the_third_death_ends_a_variant_whatever_the_round(bench: Bench, tmp_path: Path) -> None:
    bench.engine.deaths["b"] = 9
    root = tmp_path / "run"
    story(bench, spec_of(tmp_path), root)
    assert bench.engine.started.count("b") == 3
    assert cells(root)["b", 1].status == "failed"
    assert cells(root)["c", 1].status == "complete"


def test_rates_are_open_loops_with_the_same_arrivals_for_all(bench: Bench, tmp_path: Path) -> None:
    load = {"order": "interleaved", "rates": [2.0, 8.0], "trials": 2, "seconds": 2}
    spec = spec_of(tmp_path, load={**load, "min_requests": 2, "warmup_requests": 2})
    story(bench, spec, tmp_path / "run")
    assert {plan.loop for plan in bench.plans} == {"open"}
    assert {len(plan.offsets_ns) for plan in bench.plans} == {4, 16}
    offsets = {(len(plan.offsets_ns), plan.trial): set[tuple[int, ...]]() for plan in bench.plans}
    for plan in bench.plans:
        offsets[len(plan.offsets_ns), plan.trial].add(plan.offsets_ns)
    assert [len(each) for each in offsets.values()] == [1] * 4
    stored = {trial.load for trial in RunStore.read(tmp_path / "run").all("trials", TrialRecord)}
    assert stored == {Load.rate(2.0), Load.rate(8.0)}
    assert set(cells(tmp_path / "run")) == {
        (name, rate) for name in VARIANTS for rate in (2.0, 8.0)
    }


def test_rates_and_concurrency_are_two_kinds_of_load(tmp_path: Path) -> None:
    load = {"rates": [2.0], "concurrency": [1]}
    with pytest.raises(UsageError, match="load has concurrency and rates; give one of them"):
        spec_of(tmp_path, load=load)
    with pytest.raises(UsageError, match=r"needs load\.rates"):
        spec_of(tmp_path, load={"demand_rps": 3})


def test_each_variants_highest_rate_is_searched_and_measured_on_other_starts(
    bench: Bench, tmp_path: Path
) -> None:
    """Trials last 4 s, so that 40 requests are 10 a second."""
    bench.passes = True
    bench.capacity = {"fp16": 40, "b": 100}
    load = {"find": "max_rate", "demand_rps": 45, "seconds": 4, "min_requests": 1, "trials": 2}
    accepted = {"accept_unproved": ["speculation", "settings", "prefix_cache"]}
    variants: dict[str, Any] = {"fp16": {}, "b": {"args": {"seed": 1}}}
    spec = spec_of(tmp_path, load=load, variants=variants, evidence=accepted)
    root = tmp_path / "run"
    story(bench, spec, root)
    assert bench.engine.started[:6] == ["fp16", "b", "fp16", "b", "b", "fp16"]
    run = Run.read(root)
    search = run.rate_searches["fp16"]
    assert [each.rate.value for each in search.tried] == [8, 16, 12, 10, 11]
    assert [point.value for point in search.points] == [8.0, 9.0, 10.0]
    assert run.points_of("b")[-1].value == pytest.approx(25, rel=0.1)
    assert run.decision is not None
    chosen = run.decision.recommendation
    assert chosen is not None
    assert (chosen.variant, chosen.fleet and chosen.fleet.servers) == ("b", 2)
    assert chosen.reference_fleet is not None
    assert chosen.reference_fleet.servers == 5
    bench.engine.started.clear()
    story(bench, spec, root, resume=True)
    assert bench.engine.started == []


def rates_spec(folder: Path) -> Spec:
    """At 8 requests a second one server takes the demand, at 2 it takes four."""
    load = {"rates": [2.0, 8.0], "seconds": 4, "min_requests": 1, "trials": 2, "max_starts": 4}
    variants: dict[str, Any] = {"fp16": {}, "d": {"args": {"seed": 1}}}
    return spec_of(folder, load=load, variants=variants, **ACCEPTED)


def test_a_default_that_misses_a_limit_at_the_rate_of_the_cheapest_gives_way(
    bench: Bench, tmp_path: Path
) -> None:
    bench.passes = True
    bench.capacity = {"fp16": 10}
    root, spec = tmp_path / "run", rates_spec(tmp_path)
    story(bench, spec, root)
    assert bench.engine.started[4:] == ["d", "fp16", "fp16", "d"]
    best = recommended(root)
    assert (best.variant, best.cheaper, best.measured_again) == ("d", True, True)
    assert best.saving is not None
    assert best.saving.value == pytest.approx(0.75)
    assert_resume_starts_nothing(bench, spec, root)


def test_a_default_that_holds_the_rate_of_the_cheapest_on_fresh_starts_stays(
    bench: Bench, tmp_path: Path
) -> None:
    bench.passes = True
    bench.first_capacity = {"fp16": 10}
    root, spec = tmp_path / "run", rates_spec(tmp_path)
    story(bench, spec, root)
    assert bench.engine.started[4:] == ["d", "fp16", "fp16", "d"]
    assert {plan.load for plan in bench.plans if plan.trial >= 2} == {Load.rate(8.0)}
    best = recommended(root)
    assert best.variant == "fp16"
    assert "that fp16 misses a limit at 8 req/s, where d does not, is not shown" in best.cautions
    assert_resume_starts_nothing(bench, spec, root)


def test_a_default_that_does_not_start_again_has_missed_no_limit(
    bench: Bench, tmp_path: Path
) -> None:
    bench.passes = True
    bench.capacity = {"fp16": 10}
    bench.engine.refused = {("fp16", number) for number in range(2, 20)}
    story(bench, rates_spec(tmp_path), tmp_path / "run")
    assert recommended(tmp_path / "run").variant == "fp16"


def test_a_variant_that_meets_the_objective_at_no_rate_says_so(
    bench: Bench, tmp_path: Path
) -> None:
    bench.passes = True
    bench.capacity = {"fp16": 20, "b": 0}
    load = {"find": "max_rate", "demand_rps": 45, "seconds": 1, "min_requests": 1, "trials": 1}
    story(bench, spec_of(tmp_path, load=load, variants={"fp16": {}, "b": {}}), tmp_path / "run")
    decision = Run.read(tmp_path / "run").decision
    assert decision is not None
    [reason] = [item.reason for item in decision.excluded if item.variant == "b"]
    assert reason == "no rate meets the objective: 1 req/s misses TTFT p95"
