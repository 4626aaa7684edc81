"""The whole way: what is written, what is refused, and what a killed run leaves."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoint_factory import write_tiny_llama
from whet.checkpoint import read_facts
from whet.core.errors import QuantizationError, StorageError, UsageError, WhetError
from whet.core.records.quant import QuantizedCheckpoint, UnitError
from whet.core.spec import RecipeSpec
from whet.core.staging import remove_stale, require_space
from whet.quant import gptq, load_calibration, quantize, quantize_many
from whet.quant.mixed import UnitCost, choose_units

LINEARS = 2 * 7


@pytest.fixture(scope="module")
def written(
    source: Path, calibration: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, QuantizedCheckpoint]:
    out = tmp_path_factory.mktemp("out") / "awq"
    recipe = RecipeSpec.model_validate(
        {"method": "awq", "group_size": 64, "calibration": {"samples": 24, "max_tokens": 48}}
    )
    return out, quantize(source, out, recipe, calibration=calibration)


def test_awq_beats_rounding_on_every_unit_and_says_so(
    written: tuple[Path, QuantizedCheckpoint],
) -> None:
    _, done = written
    assert [unit.unit for unit in done.units] == [
        f"layers.{index}.{name}" for index in (0, 1) for name in ("qkv", "o", "gate_up", "down")
    ]
    assert all(0 < unit.error < unit.rtn_error for unit in done.units)


def test_the_checkpoint_is_what_the_facts_say(
    source: Path, written: tuple[Path, QuantizedCheckpoint]
) -> None:
    out, done = written
    facts = read_facts(out)
    assert (facts.stored.scheme, facts.stored.group_size) == ("W4A16", 64)
    assert facts.stored.quantized_modules == LINEARS
    assert facts.weights_sha256 == done.weights_sha256
    assert facts.parameters == read_facts(source).parameters
    # 4 bits, a float16 scale for 64 weights, and 16 bytes of shape a layer.
    weights = 2 * (128 * (128 + 64 + 64 + 128) + 3 * 128 * 256)
    assert done.bits_per_weight == pytest.approx(4.25 + LINEARS * 128 / weights)
    assert [path for path in out.parent.iterdir() if path != out] == []


def test_files_beside_the_weights_are_byte_identical(
    source: Path, written: tuple[Path, QuantizedCheckpoint]
) -> None:
    out, _ = written
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    config = json.loads((out / "config.json").read_text())
    assert config.pop("quantization_config")["format"] == "pack-quantized"
    assert config == json.loads((source / "config.json").read_text())


@torch.no_grad()
def test_transformers_loads_it_and_it_answers_closer_than_rounding_does(
    source: Path, calibration: Path, written: tuple[Path, QuantizedCheckpoint], tmp_path: Path
) -> None:
    """The library's own loader decompresses both; a fold gone wrong would not be closer."""
    from transformers import AutoModelForCausalLM

    nearest = tmp_path / "rtn"
    recipe = RecipeSpec(method="rtn", group_size=64)
    quantize(source, nearest, recipe, calibration=calibration)
    sample = load_calibration(calibration, source, samples=40, max_tokens=200, seed=0).ids[1]
    whole, awq, rtn = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(
            torch.tensor([sample])
        ).logits
        for folder in (source, written[0], nearest)
    )
    assert (awq - whole).square().mean() < 0.8 * (rtn - whole).square().mean()


def test_an_identical_finished_checkpoint_is_used_again(
    source: Path, calibration: Path, recipe: RecipeSpec, written: tuple[Path, QuantizedCheckpoint]
) -> None:
    out, done = written
    before = (out / "model.safetensors").stat().st_mtime_ns
    assert quantize(source, out, recipe, calibration=calibration) == done
    assert (out / "model.safetensors").stat().st_mtime_ns == before
    other = recipe.model_copy(update={"group_size": 32})
    with pytest.raises(QuantizationError, match="another recipe"):
        quantize(source, out, other, calibration=calibration)


def test_a_foreign_folder_is_never_overwritten(
    source: Path, calibration: Path, recipe: RecipeSpec, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(QuantizationError, match="not a finished whet checkpoint"):
        quantize(source, tmp_path, recipe, calibration=calibration)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_rtn_needs_no_calibration_pass(source: Path, calibration: Path, tmp_path: Path) -> None:
    done = quantize(
        source,
        tmp_path / "rtn",
        RecipeSpec(method="rtn", group_size=32),
        calibration=calibration,
    )
    assert (done.method, done.units, done.calibration) == ("rtn", (), None)
    tensors = load_file(tmp_path / "rtn" / "model.safetensors")
    plain = load_file(source / "model.safetensors")
    name = "model.layers.1.input_layernorm.weight"
    assert torch.equal(tensors[name], plain[name])


def test_zero_rows_zero_groups_and_a_dead_norm_channel_survive(
    calibration: Path, recipe: RecipeSpec, tmp_path: Path
) -> None:
    folder = write_tiny_llama(tmp_path / "degenerate")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][:40] = 0
    tensors["model.layers.0.self_attn.q_proj.weight"][:, :64] = 0
    tensors["model.layers.1.input_layernorm.weight"][5] = 0
    tensors["model.layers.1.mlp.down_proj.weight"].zero_()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    done = quantize(folder, tmp_path / "out", recipe, calibration=calibration)
    assert all(unit.error <= unit.rtn_error * 1.01 for unit in done.units)
    assert done.units[-1].error == 0


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("nan", QuantizationError, "layers.1.down is not finite"),
        ("mamba", QuantizationError, "does not know which layer precedes its linears; use"),
        ("shape", QuantizationError, "not a multiple of the group size 128"),
        ("quantized", QuantizationError, "already quantized"),
        ("device", UsageError, "not available here|unknown device"),
        ("text", UsageError, "is empty; give a file with at least one request"),
    ],
)
def test_a_fault_is_one_sentence_and_leaves_nothing(
    fault: str,
    *,
    error: type[WhetError],
    words: str,
    written: tuple[Path, QuantizedCheckpoint],
    calibration: Path,
    recipe: RecipeSpec,
    tmp_path: Path,
) -> None:
    changes = {"shape": {"intermediate_size": 192}, "mamba": {"model_type": "mamba"}}
    folder = write_tiny_llama(tmp_path / "in" / "source", **changes.get(fault, {}))
    if fault == "nan":
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.1.mlp.down_proj.weight"][3, 3] = float("nan")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if fault == "shape":
        recipe = recipe.model_copy(update={"group_size": 128})
    if fault == "text":
        calibration = tmp_path / "in" / "empty.jsonl"
        calibration.write_text("\n")
    device = "tpu" if fault == "device" else None
    folder = written[0] if fault == "quantized" else folder
    with pytest.raises(error, match=words):
        quantize(folder, tmp_path / "runs" / "out", recipe, calibration=calibration, device=device)
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


CHILD = """
import sys, time
from pathlib import Path
from typing import Any
from whet.core.spec import RecipeSpec
from whet.quant import quantize
def pause(done, total):
    if done == 1:
        print("paused", flush=True)
        time.sleep(60)
source, out, calibration = map(Path, sys.argv[1:])
recipe = RecipeSpec(method="rtn", group_size=64)
quantize(source, out, recipe, calibration=calibration, progress=pause)
"""


def test_a_killed_run_leaves_nothing_under_its_name_and_the_next_one_cleans_up(
    source: Path, calibration: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", CHILD, str(source), str(out), str(calibration)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "paused\n"
    assert [path.name for path in tmp_path.iterdir()] == [f".out.{process.pid}.part"]
    remove_stale(out)
    assert len(list(tmp_path.iterdir())) == 1, "a running process keeps its staging folder"
    process.kill()
    process.communicate()
    assert not out.exists()
    quantize(source, out, RecipeSpec(method="rtn", group_size=64), calibration=calibration)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(
    source: Path, calibration: Path, tmp_path: Path
) -> None:
    """A file-size limit stands in for the disk: the library's own writer meets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError, match="free some space"):
            quantize(
                source,
                tmp_path / "out",
                RecipeSpec(method="rtn", group_size=64),
                calibration=calibration,
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="free some space"):
        require_space(tmp_path / "out", 10**18, "the checkpoint")


RECIPES: dict[str, dict[str, Any]] = {
    "gptq": {"method": "gptq"},
    "w8a16": {"scheme": "W8A16"},
    "int8": {"scheme": "W8A8"},
    "int8-gptq": {"scheme": "W8A8", "method": "gptq"},
    "fp8-dynamic": {"scheme": "FP8_DYNAMIC"},
    "fp8": {"scheme": "FP8", "kv_cache": "fp8"},
    "mixed": {"mixed": {"bits_per_weight": 7}},
}
STORED = {
    "w8a16": ("W8A16", 8.25),
    "int8": ("W8A8-INT8", 8.11),
    "fp8-dynamic": ("FP8", 8.11),
    "fp8": ("FP8", 8.0),
}


@pytest.fixture(scope="module")
def many(
    source: Path, calibration: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, QuantizedCheckpoint]:
    """Every scheme from one pass."""
    root = tmp_path_factory.mktemp("many")
    base = {"group_size": 64, "calibration": {"samples": 24, "max_tokens": 48}}
    wanted = {
        name: (root / name, RecipeSpec.model_validate({**base, **recipe}))
        for name, recipe in RECIPES.items()
    }
    outcomes = quantize_many(source, wanted, calibration=calibration)
    made = {name: done for name, done in outcomes.items() if isinstance(done, QuantizedCheckpoint)}
    assert made.keys() == outcomes.keys(), outcomes
    return made


@pytest.mark.parametrize("name", RECIPES)
@torch.no_grad()
def test_transformers_loads_every_scheme_and_it_answers_like_the_source(
    name: str, source: Path, calibration: Path, many: dict[str, QuantizedCheckpoint]
) -> None:
    from transformers import AutoModelForCausalLM

    sample = load_calibration(calibration, source, samples=40, max_tokens=200, seed=0).ids[1]
    ids = torch.tensor([sample])
    whole, made = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
        for folder in (source, many[name].path)
    )
    distance = float((made - whole).square().mean() / whole.square().mean())
    assert distance < 0.3  # rounding to nearest is at 0.35; a wrong fold is beyond 1


@pytest.mark.parametrize("name", STORED)
def test_the_stored_scheme_is_read_from_the_tensors(
    name: str, many: dict[str, QuantizedCheckpoint]
) -> None:
    facts = read_facts(Path(many[name].path))
    scheme, bits = STORED[name]
    assert facts.stored.scheme == scheme
    assert many[name].bits_per_weight == pytest.approx(bits, abs=0.25)


def test_error_feedback_beats_scaling_which_beats_rounding(
    written: tuple[Path, QuantizedCheckpoint], many: dict[str, QuantizedCheckpoint]
) -> None:
    awq = [unit.error for unit in written[1].units]
    gptq = [unit.error for unit in many["gptq"].units]
    assert sum(gptq) < 0.8 * sum(awq)
    assert all(unit.error < unit.rtn_error for unit in many["gptq"].units)


def test_one_pass_writes_what_a_pass_of_its_own_writes(
    source: Path, calibration: Path, many: dict[str, QuantizedCheckpoint], tmp_path: Path
) -> None:
    recipe = RecipeSpec.model_validate(
        {"group_size": 64, "calibration": {"samples": 24, "max_tokens": 48}, **RECIPES["gptq"]}
    )
    alone = quantize(source, tmp_path / "gptq", recipe, calibration=calibration)
    assert alone.weights_sha256 == many["gptq"].weights_sha256


def test_a_budget_of_bits_is_kept_and_the_worst_units_get_them(
    many: dict[str, QuantizedCheckpoint],
) -> None:
    done = many["mixed"]
    assert 4.6 < done.bits_per_weight <= 7
    kept = [unit for unit in done.units if unit.kept]
    assert kept
    assert all(unit.error == unit.wide_error for unit in kept)
    assert all(unit.layer_error is not None for unit in done.units)


def test_the_budget_goes_to_the_unit_that_changes_its_layers_output_most() -> None:
    """The other unit has the larger error relative to its own output, which is lost in the sum."""
    costs = [
        UnitCost(
            error=UnitError(
                unit=name,
                error=error,
                rtn_error=error,
                ratio=None,
                weights=100,
                wide_error=0.0,
                layer_error=layer_error,
            ),
            bits=400,
        )
        for name, error, layer_error in (("quiet", 0.02, 1e-5), ("loud", 0.001, 1e-3))
    ]
    assert choose_units(costs, 10) == {"loud"}


def test_cache_scales_are_those_of_the_keys_and_values(
    many: dict[str, QuantizedCheckpoint],
) -> None:
    tensors = load_file(Path(many["fp8"].path) / "model.safetensors")
    for layer in (0, 1):
        for name in ("k_scale", "v_scale"):
            scale = tensors[f"model.layers.{layer}.self_attn.{name}"]
            assert scale.shape == (1,)
            assert 0 < float(scale) < 1
    config = json.loads((Path(many["fp8"].path) / "config.json").read_text())
    assert config["quantization_config"]["kv_cache_scheme"]["num_bits"] == 8


def test_a_budget_below_the_scheme_is_refused_and_stops_no_other(
    source: Path, calibration: Path, tmp_path: Path
) -> None:
    base = {"group_size": 64, "calibration": {"samples": 4, "max_tokens": 48}}
    wanted = {
        "low": (
            tmp_path / "low",
            RecipeSpec.model_validate({**base, "mixed": {"bits_per_weight": 4.1}}),
        ),
        "rtn": (tmp_path / "rtn", RecipeSpec.model_validate({**base, "method": "rtn"})),
    }
    outcomes = quantize_many(source, wanted, calibration=calibration)
    assert isinstance(outcomes["low"], QuantizationError)
    assert "raise the budget" in str(outcomes["low"])
    assert isinstance(outcomes["rtn"], QuantizedCheckpoint)
    assert [path.name for path in tmp_path.iterdir()] == ["rtn"]


def test_feedback_that_helps_no_layer_is_said(
    source: Path, calibration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken factor is caught by the guard of each row, which leaves a rounded checkpoint."""
    recipe = RecipeSpec.model_validate(
        {"method": "gptq", "group_size": 64, "calibration": {"samples": 24, "max_tokens": 48}}
    )
    sound = quantize(source, tmp_path / "sound", recipe, calibration=calibration)
    assert sound.warnings == ()
    dice = torch.Generator().manual_seed(0)  # some factors help by chance

    def random_factor(gram: torch.Tensor, _order: torch.Tensor) -> torch.Tensor:
        return torch.randn(gram.shape, generator=dice).tril()

    monkeypatch.setattr(gptq, "reversed_factor", random_factor)
    broken = quantize(source, tmp_path / "broken", recipe, calibration=calibration)
    (sentence,) = broken.warnings
    assert "gptq brought no layer nearer" in sentence
    assert "--device cpu" in sentence
