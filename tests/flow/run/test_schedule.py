"""Interleaved rounds: which server starts when, and what a resume takes up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flow.rounds_stage import (
    AGAIN,
    BACK,
    FORTH,
    VARIANTS,
    Bench,
    build_bench,
    cells,
    spec_of,
    story,
)
from whet.core.records import ComparisonSet
from whet.core.spec import Spec
from whet.core.store import RunStore
from whet.load import TrialInterrupted


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return build_bench(monkeypatch)


def test_every_second_round_runs_backwards_and_the_repeat_is_last_in_the_order(
    bench: Bench, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    story(spec_of(tmp_path), root)
    assert bench.engine.started == [*FORTH, *BACK, *FORTH]
    visits = zip([*FORTH, *BACK, *FORTH], [0] * 4 + [1] * 4 + [2] * 4, strict=True)
    wanted = [(name, size, number) for name, number in visits for size in (2, 1)]
    assert bench.measured == wanted
    assert {cell.status for cell in cells(root).values()} == {"complete"}
    assert set(cells(root)) == {(name, size) for name in VARIANTS for size in (1, 2)}


def test_quality_is_measured_once_on_the_first_visit_the_baseline_before_the_others(
    bench: Bench, tmp_path: Path
) -> None:
    story(spec_of(tmp_path), tmp_path / "run")
    assert bench.judged == [("fp16", False), ("b", True), ("c", True)]


def test_the_traffic_of_a_trial_is_the_same_for_all_and_every_fresh_server_is_warmed(
    bench: Bench, tmp_path: Path
) -> None:
    story(spec_of(tmp_path), tmp_path / "run")
    hashes: dict[tuple[int, int], set[str]] = {}
    for plan in bench.plans:
        sha256 = plan.workload.facts.sha256
        hashes.setdefault((plan.batch_size, plan.trial), set()).add(sha256)
        assert plan.warmup, "each batch size is new to a server that measures it once"
    assert len(hashes) == 6
    assert all(len(one) == 1 for one in hashes.values())


def test_blocks_are_one_server_a_variant_and_the_default(bench: Bench, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, load={"batch_sizes": [1, 2], "trials": 2, "warmup_requests": 1})
    assert spec.load.order == "blocks"
    story(spec, tmp_path / "run")
    assert bench.engine.started == FORTH
    assert bench.measured[:4] == [("fp16", 2, 0), ("fp16", 1, 0), ("fp16", 2, 1), ("fp16", 1, 1)]
    assert [bool(plan.warmup) for plan in bench.plans[:4]] == [True, True, False, False]


def test_a_linear_drift_falls_on_all_alike(bench: Bench, tmp_path: Path) -> None:
    """Rates fall by a hundredth a start: 0 and 7, 1 and 6, 2 and 5, 3 and 4 have one mean."""
    bench.slower = 0.01
    root = tmp_path / "run"
    story(spec_of(tmp_path, trials=2), root)
    for size in (1, 2):
        some = [cell.tps_mean for (_, at), cell in cells(root).items() if at == size]
        rates = [rate.value for rate in some if rate is not None]
        assert max(rates) == pytest.approx(min(rates), rel=1e-3), "equal but for the log scale"
    kept = RunStore.read(root).get("comparisons", "all", ComparisonSet)
    assert kept is not None
    assert kept.noise_floor == pytest.approx(0.0, abs=1e-3)
    assert {item.verdict for item in kept.comparisons} == {"no difference"}


def test_the_same_drift_shifts_blocks(bench: Bench, tmp_path: Path) -> None:
    bench.slower = 0.01
    story(spec_of(tmp_path, order="blocks", trials=2), tmp_path / "run")
    kept = RunStore.read(tmp_path / "run").get("comparisons", "all", ComparisonSet)
    assert kept is not None
    assert kept.noise_floor == pytest.approx(1 / 0.97 - 1)


def test_one_variant_has_no_repeat(bench: Bench, tmp_path: Path) -> None:
    story(spec_of(tmp_path, trials=2, variants={"fp16": {}}), tmp_path / "run")
    assert bench.engine.started == ["fp16", "fp16"]


def test_a_run_stopped_between_visits_goes_on_with_the_next_one(
    bench: Bench, tmp_path: Path
) -> None:
    bench.engine.stop_at = 6
    with pytest.raises(KeyboardInterrupt):
        story(spec_of(tmp_path), tmp_path / "run")
    assert bench.engine.started == [*FORTH, AGAIN, "c"]
    assert cells(tmp_path / "run")["c", 1].failure == "2 of 3 trials were measured"
    bench.engine.started.clear()
    bench.engine.stop_at = None
    story(spec_of(tmp_path), tmp_path / "run", resume=True)
    assert bench.engine.started == ["b", "fp16", *FORTH]
    assert len(bench.judged) == 3
    assert {cell.status for cell in cells(tmp_path / "run").values()} == {"complete"}


def test_a_visit_stopped_in_the_middle_is_finished_and_no_trial_measured_twice(
    bench: Bench, tmp_path: Path
) -> None:
    bench.stop_at = 12  # the second trial of c's visit in the second round
    with pytest.raises(TrialInterrupted):
        story(spec_of(tmp_path), tmp_path / "run")
    assert bench.measured[-1] == ("c", 1, 1)
    before = bench.measured[:-1]
    bench.plans.clear()
    bench.engine.started.clear()
    bench.stop_at = None
    story(spec_of(tmp_path), tmp_path / "run", resume=True)
    assert bench.engine.started == ["c", "b", "fp16", *FORTH]
    assert bench.measured[0] == ("c", 1, 1)
    assert not set(before) & set(bench.measured)
    assert len(before) + len(bench.measured) == 4 * 2 * 3


def test_a_resume_starts_a_server_only_for_what_lacks(bench: Bench, tmp_path: Path) -> None:
    spec, root = spec_of(tmp_path), tmp_path / "run"
    story(spec, root)
    bench.engine.started.clear()
    bench.plans.clear()
    story(spec, root, resume=True)
    assert bench.engine.started == []
    with RunStore.open(root, resume=True) as store:
        store.note("trials", "b--b001-t1", status="failed", reason="lost")
        store.note("quality", "c", status="failed", reason="lost")
    story(spec, root, resume=True)
    assert bench.engine.started == ["c", "b"]
    assert bench.measured == [("b", 1, 1)]


def test_a_variant_that_fails_to_start_in_the_second_round_ends_and_the_others_go_on(
    bench: Bench, tmp_path: Path
) -> None:
    bench.engine.refused = {("b", 1)}
    spec, root = spec_of(tmp_path), tmp_path / "run"
    story(spec, root)
    assert bench.engine.started == [*FORTH, *BACK, "fp16", "c", AGAIN]
    failure = str(cells(root)["b", 2].failure)
    assert failure.startswith("1 of 3 trials were measured; then the server did not start: CUDA")
    assert {cells(root)[name, 1].status for name in ("fp16", "c")} == {"complete"}
    bench.engine.started.clear()
    bench.engine.refused.clear()
    story(spec, root, resume=True)
    assert bench.engine.started == ["b", "b"], "its two rounds that lack, and nothing else"
    assert cells(root)["b", 2].status == "complete"


def test_a_repeat_that_fails_to_start_leaves_the_noise_unknown(
    bench: Bench, tmp_path: Path
) -> None:
    bench.engine.refused = {(AGAIN, 0)}
    story(spec_of(tmp_path), tmp_path / "run")
    assert bench.engine.started.count(AGAIN) == 1
    kept = RunStore.read(tmp_path / "run").get("comparisons", "all", ComparisonSet)
    assert kept is not None
    assert kept.noise_floor is None


def test_the_third_death_ends_a_variant_whatever_the_round(bench: Bench, tmp_path: Path) -> None:
    bench.engine.deaths["b"] = 9
    root = tmp_path / "run"
    story(spec_of(tmp_path), root)
    assert bench.engine.started.count("b") == 3
    assert cells(root)["b", 1].status == "failed"
    assert cells(root)["c", 1].status == "complete"


def test_a_spec_of_before_is_read_as_blocks(bench: Bench, tmp_path: Path) -> None:
    data = json.loads(spec_of(tmp_path).model_dump_json())
    del data["load"]["order"]
    assert Spec.model_validate(data).load.order == "blocks"
