"""A run stores what its levers bring, and a report reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decision.cells import verdict
from tests.flow.rounds_stage import Bench, build_bench, spec_of, story
from whet.core.records import FactorialView
from whet.core.run import Run
from whet.core.store import RunStore

VARIANTS = {"fp16": {}, "b": {"args": {"max_num_seqs": 8}}}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return build_bench(monkeypatch)


def run_with(monkeypatch: pytest.MonkeyPatch, root: Path, **outcomes: str) -> FactorialView:
    """A whole run in which each start of a variant is judged as said."""
    monkeypatch.setattr(
        "whet.flow.run.results.judge_start",
        lambda resolved, *_: [verdict(resolved.variant.name, outcomes[resolved.variant.name])],
    )
    monkeypatch.setattr("whet.flow.run.results.judge_cell", lambda *_: [])
    story(spec_of(root.parent, variants=VARIANTS), root)
    view = RunStore.read(root).get("factorial", "all", FactorialView)
    assert view is not None
    return view


def test_a_run_stores_its_effects(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench.speeds = {("b", 2): 1.5}
    root = tmp_path / "run"
    view = run_with(monkeypatch, root, fp16="proved", b="proved")
    assert view.levers == ("max_num_seqs=8",)
    found = {x.batch_size: x.ratio.value for x in view.effects if x.metric == "tps_mean"}
    assert found == pytest.approx({1: 1.0, 2: 1.5}, rel=0.02)
    assert Run(RunStore.read(root)).factorial == view


def test_a_cell_without_evidence_has_no_effect(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    view = run_with(monkeypatch, tmp_path / "run", fp16="proved", b="unproved")
    assert (view.levers, view.effects) == (("max_num_seqs=8",), ())
