"""Finalists that speculate are compared with a plain server before anything is recommended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flow.rounds_stage import Bench, build_bench, spec_of
from whet.core.protocols import Silent
from whet.core.run import Run
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.conclude.conclude import conclude
from whet.flow.run.measure.rounds import Measurer
from whet.flow.run.plan import Recorder, Round, cells_of
from whet.flow.run.search.grid import check_answers
from whet.report.run import run_document

SPECULATION = {"method": "ngram", "num_tokens": 3}
EXACT = {"args": {"dtype": "float32"}}
"""Other numbers than the baseline's, so that the baseline is not the plain server."""
FAST: dict[str, Any] = {"exact+spec": {**EXACT, "speculation": SPECULATION}}
ACCEPTED = {"accept_unproved": ["speculation", "settings", "prefix_cache"]}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = build_bench(monkeypatch)
    made.passes = True
    made.speeds = {("exact+spec", size): 2.0 for size in (1, 2)}
    return made


def searched(
    bench: Bench, root: Path, variants: dict[str, Any], measured: tuple[str, ...], **change: Any
) -> Run:
    """A run of which a search has measured ``measured`` alone, concluded after the check."""
    spec = spec_of(
        root.parent, order="blocks", trials=1, variants=variants, evidence=ACCEPTED, **change
    )
    with RunStore.open(root) as store:
        recorder = Recorder(store=store, observer=Silent())
        plan = prepare(spec, recorder, bench.engine, skip_infeasible=False)
        cells = tuple(cells_of(spec.load.points, [0]))
        servers = tuple((item, cells) for item in plan.resolved if item.variant.name in measured)
        measurer = Measurer(recorder=recorder, engines=bench.engine)
        measurer.measure(plan, [Round(servers=servers)], quality=True)
        check_answers(plan, store, measurer)
        conclude(store, Silent())
    return Run.read(root)


def test_a_plain_server_that_was_left_out_is_asked_then_the_finalist(
    bench: Bench, tmp_path: Path
) -> None:
    variants = {"fp16": {}, **FAST, "exact": EXACT}
    result = searched(bench, tmp_path / "run", variants, ("fp16", "exact+spec"))
    assert bench.engine.started == ["fp16", "exact+spec", "exact", "exact+spec"]
    assert result.quality["exact+spec"].lossless is not None
    decision = result.decision
    assert decision is not None
    assert decision.recommendation is not None
    assert decision.recommendation.variant == "exact+spec"


def test_without_a_plain_variant_one_is_started_for_its_answers_alone(
    bench: Bench, tmp_path: Path
) -> None:
    result = searched(bench, tmp_path / "run", {"fp16": {}, **FAST}, ("fp16", "exact+spec"))
    assert bench.engine.started == ["fp16", "exact+spec", "exact+spec.plain", "exact+spec"]
    assert {plan.variant for plan in bench.plans} == {"fp16", "exact+spec"}
    assert result.variants == ("fp16", "exact+spec")
    assert result.missing == ()
    assert result.decision is not None
    assert result.decision.recommendation is not None
    assert result.decision.recommendation.variant == "exact+spec"
    assert run_document(result).sections


@pytest.mark.parametrize("variants", [{"fp16": {}, **FAST}, {"fp16": {}, **FAST, "exact": EXACT}])
def test_what_cannot_be_compared_is_excluded_with_the_reason(
    bench: Bench, tmp_path: Path, variants: dict[str, Any]
) -> None:
    bench.engine.refused = {("exact", 0), ("exact+spec.plain", 0)}
    result = searched(bench, tmp_path / "run", variants, ("fp16", "exact+spec"))
    assert bench.engine.started.count("exact+spec") == 1
    decision = result.decision
    assert decision is not None
    assert decision.recommendation is not None
    assert decision.recommendation.variant == "fp16"
    [out] = [item for item in decision.excluded if item.variant == "exact+spec"]
    assert out.kind == "not checked"
    assert "a variant with the same weights and no speculation" in out.reason


def test_a_check_that_the_spec_switches_off_is_not_made(bench: Bench, tmp_path: Path) -> None:
    variants = {"fp16": {}, **FAST, "exact": EXACT}
    quality = {"lossless_prompts": 0}
    searched(bench, tmp_path / "run", variants, ("fp16", "exact+spec"), quality=quality)
    assert bench.engine.started == ["fp16", "exact+spec"]
