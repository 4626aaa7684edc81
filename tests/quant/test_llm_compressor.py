"""llm-compressor as the writer: what is asked of it, what is refused, what is taken over."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from tests.checkpoint_factory import tiny_config, write_hollow, write_tokenizer
from tests.zoo.models import write_model
from whet.checkpoint import read_facts
from whet.core.errors import Interrupted, QuantizationError, UsageError
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.spec import RecipeSpec
from whet.demo import pair_paths
from whet.quant import load_calibration, quantize, quantize_many
from whet.quant.llm_compressor.write import VARIABLE, find_llm_compressor
from whet.quant.suitability import recipe_problem

TEXT = {"samples": 6, "max_tokens": 40}
MAKES_ONE = "pip install llmcompressor==0.14.0 && export WHET_LLM_COMPRESSOR="
Mode = Callable[[str], None]


def nvfp4(**change: object) -> RecipeSpec:
    return RecipeSpec.model_validate({"scheme": "NVFP4", "calibration": TEXT, **change})


@pytest.fixture
def mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mode:
    """An environment with a stand-in of llm-compressor, and a way to make it fail."""
    script = Path(__file__).with_name("llm_compressor_standin.py")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(python))
    return lambda name: monkeypatch.setenv("STAND_IN", name)


@pytest.fixture
def model(source: Path, tmp_path: Path) -> Path:
    return shutil.copytree(source, tmp_path / "model")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"scheme": "NVFP4", "writer": "whet"}, "NVFP4 is written by llm-compressor"),
        ({"scheme": "NVFP4", "method": "smoothquant"}, "NVFP4 is made by rtn, gptq, awq"),
        (
            {"scheme": "MXFP4", "kv_cache": "fp8"},
            "llm-compressor, which writes this recipe, makes no kv_cache",
        ),
        ({"writer": "llm-compressor", "mixed": {"bits_per_weight": 5}}, "makes no mixed"),
        ({"writer": "llm-compressor", "clip": False}, "makes no clip: false"),
        ({"writer": "llm-compressor", "scheme": "W4A8_FP8"}, "makes no W4A8_FP8"),
        ({"writer": "gptqmodel"}, "Input should be 'whet', 'llm-compressor' or 'llama.cpp'"),
    ],
)
def test_recipes_that_it_does_not_write(recipe: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RecipeSpec.model_validate(recipe)


def test_a_scheme_implies_its_writer() -> None:
    assert RecipeSpec().writer == "whet"
    assert RecipeSpec(scheme="NVFP4").title == "rtn NVFP4, by llm-compressor"
    stored = {name: RecipeSpec(scheme=name).stored_scheme for name in ("MXFP4", "MXFP4A16")}
    assert stored == {"MXFP4": "MXFP4-W4A4", "MXFP4A16": "MXFP4"}


def test_an_environment_that_is_missing_is_named_with_what_makes_it(
    mode: Mode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, message in (
        ("none", r"python, which WHET_LLM_COMPRESSOR names, has llm-compressor \(none\)"),
        ("old", "has llm-compressor 0.13.2, and 0.14 or later is needed"),
    ):
        mode(name)
        with pytest.raises(UsageError, match=message) as caught:
            find_llm_compressor()
        assert MAKES_ONE in str(caught.value)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(UsageError, match=r"cannot be started \(No such file"):
        find_llm_compressor()
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(UsageError, match="does not name the Python of one") as caught:
        find_llm_compressor()
    assert MAKES_ONE in str(caught.value)


def test_without_an_environment_nothing_is_quantized(
    model: Path, calibration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    recipes = {
        "own": (tmp_path / "own", RecipeSpec(method="rtn", group_size=32)),
        "other": (tmp_path / "other", nvfp4()),
    }
    with pytest.raises(UsageError, match=VARIABLE):
        quantize_many(model, recipes, calibration=calibration)
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fail", r"llm-compressor 0\.14\.0 failed: ValueError: no such modifier \(its log: "),
        ("killed", "failed: it was ended by SIGKILL; memory may have run out"),
        ("nan", "weight_global_scale holds a value that is not finite"),
        ("plain", "llm-compressor quantized no layer of this architecture"),
        ("half", "misread: config.json: every linear layer is said to be quantized, but model"),
        ("lost", r"llm-compressor wrote [\d,]+ parameters of "),
    ],
)
def test_a_failure_is_one_sentence_and_leaves_no_folder(
    mode: Mode, model: Path, calibration: Path, tmp_path: Path, name: str, message: str
) -> None:
    mode(name)
    with pytest.raises(QuantizationError, match=message) as caught:
        quantize(model, tmp_path / "out", nvfp4(), calibration=calibration)
    assert "\n" not in str(caught.value)
    assert [each.name for each in tmp_path.glob("*out*") if each.is_dir()] == []


def test_another_scheme_than_the_recipes_is_refused(
    mode: Mode, model: Path, calibration: Path, tmp_path: Path
) -> None:
    recipe = RecipeSpec(scheme="MXFP4A16")
    with pytest.raises(QuantizationError, match="stored NVFP4, and the recipe is MXFP4"):
        quantize(model, tmp_path / "out", recipe, calibration=calibration)


def test_it_ends_with_us(
    mode: Mode,
    model: Path,
    calibration: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its children too, and the staged folder goes."""
    pids = tmp_path / "pids"
    monkeypatch.setenv("STAND_IN_PIDS", str(pids))
    mode("hang")

    def stop(step: int, total: int) -> None:
        if pids.exists() and pids.read_text().count(" "):
            assert (step, total) == (1, 3)
            raise Interrupted("Ctrl-C")

    with pytest.raises(Interrupted):
        quantize(model, tmp_path / "out", nvfp4(), calibration=calibration, progress=stop)
    psutil.wait_procs(
        [psutil.Process(int(pid)) for pid in pids.read_text().split() if _lives(int(pid))], 10
    )
    assert not any(_lives(int(pid)) for pid in pids.read_text().split())
    assert list(tmp_path.glob(".out.*.part")) == []


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_what_it_wrote_has_the_record_and_the_files_of_our_own(
    mode: Mode, model: Path, calibration: Path, tmp_path: Path
) -> None:
    mode("")
    out = tmp_path / "out"
    done = quantize(model, out, nvfp4(), calibration=calibration)
    assert (done.writer, done.scheme, done.method) == ("llm-compressor 0.14.0", "NVFP4", "rtn")
    assert read_facts(out).stored.scheme == "NVFP4"
    assert [(phase.name, phase.seconds) for phase in done.phases] == [
        ("import", 1.0), ("read", 2.0), ("fit", 3.0), ("write", 4.0),
    ]  # fmt: skip
    names = {each.name for each in model.iterdir()} | {"whet_quantization.json"}
    assert {each.name for each in out.iterdir()} == names
    config = json.loads((out / "config.json").read_text())
    assert config.pop("quantization_config")["format"] == "nvfp4-pack-quantized"
    assert config == json.loads((model / "config.json").read_text())
    assert (out / "model.safetensors").stat().st_mode & 0o044 == 0o044
    assert list(tmp_path.glob("*.log")) == []


def test_it_gets_the_token_ids_that_our_own_quantizer_draws(
    mode: Mode, model: Path, calibration: Path, tmp_path: Path
) -> None:
    done = quantize(model, tmp_path / "out", nvfp4(), calibration=calibration)
    drawn = load_calibration(calibration, model, samples=6, max_tokens=40, seed=0)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["ids"] == [list(each) for each in drawn.ids]
    assert done.calibration == drawn.facts
    assert (seen["scheme"], seen["method"], seen["group_size"]) == ("NVFP4", "rtn", None)


def test_a_finished_one_is_used_again_without_the_environment(
    mode: Mode,
    model: Path,
    calibration: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    done = quantize(model, out, nvfp4(), calibration=calibration)
    monkeypatch.delenv(VARIABLE)
    assert quantize(model, out, nvfp4(), calibration=calibration) == done
    with pytest.raises(QuantizationError, match="another recipe"):
        quantize(model, out, nvfp4(method="gptq"), calibration=calibration)


def test_what_whet_refuses_and_what_no_group_divides(tmp_path: Path) -> None:
    """Experts in one tensor are left to llm-compressor; 264 inputs are no groups of 16."""
    config = tiny_config(write_tokenizer(tmp_path / "odd")) | {"intermediate_size": 264}
    odd = write_hollow(tmp_path / "odd", config)
    assert "has 264 inputs, not a multiple of the group size 16" in str(
        recipe_problem(odd, nvfp4())
    )
    model = write_model("Qwen3.5-35B-A3B", tmp_path)
    refusal = str(recipe_problem(model, RecipeSpec(method="rtn")))
    assert "set writer: llm-compressor in the recipe" in refusal
    assert recipe_problem(model, RecipeSpec(method="rtn", writer="llm-compressor")) is None


REAL = os.environ.get(VARIABLE)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from whet.data import write_inputs

    folder = tmp_path_factory.mktemp("text")
    write_inputs(folder)
    return folder / "calibration.jsonl"


@pytest.mark.full
@pytest.mark.skipif(not REAL, reason=f"{VARIABLE} does not name an environment of llm-compressor")
@pytest.mark.parametrize(
    ("recipe", "bits"),
    [
        ({"scheme": "NVFP4"}, 4.5),
        ({"scheme": "NVFP4A16"}, 4.5),
        ({"scheme": "MXFP4"}, 4.25),
        ({"scheme": "MXFP4A16", "method": "gptq"}, 4.25),
        ({"method": "awq", "writer": "llm-compressor"}, 4.125),
    ],
)
def test_the_demo_target_by_the_real_one(
    text: Path, tmp_path: Path, recipe: dict[str, str], bits: float
) -> None:
    spec = RecipeSpec.model_validate({**recipe, "calibration": {"samples": 16, "max_tokens": 64}})
    done: QuantizedCheckpoint = quantize(
        pair_paths()[0], tmp_path / "out", spec, calibration=text, device="cpu"
    )
    assert done.writer.startswith("llm-compressor 0.")
    assert done.bits_per_weight == pytest.approx(bits, abs=0.02)
    assert read_facts(tmp_path / "out").stored.unquantized_modules == 0
