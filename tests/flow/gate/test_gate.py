"""The gate outside of a run: whom it asks, what it keeps, and what else may fail a deployment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.gate_stage import Model, ModelEngine, serve, write_questions
from tests.quality.test_harness import run as harness_run
from tests.quality.test_harness import shares
from whet.core.errors import EngineStartError, MeasurementError, StorageError, UsageError
from whet.core.protocols import Silent
from whet.core.records.engine import ResolvedEngine
from whet.flow.gate import gate as flow_gate
from whet.flow.gate.gate import run_gate
from whet.flow.gate.options import (
    HarnessOptions,
    MeasureOptions,
    QualityOptions,
    SideOptions,
)
from whet.quality import Measured, QualityPlan, measure_quality
from whet.quality.harness import HarnessRun


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QualityOptions:
    """Sixty documents and twelve questions for servers with the folder's tokenizer."""
    monkeypatch.chdir(tmp_path)
    write_questions(tmp_path / "data")
    return QualityOptions(
        sides=SideOptions(tokenizer=str(tmp_path / "data" / "tokenizer")),
        measure=MeasureOptions(
            heldout=tmp_path / "data" / "heldout.jsonl",
            tasks=tmp_path / "data" / "tasks.jsonl",
            max_tokens=64,
            concurrency=4,
        ),
    )


def on(asked: QualityOptions, *, lm_eval: str | None = None, **sides: Any) -> QualityOptions:
    """The same questions with other sides."""
    harness = asked.harness if lm_eval is None else HarnessOptions(lm_eval=lm_eval)
    return replace(asked, sides=replace(asked.sides, **sides), harness=harness)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModelEngine:
    made = ModelEngine()
    monkeypatch.setattr("whet.flow.serving.get_engine", lambda _name: made)
    return made


def test_a_checkpoint_is_served_with_what_it_stores_and_room_for_every_question(
    asked: QualityOptions, engine: ModelEngine, tmp_path: Path
) -> None:
    folder = write_tiny_llama(tmp_path / "model", dtype="float32")
    engine.models = [Model()]
    found = run_gate(str(folder), on(asked, tokenizer=None), Silent())
    [line] = engine.lines
    assert found.verdict == "pass"
    assert line.variant.scheme == "32bit"
    # a document is cut to 64 tokens, its one reply included; 64 more are for speculation
    assert 64 < int(dict(line.variant.engine_args)["max_model_len"]) <= 512
    assert found.target.weights_sha256 is not None


def test_the_same_weights_may_differ_by_rounding_only(
    asked: QualityOptions, engine: ModelEngine, tmp_path: Path
) -> None:
    folder = str(write_tiny_llama(tmp_path / "model"))
    other = str(write_tiny_llama(tmp_path / "other", seed=1))
    asked = on(asked, baseline=folder, tokenizer=None)
    for target, told in ((folder, True), (other, False)):
        engine.models = [Model(), Model(moves=0.3)]
        found = run_gate(target, asked, Silent())
        assert ("which serves the same weights" in (found.reason or "")) == told
        assert (found.verdict == "fail") == told
        assert found.record.distances is not None
        assert found.record.distances.kl.value > 1e-4


def test_predictions_that_differ_name_a_known_defect(
    asked: QualityOptions, engine: ModelEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def suspected(url: str, model: str, plan: QualityPlan, **other: Any) -> Measured:
        known = replace(plan, scoring_defect="the engine is known to", tolerances=(9.0,))
        return measure_quality(url, model, known, **other)

    monkeypatch.setattr(flow_gate, "measure_quality", suspected)
    folder = str(write_tiny_llama(tmp_path / "model"))
    both = on(asked, baseline=folder, tokenizer=None)
    for moves, told in ((0.3, True), (0.0, False)):
        engine.models = [Model(), Model(moves=moves)]
        reason = run_gate(folder, both, Silent()).reason or ""
        assert reason.endswith("; the engine is known to") == told


def test_an_engine_that_cannot_serve_the_checkpoint_says_why(
    asked: QualityOptions, engine: ModelEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_llama(tmp_path / "model")

    def no(_self: ModelEngine, _resolved: ResolvedEngine) -> str:
        return "FP8 needs a newer GPU"

    monkeypatch.setattr(ModelEngine, "unsupported", no)
    with pytest.raises(EngineStartError, match="cannot be served here: FP8 needs a newer GPU"):
        run_gate(str(folder), asked, Silent())


def test_scales_of_the_kv_cache_that_nobody_calibrated_fail(
    asked: QualityOptions, engine: ModelEngine, tmp_path: Path
) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    for side in ("k", "v"):
        tensors[f"model.layers.0.self_attn.{side}_scale"] = np.ones(1, dtype=np.float16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    engine.models = [Model()]
    with serve(Model(root=str(folder))) as base:
        found = run_gate(str(folder), on(asked, baseline=base.url, tokenizer=None), Silent())
    assert found.verdict == "fail"
    assert found.reason is not None
    assert "all 2 KV scales" in found.reason


def test_a_broken_baseline_ends_the_gate_before_the_target_is_asked(asked: QualityOptions) -> None:
    with serve(Model()) as target, serve(Model(loss=float("nan"))) as base:
        with pytest.raises(MeasurementError, match="the baseline itself is broken"):
            run_gate(target.url, on(asked, baseline=base.url), Silent())
        assert not target.asked


def kept(asked: QualityOptions, folder: Path, lm_eval: str | None = None) -> QualityOptions:
    """A baseline kept in ``folder``, and the options to hold a target to it."""
    asked = on(asked, lm_eval=lm_eval)
    with serve(Model()) as base:
        run_gate(base.url, on(asked, save=folder), Silent())
    asked = replace(asked, measure=MeasureOptions(concurrency=4))
    return on(asked, against=folder, tokenizer=None)


def test_a_kept_baseline_holds_all_that_a_later_gate_reads(
    asked: QualityOptions, tmp_path: Path
) -> None:
    kept(asked, tmp_path / "kept")
    names = {str(f.relative_to(tmp_path / "kept")) for f in (tmp_path / "kept").rglob("*")}
    assert names >= {
        "baseline.json",
        "arrays/baseline.npz",
        "inputs/heldout.jsonl",
        "inputs/tasks.jsonl",
        "tokenizer/tokenizer.json",
    }
    assert json.loads((tmp_path / "kept" / "baseline.json").read_text())["plain"] is None
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize("damage", ["baseline.json", "inputs/tasks.jsonl"])
def test_a_damaged_kept_baseline_is_told(
    asked: QualityOptions, tmp_path: Path, damage: str
) -> None:
    request = kept(asked, tmp_path / "kept")
    path = tmp_path / "kept" / damage
    if damage == "baseline.json":
        path.write_text('{"form": 1}')
    else:
        path.unlink()
    with serve(Model()) as target, pytest.raises(StorageError, match="measure the baseline again"):
        run_gate(target.url, request, Silent())


def test_speculation_needs_the_plain_answers_of_the_kept_baseline(
    asked: QualityOptions, tmp_path: Path
) -> None:
    request = kept(asked, tmp_path / "kept")
    with serve(Model()) as target, pytest.raises(UsageError, match="no answers for --speculative"):
        run_gate(target.url, on(request, speculative=True), Silent())


def test_kernels_are_known_to_be_the_same_where_whet_serves_both_sides(
    asked: QualityOptions, engine: ModelEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []

    def measured(url: str, model: str, plan: QualityPlan, **other: Any) -> Measured:
        plans.append(plan)
        return measure_quality(url, model, plan, **other)

    monkeypatch.setattr(flow_gate, "measure_quality", measured)
    one, two = (str(write_tiny_llama(tmp_path / name, seed=at)) for at, name in enumerate("ab"))
    engine.models = [Model(), Model()]
    run_gate(two, on(asked, baseline=one, tokenizer=None, speculative=True), Silent())
    with serve(Model()) as target, serve(Model()) as base:
        run_gate(target.url, on(asked, baseline=base.url, speculative=True), Silent())
    assert [plan.checks.other_kernels for plan in plans] == [False, False, False, True]


def test_speculation_without_counters_is_unknown(asked: QualityOptions) -> None:
    with serve(Model()) as target, serve(Model()) as base:
        found = run_gate(target.url, on(asked, baseline=base.url, speculative=True), Silent())
    assert found.verdict == "unknown"
    assert "no counters" in (found.reason or "")


def lm_eval(monkeypatch: pytest.MonkeyPatch, *runs: HarnessRun) -> list[int]:
    """lm-eval as if installed, with the baseline's run and the target's; the lengths it was told"""
    left, lengths = list(runs), list[int]()

    def measured(*_: object, tokenizer: Path, max_length: int) -> HarnessRun:
        lengths.append(max_length)
        return left.pop(0)

    monkeypatch.setattr(flow_gate, "require_harness", lambda: None)
    monkeypatch.setattr(flow_gate, "run_harness", measured)
    return lengths


def test_a_task_of_lm_eval_that_fell_fails_and_is_kept_in_pairs(
    asked: QualityOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, before = shares(lost=12, gained=0, both=40)
    lengths = lm_eval(monkeypatch, replace(before, max_length=512), now)
    request = kept(asked, tmp_path / "kept", lm_eval="t")
    with serve(Model()) as target:
        found = run_gate(target.url, request, Silent())
    assert found.record.verdicts == ((0.01, "pass"),)
    assert found.verdict == "fail"
    assert (found.reason or "").startswith("lm-eval: t acc: 12 answers lost and 0 gained")
    [score], [old] = found.harness, found.baseline_harness
    assert (score.n, score.score.value, old.score.value) == (52, 40 / 52, 1.0)
    assert lengths[1] == 512, "the target's prompts are cut as the baseline's were"


def test_a_task_of_lm_eval_that_cannot_be_paired_is_no_pass(
    asked: QualityOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = HarnessRun(max_length=2048, values={"t acc": {"other prompt": 1.0}}, missing={})
    lm_eval(monkeypatch, harness_run({"t acc": [1.0]}), other)
    with serve(Model()) as target, serve(Model()) as base:
        found = run_gate(target.url, on(asked, baseline=base.url, lm_eval="t"), Silent())
    assert found.verdict == "unknown"
    assert "no document with the same prompt" in (found.reason or "")


def test_a_kept_baseline_without_lm_eval_is_told_before_anything_is_asked(
    asked: QualityOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = on(kept(asked, tmp_path / "kept"), lm_eval="t")
    lm_eval(monkeypatch)
    with serve(Model()) as target:
        with pytest.raises(UsageError, match="save the baseline again with the same --lm-eval"):
            run_gate(target.url, request, Silent())
        assert not target.asked
