"""The story from spec to decision: what is stored, what survives a death, what a resume does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.stage import FakeEngine, tiny_spec
from whet.core import store as store_module
from whet.core.errors import InfeasibleError, UsageError
from whet.core.protocols import Lines, Observer, Silent
from whet.core.records.decision import Decision
from whet.core.records.load import TrialRecord, WorkloadFacts
from whet.core.records.summary import CellSummary
from whet.core.run import Run
from whet.core.spec import Spec, parse_spec
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.conclude.conclude import conclude, decide_over
from whet.flow.run.measure.rounds import Measurer
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder
from whet.flow.run.search.grid import measure_all
from whet.load import run_trial
from whet.metrics import summarise
from whet.report.run.files import write_reports


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def story(
    engine: FakeEngine,
    spec: Spec,
    root: Path,
    *,
    resume: bool = False,
    skip: bool = False,
    observer: Observer | None = None,
) -> Decision:
    with RunStore.open(root, resume=resume) as store:
        recorder = Recorder(store=store, observer=observer or Silent())
        return run(spec, recorder, engines=engine, skip_infeasible=skip)


def cells(root: Path) -> dict[tuple[str, int], CellSummary]:
    found = RunStore.read(root).all("cells", CellSummary)
    return {(cell.variant, cell.load.slots): cell for cell in found}


def test_every_arrow_is_a_record_on_disk(engine: FakeEngine, tmp_path: Path) -> None:
    root = tmp_path / "run"
    variants = {"fp16": {}, "rtn": {"weights": "rtn"}}
    decision = story(engine, tiny_spec(tmp_path, variants=variants), root)
    assert engine.started == ["fp16", "rtn"]
    assert {key: cell.status for key, cell in cells(root).items()} == {
        ("fp16", 1): "complete",
        ("fp16", 2): "complete",
        ("rtn", 1): "complete",
        ("rtn", 2): "complete",
    }
    names = {path.relative_to(root).parts[0] for path in root.iterdir()}
    assert names >= {"models", "quantized", "variants", "starts", "facts", "workloads", "trials"}
    assert names >= {"quality", "verdicts", "decision.json", "reproduce"}
    assert decision.recommendation is None, "a server that proves nothing is never recommended"
    assert {item.variant for item in decision.excluded} == {"fp16", "rtn"}


def test_each_trial_is_parsed_once_and_each_cell_is_concluded_once(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    summarised: list[tuple[str, int]] = []
    written: list[str] = []
    read, write = store_module.read_record, store_module.write_atomic

    def counting_read(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.parent.name == "trials":
            opened.append(path.name)
        return read(path, *args, **kwargs)

    def counting_write(path: Path, data: bytes) -> None:
        written.append(path.name)
        write(path, data)

    def counting_summarise(trials: Sequence[TrialRecord], **kwargs: Any) -> CellSummary:
        summarised.append((trials[0].variant, trials[0].load.slots))
        return summarise(trials, **kwargs)

    monkeypatch.setattr(store_module, "read_record", counting_read)
    monkeypatch.setattr(store_module, "write_atomic", counting_write)
    root = tmp_path / "run"
    variants = {"fp16": {}, "other": {"prefix_cache": True}, "third": {"args": {"seed": 1}}}
    with RunStore.open(root) as store:
        recorder = Recorder(store=store, observer=Silent())
        plan = prepare(
            tiny_spec(tmp_path, variants=variants), recorder, engine, skip_infeasible=False
        )
        measure_all(plan, recorder, Measurer(recorder=recorder, engines=engine))
        monkeypatch.setattr("whet.flow.run.conclude.results.summarise", counting_summarise)
        decision = conclude(store, Silent())
        write_reports(Run(store), root)
    assert sorted(opened) == sorted(path.name for path in (root / "trials").iterdir())
    assert len(opened) == 3 * 2 * 2, "three variants, two sizes, two trials"
    assert len(summarised) == len(set(summarised)) == 6
    assert written.count("decision.json") == 1
    assert Run.read(root).decision == decision


def test_the_same_traffic_for_every_variant_and_fresh_for_every_trial(
    engine: FakeEngine, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    story(engine, tiny_spec(tmp_path), root)
    store = RunStore.read(root)
    hashes: dict[tuple[int, int], set[str]] = {}
    for trial in store.all("trials", TrialRecord):
        hashes.setdefault((trial.load.slots, trial.trial), set()).add(trial.workload_sha256)
    assert len(hashes) == 4
    assert all(len(one) == 1 for one in hashes.values())
    assert len(set.union(*hashes.values())) == 4
    assert len(store.all("workloads", WorkloadFacts)) == 4


def test_interleaved_trials_reach_real_servers_with_the_same_traffic(
    engine: FakeEngine, tmp_path: Path
) -> None:
    load = {"order": "interleaved", "concurrency": [2], "trials": 2, "min_requests": 4}
    small = {"requests_per_slot": 1, "warmup_requests": 2}
    root = tmp_path / "run"
    story(engine, tiny_spec(tmp_path, load=load | small), root)
    assert engine.started == ["fp16", "other", "other", "fp16"]
    found = RunStore.read(root).all("trials", TrialRecord)
    order = [("fp16", 0), ("other", 0), ("other", 1), ("fp16", 1)]
    assert [(one.variant, one.trial) for one in found] == order
    hashes = [one.workload_sha256 for one in found]
    assert (hashes[0], hashes[2]) == (hashes[1], hashes[3])
    assert hashes[0] != hashes[2]
    assert {cell.status for cell in cells(root).values()} == {"complete"}


def test_an_invalid_trial_is_repeated_on_a_fresh_start(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed = [("other", 2, 0)]

    def run_disturbed(*args: Any, **kwargs: Any) -> TrialRecord:
        record = run_trial(*args, **kwargs)
        if disturbed and disturbed[0] == (record.variant, record.load.slots, record.trial):
            disturbed.clear()
            health = replace(record.health, valid=False, reason="steal")
            return replace(record, health=health)
        return record

    monkeypatch.setattr("whet.flow.serving.run_trial", run_disturbed)
    root = tmp_path / "run"
    story(engine, tiny_spec(tmp_path), root)
    assert engine.started == ["fp16", "other", "other"]
    again = RunStore.read(root).get("trials", "other--b002-t0", TrialRecord)
    assert again is not None
    assert (again.health.valid, again.start) == (True, 1)
    assert {cell.status for cell in cells(root).values()} == {"complete"}


def test_a_trial_that_stays_invalid_is_repeated_twice_and_named(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_late(*args: Any, **kwargs: Any) -> TrialRecord:
        record = run_trial(*args, **kwargs)
        health = replace(record.health, valid=False, reason="requests left late")
        return replace(record, health=health) if record.variant == "other" else record

    monkeypatch.setattr("whet.flow.serving.run_trial", run_late)
    said = Lines()
    story(engine, tiny_spec(tmp_path), tmp_path / "run", observer=said)
    assert engine.started == ["fp16", "other", "other", "other"]
    warnings = [line for how, line in said.lines if how == "warn"]
    assert sum(line.endswith("requests left late") for line in warnings) == 3 * 4
    assert warnings[-1].startswith("not counted: 4 trials, such as one of other at concurrency ")
    assert warnings[-1].endswith(": requests left late; measure again with whet run --resume")
    write_reports(Run.read(tmp_path / "run"), tmp_path / "run")
    line = "other at concurrency 2 does not count, its trial is invalid: requests left late"
    assert line in (tmp_path / "run" / "report.md").read_text()


def test_a_resume_of_a_finished_run_starts_nothing(engine: FakeEngine, tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    first = story(engine, spec, tmp_path / "run")
    engine.started.clear()
    assert story(engine, spec, tmp_path / "run", resume=True) == first
    assert engine.started == []


def test_a_server_that_does_not_start_fails_its_cells_in_words(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.refuses.add("other")
    spec, root = tiny_spec(tmp_path), tmp_path / "run"
    story(engine, spec, root)
    failed = cells(root)["other", 1]
    assert failed.status == "failed"
    assert "CUDA out of memory" in str(failed.failure)
    assert cells(root)["fp16", 1].status == "complete", "the others are measured all the same"
    engine.refuses.clear()
    engine.started.clear()
    story(engine, spec, root, resume=True)
    assert engine.started == ["other"], "what failed is tried again, and nothing else"
    assert cells(root)["other", 1].status == "complete"


def test_a_server_that_dies_in_the_middle_is_started_again(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.deaths["other"] = 1
    spec, root = tiny_spec(tmp_path), tmp_path / "run"
    story(engine, spec, root)
    assert engine.started.count("other") == 2
    assert cells(root)["other", 2].status == "failed", "the trial in flight was lost"
    assert cells(root)["other", 1].status == "complete"
    engine.started.clear()
    engine.deaths.clear()
    story(engine, spec, root, resume=True)
    assert engine.started == ["other"]
    assert cells(root)["other", 2].status == "complete"


def test_a_server_that_keeps_dying_is_given_up(engine: FakeEngine, tmp_path: Path) -> None:
    engine.deaths["other"] = 9
    root = tmp_path / "run"
    story(engine, tiny_spec(tmp_path), root)
    assert engine.started.count("other") == 3
    assert cells(root)["other", 1].status == "failed"
    assert cells(root)["fp16", 2].status == "complete"


def test_a_spec_that_changed_is_refused_on_resume(engine: FakeEngine, tmp_path: Path) -> None:
    story(engine, tiny_spec(tmp_path), tmp_path / "run")
    changed = tiny_spec(tmp_path, workload={"max_output_tokens": 8})
    with pytest.raises(UsageError, match="differs from the run's own in workload"):
        story(engine, changed, tmp_path / "run", resume=True)


def test_a_run_from_before_a_key_was_known_is_resumed(engine: FakeEngine, tmp_path: Path) -> None:
    spec, kept = tiny_spec(tmp_path), tmp_path / "run" / "resolved_spec.json"
    first = story(engine, spec, tmp_path / "run")
    data = json.loads(kept.read_text())
    del data["load"]["confirm"]
    data["load"]["together"] = [["fp16", "other"]]  # a key that is gone
    kept.write_text(json.dumps(data))
    assert story(engine, spec, tmp_path / "run", resume=True) == first


def test_a_variant_may_be_added_on_resume(engine: FakeEngine, tmp_path: Path) -> None:
    story(engine, tiny_spec(tmp_path), tmp_path / "run")
    engine.started.clear()
    more = tiny_spec(
        tmp_path,
        variants={
            "fp16": {},
            "other": {"prefix_cache": True},
            "blocks": {"args": {"block_size": 32}},
        },
    )
    story(engine, more, tmp_path / "run", resume=True)
    assert engine.started == ["blocks"]


def test_preflight_refuses_before_anything_starts(engine: FakeEngine, tmp_path: Path) -> None:
    variants = {"fp16": {}, "long": {"args": {"max_model_len": 4096}}}
    spec = tiny_spec(tmp_path, variants=variants)
    with pytest.raises(InfeasibleError, match="max_model_len 4096 is beyond the model's 512"):
        story(engine, spec, tmp_path / "run")
    assert engine.started == []
    decision = story(engine, spec, tmp_path / "other", skip=True)
    assert "long" not in engine.started
    assert any(item.variant == "long" and "4096" in item.reason for item in decision.excluded)


def test_two_machines_give_one_matrix(engine: FakeEngine, tmp_path: Path) -> None:
    for tier in ("small", "large"):
        spec = tiny_spec(tmp_path, hardware={"price_usd_per_hour": 1.0, "tier": tier})
        story(engine, spec, tmp_path / tier)
    both = decide_over([Run.read(tmp_path / "small"), Run.read(tmp_path / "large")])
    assert {entry.tier for entry in both.matrix} == {"small", "large"}
    with pytest.raises(UsageError, match="two of these runs are of the tier 'small'"):
        decide_over([Run.read(tmp_path / "small")] * 2)


def test_a_missing_data_file_is_named(engine: FakeEngine, tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, quality={"heldout": "nowhere.jsonl"})
    with pytest.raises(UsageError, match=r"quality.heldout: no file at .*nowhere.jsonl"):
        story(engine, spec, tmp_path / "run")
    assert parse_spec(spec.model_dump(mode="json"), base=tmp_path) == spec
