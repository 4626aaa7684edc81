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
from tests.quality.test_harness_compare import run as harness_run
from tests.quality.test_harness_compare import sample, shares
from whet.core.errors import EngineStartError, MeasurementError, StorageError, UsageError
from whet.core.protocols import Silent
from whet.core.records import HarnessRun, ResolvedEngine
from whet.core.spec import QualitySpec
from whet.flow.gate import gate as flow_gate
from whet.flow.gate.gate import run_gate
from whet.flow.gate.request import GateRequest, HarnessRequest
from whet.quality import Measured, QualityPlan, measure_quality


@pytest.fixture
def asked(tmp_path: Path) -> GateRequest:
    """Sixty documents and twelve questions for servers with the folder's tokenizer."""
    write_questions(tmp_path / "data")
    return GateRequest(
        target="",
        quality=QualitySpec(
            heldout=tmp_path / "data" / "heldout.jsonl",
            tasks=tmp_path / "data" / "tasks.jsonl",
            max_tokens=64,
            concurrency=4,
        ),
        tokenizer=str(tmp_path / "data" / "tokenizer"),
    )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModelEngine:
    made = ModelEngine()
    monkeypatch.setattr("whet.flow.serving.get_engine", lambda _name: made)
    return made


def test_a_checkpoint_is_served_with_what_it_stores_and_room_for_every_question(
    asked: GateRequest, engine: ModelEngine, tmp_path: Path
) -> None:
    folder = write_tiny_llama(tmp_path / "model", dtype="float32")
    engine.models = [Model()]
    found = run_gate(replace(asked, target=str(folder), tokenizer=None), Silent())
    [line] = engine.lines
    assert found.verdict == "pass"
    assert line.variant.scheme == "32bit"
    # a document is cut to 64 tokens, its one reply included; 64 more are for speculation
    assert 64 < int(dict(line.variant.engine_args)["max_model_len"]) <= 512
    assert found.target.weights_sha256 is not None


def test_the_same_weights_may_differ_by_rounding_only(
    asked: GateRequest, engine: ModelEngine, tmp_path: Path
) -> None:
    folder = str(write_tiny_llama(tmp_path / "model"))
    other = str(write_tiny_llama(tmp_path / "other", seed=1))
    asked = replace(asked, baseline=folder, tokenizer=None)
    for target, told in ((folder, True), (other, False)):
        engine.models = [Model(), Model(moves=0.3)]
        found = run_gate(replace(asked, target=target), Silent())
        assert ("which serves the same weights" in (found.reason or "")) == told
        assert (found.verdict == "fail") == told
        assert found.record.distances is not None
        assert found.record.distances.kl.value > 1e-4


def test_predictions_that_differ_name_a_known_defect(
    asked: GateRequest, engine: ModelEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def suspected(url: str, model: str, plan: QualityPlan, **other: Any) -> Measured:
        known = replace(plan, scoring_defect="the engine is known to", tolerances=(9.0,))
        return measure_quality(url, model, known, **other)

    monkeypatch.setattr(flow_gate, "measure_quality", suspected)
    folder = str(write_tiny_llama(tmp_path / "model"))
    both = replace(asked, target=folder, baseline=folder, tokenizer=None)
    for moves, told in ((0.3, True), (0.0, False)):
        engine.models = [Model(), Model(moves=moves)]
        reason = run_gate(both, Silent()).reason or ""
        assert reason.endswith("; the engine is known to") == told


def test_an_engine_that_cannot_serve_the_checkpoint_says_why(
    asked: GateRequest, engine: ModelEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_llama(tmp_path / "model")

    def no(_self: ModelEngine, _resolved: ResolvedEngine) -> str:
        return "FP8 needs a newer GPU"

    monkeypatch.setattr(ModelEngine, "unsupported", no)
    with pytest.raises(EngineStartError, match="cannot be served here: FP8 needs a newer GPU"):
        run_gate(replace(asked, target=str(folder)), Silent())


def test_scales_of_the_kv_cache_that_nobody_calibrated_fail(
    asked: GateRequest, engine: ModelEngine, tmp_path: Path
) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    for side in ("k", "v"):
        tensors[f"model.layers.0.self_attn.{side}_scale"] = np.ones(1, dtype=np.float16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    engine.models = [Model()]
    with serve(Model(root=str(folder))) as base:
        found = run_gate(
            replace(asked, target=str(folder), baseline=base.url, tokenizer=None), Silent()
        )
    assert found.verdict == "fail"
    assert found.reason is not None
    assert "all 2 KV scales" in found.reason


def test_a_broken_baseline_ends_the_gate_before_the_target_is_asked(asked: GateRequest) -> None:
    with serve(Model()) as target, serve(Model(loss=float("nan"))) as base:
        with pytest.raises(MeasurementError, match="the baseline itself is broken"):
            run_gate(replace(asked, target=target.url, baseline=base.url), Silent())
        assert not target.asked


def kept(asked: GateRequest, folder: Path, harness: HarnessRequest | None = None) -> GateRequest:
    """A baseline kept in ``folder``, and the request to hold a target to it."""
    with serve(Model()) as base:
        run_gate(replace(asked, target=base.url, save=folder, harness=harness), Silent())
    return replace(asked, against=folder, tokenizer=None, harness=harness)


def test_a_kept_baseline_holds_all_that_a_later_gate_reads(
    asked: GateRequest, tmp_path: Path
) -> None:
    kept(asked, tmp_path / "kept")
    names = {str(f.relative_to(tmp_path / "kept")) for f in (tmp_path / "kept").rglob("*")}
    assert names >= {
        "baseline.json",
        "arrays/baseline.npz",
        "golden/baseline.json",
        "inputs/heldout.jsonl",
        "inputs/tasks.jsonl",
        "tokenizer/tokenizer.json",
    }
    assert json.loads((tmp_path / "kept" / "baseline.json").read_text())["plain"] is not None
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize("damage", ["baseline.json", "inputs/tasks.jsonl"])
def test_a_damaged_kept_baseline_is_told(asked: GateRequest, tmp_path: Path, damage: str) -> None:
    request = kept(asked, tmp_path / "kept")
    path = tmp_path / "kept" / damage
    if damage == "baseline.json":
        path.write_text('{"form": 1}')
    else:
        path.unlink()
    with serve(Model()) as target, pytest.raises(StorageError, match="measure the baseline again"):
        run_gate(replace(request, target=target.url), Silent())


def test_speculation_needs_the_plain_answers_of_the_kept_baseline(
    asked: GateRequest, tmp_path: Path
) -> None:
    none = asked.quality.model_copy(update={"lossless_prompts": 0})
    request = kept(replace(asked, quality=none), tmp_path / "kept")
    with serve(Model()) as target, pytest.raises(UsageError, match="no answers for --speculative"):
        run_gate(replace(request, target=target.url, speculative=True), Silent())


def test_kernels_are_known_to_be_the_same_where_whet_serves_both_sides(
    asked: GateRequest, engine: ModelEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []

    def measured(url: str, model: str, plan: QualityPlan, **other: Any) -> Measured:
        plans.append(plan)
        return measure_quality(url, model, plan, **other)

    monkeypatch.setattr(flow_gate, "measure_quality", measured)
    one, two = (str(write_tiny_llama(tmp_path / name, seed=at)) for at, name in enumerate("ab"))
    engine.models = [Model(), Model()]
    both = replace(asked, target=two, baseline=one, tokenizer=None, speculative=True)
    run_gate(both, Silent())
    with serve(Model()) as target, serve(Model()) as base:
        run_gate(replace(asked, target=target.url, baseline=base.url, speculative=True), Silent())
    assert [plan.checks.other_kernels for plan in plans] == [False, False, False, True]


def test_speculation_without_counters_is_unknown(asked: GateRequest) -> None:
    with serve(Model()) as target, serve(Model()) as base:
        found = run_gate(
            replace(asked, target=target.url, baseline=base.url, speculative=True), Silent()
        )
    assert found.verdict == "unknown"
    assert "no counters" in (found.reason or "")


def lm_eval(monkeypatch: pytest.MonkeyPatch, **runs: HarnessRun) -> None:
    """lm-eval as it were installed, with these runs by side."""
    monkeypatch.setattr(flow_gate, "require_harness", lambda _plan: None)
    monkeypatch.setattr(flow_gate, "run_harness", lambda _url, _model, plan: runs[plan.variant])


def test_a_task_of_lm_eval_that_fell_fails_and_is_kept_in_pairs(
    asked: GateRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, before = shares(lost=12, gained=0, both=40)
    lm_eval(monkeypatch, baseline=before, target=now)
    request = kept(asked, tmp_path / "kept", harness=HarnessRequest(tasks=("t",)))
    with serve(Model()) as target:
        found = run_gate(replace(request, target=target.url), Silent())
    assert found.record.verdicts == ((0.01, "pass"),)
    assert found.verdict == "fail"
    assert (found.reason or "").startswith("lm-eval: t acc: 12 answers lost and 0 gained")
    [score] = found.harness_scores
    assert score.pairs == 52


def test_a_task_of_lm_eval_that_cannot_be_paired_is_no_pass(
    asked: GateRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = harness_run([sample(0, 1.0)])
    now = harness_run([sample(0, 1.0, prompt_hash="other")])
    lm_eval(monkeypatch, baseline=before, target=now)
    with serve(Model()) as target, serve(Model()) as base:
        request = replace(asked, target=target.url, baseline=base.url)
        found = run_gate(replace(request, harness=HarnessRequest(tasks=("t",))), Silent())
    assert found.verdict == "unknown"
    assert "no document with the same prompt" in (found.reason or "")


def test_a_kept_baseline_without_lm_eval_is_told_before_anything_is_asked(
    asked: GateRequest, tmp_path: Path
) -> None:
    request = replace(kept(asked, tmp_path / "kept"), harness=HarnessRequest(tasks=("t",)))
    with serve(Model()) as target:
        with pytest.raises(UsageError, match="save the baseline again with the same --lm-eval"):
            run_gate(replace(request, target=target.url), Silent())
        assert not target.asked
