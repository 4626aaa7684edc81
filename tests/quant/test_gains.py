"""A stored scale that is off is found, and what methods do to weights is not taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint_factory import write_tiny_llama
from whet.core.spec import CalibrationSpec, RecipeSpec
from whet.demo.faults import scale_layer
from whet.quant import quantize
from whet.quant.gains import find_gains, gain_problem

FEW = CalibrationSpec(samples=8, max_tokens=32)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "four"
    return write_tiny_llama(folder, num_hidden_layers=4)


@pytest.mark.parametrize(
    ("method", "scheme"),
    [("awq", "W4A16"), ("gptq", "W4A16_ASYM"), ("smoothquant", "W8A8"), ("rtn", "FP8_DYNAMIC")],
)
def test_a_layers_scale_off_by_5_percent(
    four: Path, calibration: Path, tmp_path: Path, method: str, scheme: str
) -> None:
    recipe = RecipeSpec.model_validate(
        {"method": method, "scheme": scheme, "group_size": 64, "calibration": FEW}
    )
    good = tmp_path / "good"
    quantize(four, good, recipe, calibration=calibration)
    assert gain_problem(good, four) is None
    problem = gain_problem(scale_layer(good, tmp_path / "bad", 1), four)
    assert problem is not None
    assert "model.layers.1." in problem


def test_the_gain_of_16_bit_weights_is_what_they_were_multiplied_by(
    four: Path, tmp_path: Path
) -> None:
    """q, k and gate have the factor, o and down also that of the v and up whose rows feed them."""
    told = {
        gain.linear: gain.value for gain in find_gains(scale_layer(four, tmp_path / "x", 2), four)
    }
    layer = "model.layers.2."
    for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"):
        assert told[layer + name] == pytest.approx(1.05, abs=1e-3)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        assert told[layer + name] == pytest.approx(1.05**2, abs=2e-3)
    assert told["model.layers.1.self_attn.q_proj"] == pytest.approx(1.0, abs=1e-6)
    assert "model.layers.1.self_attn.v_proj" not in told


def test_another_way_of_storing_is_not_judged(four: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gguf"
    folder.mkdir()
    (folder / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    assert gain_problem(folder, four) is None


def test_another_model_is_not_judged_by_this_one(four: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other", num_hidden_layers=4, seed=1)
    assert gain_problem(other, four) is None
