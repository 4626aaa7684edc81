"""Quantized checkpoints without a recipe: as the target, and as the weights of a variant."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.stage import FakeEngine, prepared, recorder, tiny_spec
from tests.model_hub import Model, model_hub
from whet.checkpoint import read_facts
from whet.core.errors import InfeasibleError, UsageError
from whet.core.records.engine import ResolvedEngine
from whet.core.records.evidence import EngineFacts
from whet.core.records.plan import Problem
from whet.core.run import Run
from whet.core.spec import RecipeSpec, Spec, parse_spec
from whet.core.store import RunStore
from whet.demo import pair_paths
from whet.engines.vllm.log import read_log
from whet.flow.run.check.check import Checked, check_spec
from whet.flow.run.check.checkpoints import Checkpoints, stored_commits
from whet.flow.run.pipeline import run
from whet.levers import claims, judge_start, labels
from whet.quant import quantize
from whet.report.run import quality


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundled target as it is, in 4 bits and in FP8."""
    folder = tmp_path_factory.mktemp("made")
    text = folder / "text.jsonl"
    text.write_text('{"text": "not read"}\n')
    source, _ = pair_paths()
    recipes = {
        "w4": RecipeSpec(method="rtn", scheme="W4A16", group_size=32),
        "fp8": RecipeSpec(method="rtn", scheme="FP8_DYNAMIC"),
    }
    for name, recipe in recipes.items():
        quantize(source, folder / name, recipe, calibration=text)
    return {"16bit": source, **{name: folder / name for name in recipes}}


def spec_of(folder: Path, target: Path, **change: Any) -> Spec:
    base = {"recipes": {}, "variants": {"stored": {}}, "baseline": "stored"}
    return tiny_spec(folder, **{**base, "model": {"target": str(target)}, **change})


def check(folder: Path, spec: Spec) -> Checked:
    return check_spec(
        spec, folder / "run", Checkpoints(folder / "scratch", {}), engines=FakeEngine()
    )


def only(folder: Path, spec: Spec) -> Problem:
    (problem,) = check(folder, spec).problems
    return problem


@pytest.mark.parametrize(("form", "scheme"), [("w4", "W4A16"), ("fp8", "FP8")])
def test_a_quantized_target_is_measured_as_stored(
    tmp_path: Path, made: dict[str, Path], form: str, scheme: str
) -> None:
    variants = {"stored": {"weights": "as_stored"}, "kv": {"args": {"kv_cache_dtype": "fp8"}}}
    checked = check(tmp_path, spec_of(tmp_path, made[form], variants=variants))
    assert checked.problems == ()
    for item in checked.resolved.variants:
        assert (item.variant.weights, item.variant.scheme) == ("16bit", scheme)
        assert f"weights=as stored ({scheme})" in labels(item.variant)
        (claim,) = (each for each in claims(item) if each.kind == "weights")
        assert claim.statement == f"{scheme} weights run on a kernel made for them"


def test_the_two_spellings_are_one(tmp_path: Path) -> None:
    one, two = (
        parse_spec(
            {
                "name": "x",
                "model": {"target": "./t"},
                "hardware": {"price_usd_per_hour": 1.0},
                "variants": {"fp16": {"weights": word}},
            },
            base=tmp_path,
        )
        for word in ("16bit", "as_stored")
    )
    assert one == two


def test_a_recipe_of_a_quantized_target_is_refused(tmp_path: Path, made: dict[str, Path]) -> None:
    variants = {"stored": {}, "w8": {"weights": "fp8"}}
    spec = spec_of(
        tmp_path, made["w4"], recipes={"fp8": {"scheme": "FP8_DYNAMIC"}}, variants=variants
    )
    problem = only(tmp_path, spec)
    assert (problem.variant, problem.kind) == ("w8", "recipe")
    assert problem.message == (
        "recipes.fp8: the model is quantized already, and recipes need 16-bit weights; give the "
        "16-bit checkpoint that it was made of, or leave the recipe out and serve it as stored"
    )
    with RunStore.open(tmp_path / "run") as store:
        job = prepared(spec, store)
    assert [each.variant.name for each in job.resolved] == ["stored"]


@pytest.mark.parametrize("form", ["w4", "fp8"])
def test_downloaded_weights_of_a_16_bit_target(
    tmp_path: Path, made: dict[str, Path], form: str
) -> None:
    shutil.copytree(made[form], tmp_path / "own-AWQ")
    variants = {"stored": {}, "own": {"weights": "./own-AWQ"}}
    spec = spec_of(tmp_path, made["16bit"], variants=variants)
    assert spec.variants["own"].weights == str(tmp_path / "own-AWQ")
    checked = check(tmp_path, spec)
    assert checked.problems == ()
    own = checked.resolved.variants[1].variant
    assert own.model_path == str(tmp_path / "own-AWQ")
    assert own.scheme == read_facts(made[form]).stored.scheme
    assert "weights=own-AWQ" in labels(own)
    with RunStore.open(tmp_path / "run") as store:
        prepared(spec, store)
    stored = Run.read(tmp_path / "run").models["weights-own"]
    assert stored.weights_sha256 == read_facts(made[form]).weights_sha256


def test_downloaded_weights_that_changed_cannot_be_resumed(
    tmp_path: Path, made: dict[str, Path]
) -> None:
    shutil.copytree(made["w4"], tmp_path / "own")
    spec = spec_of(tmp_path, made["16bit"], variants={"stored": {}, "own": {"weights": "./own"}})
    with RunStore.open(tmp_path / "run") as store:
        prepared(spec, store)
    shutil.rmtree(tmp_path / "own")
    shutil.copytree(made["fp8"], tmp_path / "own")
    with (
        RunStore.open(tmp_path / "run", resume=True) as store,
        pytest.raises(UsageError, match="the weights-own's weights changed"),
    ):
        prepared(spec, store)


def test_weights_of_another_model(tmp_path: Path, made: dict[str, Path]) -> None:
    write_tiny_llama(tmp_path / "other")
    variants = {"stored": {}, "own": {"weights": "./other"}}
    problem = only(tmp_path, spec_of(tmp_path, made["w4"], variants=variants))
    assert (problem.variant, problem.kind) == ("own", "tokenizer")
    assert "in the target and" in problem.message
    assert problem.message.endswith("with the target's tokenizer files")


def test_weights_with_another_chat_template(tmp_path: Path, made: dict[str, Path]) -> None:
    shutil.copytree(made["w4"], tmp_path / "own")
    (tmp_path / "own" / "chat_template.jinja").write_text("{{ messages }}")
    variants = {"stored": {}, "own": {"weights": "./own"}}
    problem = only(tmp_path, spec_of(tmp_path, made["16bit"], variants=variants))
    assert (problem.variant, problem.kind) == ("own", "tokenizer")
    assert problem.message.startswith("the target and the own checkpoint have different chat")


def test_weights_that_cannot_be_read_concern_their_variant_alone(
    tmp_path: Path, made: dict[str, Path]
) -> None:
    variants = {"stored": {}, "own": {"weights": "./nothing"}}
    spec = spec_of(tmp_path, made["16bit"], variants=variants)
    problem = only(tmp_path, spec)
    assert (problem.variant, problem.kind) == ("own", "weights")
    with RunStore.open(tmp_path / "run") as store:
        with pytest.raises(InfeasibleError, match="no checkpoint folder at"):
            prepared(spec, store)
        job = prepared(spec, store, skip=True)
    assert [each.variant.name for each in job.resolved] == ["stored"]


def test_a_name_that_is_neither_a_recipe_nor_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not a recipe; add it to recipes, or name a folder"):
        spec_of(tmp_path, tmp_path, variants={"stored": {}, "own": {"weights": "mine"}})


def test_weights_on_the_hub_are_downloaded_and_pinned(
    tmp_path: Path, made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = {"stored": {}, "own": {"weights": "owner/name-W4"}}
    with model_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.models["owner/name-W4"] = Model(made["w4"])
        spec = spec_of(tmp_path, made["16bit"], variants=variants)
        checked = check(tmp_path, spec)
        assert checked.problems == ()
        assert hub.sent["model.safetensors"] < 200_000, "headers only"
        assert checked.resolved.variants[1].variant.weights_label == "owner/name-W4"
        with RunStore.open(tmp_path / "run") as store:
            job = prepared(spec, store)
            commits = stored_commits(store)
        served = Path(job.resolved[1].variant.model_path)
        assert read_facts(served).weights_sha256 == read_facts(made["w4"]).weights_sha256
        assert commits == {"owner/name-W4": hub.models["owner/name-W4"].commit}


def test_the_report_names_the_baseline(tmp_path: Path, made: dict[str, Path]) -> None:
    variants = {"stored": {}, "cache": {"prefix_cache": True}}
    spec = spec_of(tmp_path, made["fp8"], variants=variants)
    with RunStore.open(tmp_path / "run") as store:
        run(spec, recorder(store), engines=FakeEngine())
    done = Run.read(tmp_path / "run")
    section = quality.build(done)
    assert section is not None
    words = "Compared with the model as stored (FP8), not with 16 bit."
    assert words in str(section.nodes[0])


def facts(**change: Any) -> EngineFacts:
    """What a log of a model with eight quantized layers says."""
    return replace(read_log(""), quantized_layers=8, unquantized_layers=0, **change)


@pytest.mark.parametrize(
    ("kernel", "outcome"),
    [
        ("CutlassFP8ScaledMMLinearKernel for Fp8LinearMethod", "proved"),
        ("TritonFP8ScaledMMLinearKernel for Fp8LinearMethod", "contradicted"),
        ("CutlassFp8BlockScaledMMKernel for Fp8LinearMethod", "unproved"),
        ("MarlinLinearKernel for AutoAWQMarlinLinearMethod", "unproved"),
        (None, "unproved"),
    ],
)
def test_the_baseline_proves_the_kernel_of_its_stored_scheme(
    made: dict[str, Path], tmp_path: Path, kernel: str | None, outcome: str
) -> None:
    resolved = as_stored(tmp_path, made["fp8"])
    named = () if kernel is None else (kernel,)
    verdicts = judge_start(resolved, facts(weight_kernels=named))
    (verdict,) = (each for each in verdicts if each.claim.kind == "weights")
    assert (verdict.outcome, verdict.claim.statement) == (
        outcome,
        "FP8 weights run on a kernel made for them",
    )


@pytest.mark.parametrize(
    ("scheme", "line", "outcome"),
    [
        ("MXFP4", "Using 'TRITON' Mxfp4 MoE backend.", "proved"),
        ("MXFP4", "Using 'MARLIN' Mxfp4 MoE backend.", "proved"),
        ("MXFP4", "Using 'EMULATION' Mxfp4 MoE backend.", "contradicted"),
        (
            "MXFP4",
            "Using TRITON Unquantized MoE backend out of potential backends: [].",
            "unproved",
        ),
        ("FP8", "Using DEEPGEMM Fp8 MoE backend out of potential backends: ['TRITON'].", "proved"),
        (
            "FP8",
            "Using MARLIN Fp8 MoE backend out of potential backends: ['MARLIN'].",
            "contradicted",
        ),
    ],
)
def test_experts_in_few_bits_beside_attention_in_16(
    made: dict[str, Path], tmp_path: Path, scheme: str, line: str, outcome: str
) -> None:
    """gpt-oss: a layer has two linears in 16 bit, and experts that are nearly all its weights."""
    resolved = as_stored(tmp_path, made["fp8"])
    resolved = replace(resolved, variant=replace(resolved.variant, scheme=scheme))
    log = replace(read_log(f"INFO 11-21 02:08:15 [oracle.py:1] {line}\n"), quantized_layers=24)
    verdicts = judge_start(resolved, replace(log, unquantized_layers=48))
    assert next(x for x in verdicts if x.claim.kind == "weights").outcome == outcome


@pytest.mark.parametrize(
    ("kernel", "outcome"),
    [
        ("DeepGemmFp8BlockScaledMMKernel", "proved"),
        ("CutlassFp8BlockScaledMMKernel", "proved"),
        ("FlashInferFp8DeepGEMMDynamicBlockScaledKernel", "proved"),
        ("TritonFp8BlockScaledMMKernel", "contradicted"),
        ("MarlinFP8ScaledMMLinearKernel", "contradicted"),
        ("CPUFp8BlockScaledMMKernel", "contradicted"),
        ("CutlassFP8ScaledMMLinearKernel", "unproved"),
    ],
)
def test_blocks_of_fp8_need_a_kernel_for_blocks(
    made: dict[str, Path], tmp_path: Path, kernel: str, outcome: str
) -> None:
    """The lines of 0.32 for compressed-tensors, and DeepSeek's own form."""
    resolved = as_stored(tmp_path, made["fp8"])
    resolved = replace(resolved, variant=replace(resolved.variant, scheme="FP8_BLOCK"))
    for method in ("CompressedTensorsW8A8Fp8", "Fp8LinearMethod"):
        log = read_log(f"INFO 11-25 02:08:15 [__init__.py:759] Selected {kernel} for {method}\n")
        found = replace(log, quantized_layers=48, unquantized_layers=0)
        verdict = next(x for x in judge_start(resolved, found) if x.claim.kind == "weights")
        assert verdict.outcome == outcome, verdict.observed


NO_FP4 = (
    "WARNING 11-25 02:08:15 [marlin.py:34] Your GPU does not have native support for FP4 "
    "computation but FP4 quantization is being used. Weight-only FP4 compression will be used "
    "leveraging the Marlin kernel. This may degrade performance for compute-heavy workloads.\n"
)


@pytest.mark.parametrize(
    ("scheme", "kernel", "outcome", "words"),
    [
        ("NVFP4", "MarlinNvFp4LinearKernel for NVFP4", "contradicted", "stay in 16 bit: Marlin"),
        ("NVFP4", "CutlassNvFp4LinearKernel for NVFP4", "proved", "CutlassNvFp4LinearKernel"),
        ("NVFP4", "EmulationNvFp4LinearKernel for NVFP4", "contradicted", "a fallback kernel"),
        ("NVFP4A16", "MarlinNvFp4LinearKernel for NVFP4", "proved", "MarlinNvFp4LinearKernel"),
        ("NVFP4A16", "EmulationNvFp4LinearKernel for NVFP4", "contradicted", "a fallback kernel"),
        ("MXFP4-W4A4", "MarlinMxFp4LinearKernel for MXFP4", "contradicted", "quantizes weights"),
        ("MXFP4", "MarlinMxFp4LinearKernel for MXFP4", "proved", "MarlinMxFp4LinearKernel"),
    ],
)
def test_four_bit_floats_on_hopper_are_weights_only(
    made: dict[str, Path], tmp_path: Path, scheme: str, kernel: str, outcome: str, words: str
) -> None:
    """The lines of 0.33: a kernel, and on Marlin what the GPU lacks."""
    resolved = as_stored(tmp_path, made["fp8"])
    resolved = replace(resolved, variant=replace(resolved.variant, scheme=scheme))
    notice = NO_FP4 if kernel.startswith("MarlinNv") else ""
    log = read_log(f"INFO 11-25 02:08:15 [__init__.py:1259] Using {kernel} GEMM\n{notice}")
    facts = replace(log, quantized_layers=48, unquantized_layers=0)
    verdict = next(x for x in judge_start(resolved, facts) if x.claim.kind == "weights")
    assert (verdict.outcome, words in verdict.observed) == (outcome, True)
    both = "weights and 4-bit activations run"
    assert (both in verdict.claim.statement) == (scheme in ("NVFP4", "MXFP4-W4A4"))


def test_an_as_stored_model_that_is_loaded_unquantized_is_contradicted(
    made: dict[str, Path], tmp_path: Path
) -> None:
    plain = replace(facts(), quantized_layers=0, unquantized_layers=8)
    verdicts = judge_start(as_stored(tmp_path, made["fp8"]), plain)
    assert next(x for x in verdicts if x.claim.kind == "weights").outcome == "contradicted"


def as_stored(folder: Path, target: Path) -> ResolvedEngine:
    return check(folder, spec_of(folder, target)).resolved.variants[0]


def test_a_target_whose_config_hides_its_form_is_still_refused(
    tmp_path: Path, made: dict[str, Path]
) -> None:
    shutil.copytree(made["fp8"], tmp_path / "hidden")
    file = tmp_path / "hidden" / "config.json"
    config = json.loads(file.read_text())
    del config["quantization_config"]
    file.write_text(json.dumps(config))
    spec = spec_of(tmp_path, tmp_path / "hidden")
    with pytest.raises(Exception, match="no quantization_config"):
        check(tmp_path, spec)
