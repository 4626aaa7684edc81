"""A run directory, whole or not, becomes one view."""

import json
from pathlib import Path

import pytest

from tests.report.run_factory import make_run
from tests.report.run_texts import VARIANTS
from whet.core.errors import StorageError
from whet.core.load import Load
from whet.core.run import Run
from whet.core.store import RunStore


def test_whole_run_is_gathered(whole: Run) -> None:
    assert whole.variants == VARIANTS
    assert whole.loads == tuple(map(Load.at, (1, 4, 8, 16, 32)))
    assert len(whole.cells) == 25
    assert len(whole.trials) == 25
    assert len(whole.verdicts) == 25  # 5 weights, 2 × 5 speculation, 2 × 5 cache
    assert set(whole.models) == {"target", "draft"}
    assert set(whole.facts) == set(whole.engines) == set(whole.quality) == set(VARIANTS)
    assert whole.baseline == "fp16"
    assert whole.missing == ()


def test_failed_cell_is_a_finding_not_missing(whole: Run) -> None:
    failed = whole.cell("awq+draft", Load.at(32))
    assert failed is not None
    assert failed.status == "failed"
    assert whole.missing == ()


def test_evidence_of_a_cell_is_its_worst_verdict(whole: Run) -> None:
    assert whole.evidence("awq+cache", Load.at(8)) == "proved"
    assert whole.evidence("awq+cache", Load.at(16)) == "contradicted"
    assert whole.evidence("awq+draft", Load.at(32)) == "unproved"
    assert whole.evidence("nothing", Load.at(1)) is None


def test_interrupted_run_says_what_it_lacks(interrupted: Run) -> None:
    assert interrupted.missing[0] == "Not measured yet: awq+draft, awq+cache, awq+draft+cache."
    assert "awq has no figures at concurrency 8, 16, 32 (2 trials kept)." in interrupted.missing
    assert "fp16 has no quality record." in interrupted.missing
    assert interrupted.missing[-1] == "No decision was made; go on with whet run --resume."
    assert interrupted.decision is None


def test_run_that_has_just_begun_is_empty(begun: Run) -> None:
    assert begun.spec is None
    assert begun.environment is None
    assert begun.cells == ()
    assert begun.missing == ("No decision was made; go on with whet run --resume.",)


def test_record_without_a_journal_line_is_not_read(tmp_path: Path) -> None:
    store = make_run(tmp_path / "run", stop_after=1)
    source = store.path("cells", "fp16--b001.json")
    store.path("cells", "fp16--b004.json").write_bytes(source.read_bytes())
    assert len(Run(RunStore.read(store.root)).cells) == 1


def test_variant_that_preflight_left_out_is_not_missing(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", stop_after=5).root
    with RunStore.open(root, resume=True) as store:
        store.note("infeasible", "awq+draft", status="failed", reason="too big")
    missing = Run(RunStore.read(root)).missing
    assert missing[0] == "Not measured yet: awq, awq+cache, awq+draft+cache."


def test_torn_spec_is_one_sentence(tmp_path: Path) -> None:
    store = make_run(tmp_path / "run", stop_after=1)
    (store.root / "resolved_spec.json").write_text('{"name": ', encoding="utf-8")
    with pytest.raises(StorageError, match="not whole JSON; put it back"):
        _ = Run.read(store.root).name


def test_trials_without_a_decision_are_counted(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", stop_after=5).root
    for path in (root / "cells").iterdir():
        path.unlink()
    missing = Run(RunStore.read(root)).missing
    assert "fp16 has no figures at concurrency 1, 4, 8, 16, 32 (5 trials kept)." in missing


def test_quality_that_failed_says_why(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", stop_after=5).root
    with RunStore.open(root, resume=True) as store:
        store.note("quality", "fp16", status="failed", reason="the server was lost")
    missing = Run(RunStore.read(root)).missing
    assert "fp16 has no quality record: the server was lost." in missing


def test_a_variant_removed_from_the_spec_is_not_missing(tmp_path: Path) -> None:
    store = make_run(tmp_path / "run", stop_after=7)
    path = store.path("resolved_spec.json")
    spec = json.loads(path.read_text())
    del spec["variants"]["awq+draft"], spec["variants"]["awq"]
    path.write_text(json.dumps(spec))
    record = json.loads(store.path("variants", "awq.json").read_text())
    record["variant"]["name"] = "awq+draft"
    store.path("variants", "awq+draft.json").write_text(json.dumps(record))
    with RunStore.open(store.root, resume=True) as opened:
        opened.note("variants", "awq+draft", status="complete")
    view = Run(RunStore.read(store.root))
    assert "awq" in view.variants, "it was measured"
    assert "awq+draft" not in view.variants, "it was not"
    assert view.unmeasured == ("Not measured yet: awq+cache, awq+draft+cache.",)
    assert not any(line.startswith("awq ") for line in view.missing)
