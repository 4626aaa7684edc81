"""The bundled target: a trained model's layers, replayed by transformers in float64."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from whet.core.records.quant import QuantizedCheckpoint
from whet.core.spec import RecipeSpec
from whet.data import write_inputs
from whet.demo import pair_paths
from whet.quant import load_calibration, quantize_many

TARGET = pair_paths()[0]
INPUTS = {
    "qkv": "self_attn.q_proj",
    "o": "self_attn.o_proj",
    "gate_up": "mlp.gate_proj",
    "down": "mlp.down_proj",
}
LINEARS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
CALIBRATION = {"samples": 16, "max_tokens": 64}


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, QuantizedCheckpoint]]:
    root = tmp_path_factory.mktemp("real")
    write_inputs(root)
    wanted = {
        method: (
            root / method,
            RecipeSpec.model_validate({"method": method, "calibration": CALIBRATION}),
        )
        for method in ("rtn", "awq", "gptq")
    }
    outcomes = quantize_many(TARGET, wanted, calibration=root / "calibration.jsonl")
    done = {name: item for name, item in outcomes.items() if isinstance(item, QuantizedCheckpoint)}
    assert done.keys() == wanted.keys()
    return root, done


def test_every_method_beats_rounding_on_every_unit(
    made: tuple[Path, dict[str, QuantizedCheckpoint]],
) -> None:
    for method in ("awq", "gptq"):
        units = made[1][method].units
        assert len(units) == 24
        assert all(unit.error < unit.rtn_error for unit in units)


@torch.no_grad()
def test_the_recorded_error_is_what_replaying_the_layer_gives(
    made: tuple[Path, dict[str, QuantizedCheckpoint]],
) -> None:
    """Round-to-nearest changes no other tensor, so its weights can be compared as they are.

    The inputs are transformers' own, one sample at a time; 1% for H's float32 and the padding's
    other order of summation.
    """
    root, done = made
    ids = load_calibration(
        root / "calibration.jsonl", TARGET, samples=16, max_tokens=64, seed=0
    ).ids
    whole = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    nearest = AutoModelForCausalLM.from_pretrained(done["rtn"].path, dtype=torch.float32)
    nearest(torch.tensor([ids[0]]))  # weights are unpacked at the first use
    recorded = {
        unit["unit"]: unit["error"]
        for unit in json.loads((root / "rtn" / "whet_quantization.json").read_text())["quantized"][
            "units"
        ]
    }
    for unit, linear in INPUTS.items():
        seen: list[torch.Tensor] = []
        layer = whole.model.layers[3]
        handle = layer.get_submodule(linear).register_forward_pre_hook(
            lambda _module, inputs, seen=seen: seen.append(inputs[0][0])
        )
        for sample in ids:
            whole(torch.tensor([sample]))
        handle.remove()
        x = torch.cat(seen).double()
        weight, stored = (
            torch.cat([model.model.layers[3].get_submodule(name).weight for name in LINEARS[unit]])
            for model in (whole, nearest)
        )
        off = (x @ (stored - weight).double().T).square().sum()
        replayed = off / (x @ weight.double().T).square().sum()
        assert recorded[f"layers.3.{unit}"] == pytest.approx(float(replayed), rel=0.01)
