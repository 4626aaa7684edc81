"""Families whose layers are not plain: mixtures, fused projections, towers.

Experts are measured one by one, scaled together and routed as before.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from tests.quant.tiny_models import MIXTURES, TOWERS, write_dequantized, write_tiny
from whet.checkpoint import read_facts
from whet.checkpoint.shards import TensorReader
from whet.core.errors import QuantizationError
from whet.core.spec import RecipeSpec
from whet.quant import quantize
from whet.quant.architecture import read_architecture
from whet.quant.skeleton import FEWEST
from whet.quant.stream import LayerStream

CPU = torch.device("cpu")
LITTLE = {"samples": 16, "max_tokens": 64}


def recipe(**values: object) -> RecipeSpec:
    return RecipeSpec.model_validate({"calibration": LITTLE, "method": "awq", **values})


def model_of(kind: str) -> Any:
    return AutoModelForImageTextToText if kind in TOWERS else AutoModelForCausalLM


def stream_of(folder: Path, ids: list[list[int]]) -> tuple[LayerStream, TensorReader]:
    reader = TensorReader(folder)
    shapes = {name: header.shape for name, header in reader.headers.items()}
    config = json.loads((folder / "config.json").read_text())
    stream = LayerStream(folder, ids, read_architecture(config, shapes), CPU)
    stream.embed(reader.read("model.embed_tokens.weight"))
    return stream, reader


def expert_inputs(
    folder: Path, ids: list[list[int]], expert: int, layer: int = 0
) -> tuple[Tensor, Tensor]:
    """The inputs of one expert of a layer by transformers' own forward, eager experts."""
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager"
    )
    experts = model.model.layers[layer].mlp.experts
    seen: list[Tensor] = []
    handle = experts.register_forward_pre_hook(
        lambda _module, inputs: seen.append(inputs[0][(inputs[1] == expert).any(dim=-1)])
    )
    with torch.no_grad():
        for sample in ids:
            model(torch.tensor([sample]))
    handle.remove()
    x = torch.cat(seen)
    gate, up = (x @ experts.gate_up_proj[expert].T).chunk(2, dim=-1)
    return x, torch.nn.functional.silu(gate) * up


@torch.no_grad()
def test_each_expert_has_the_statistics_of_its_own_tokens(tmp_path: Path) -> None:
    folder = write_tiny("qwen3_moe", tmp_path / "model")
    dice = torch.Generator().manual_seed(1)
    ids = [torch.randint(5, 4000, (size,), generator=dice).tolist() for size in (300, 200, 120)]
    stream, reader = stream_of(folder, ids)
    stats = stream.measure(0, reader.read_below("model.layers.0."))
    assert stats.starved == ()
    total = 0
    for expert in range(8):
        inputs, between = expert_inputs(folder, ids, expert)
        for role, x in (("gate_up", inputs), ("down", between)):
            measured = stats.units[f"mlp.experts.{expert}.{role}"]
            assert measured.tokens == len(x)
            torch.testing.assert_close(measured.gram, x.T @ x / len(x), rtol=1e-3, atol=1e-3)
        total += len(inputs)
    assert total == 2 * sum(map(len, ids))


@torch.no_grad()
def test_an_expert_with_few_tokens_gets_a_sample_and_is_named(
    calibration: Path, tmp_path: Path
) -> None:
    folder = write_tiny("qwen3_moe", tmp_path / "model")
    ids = [list(range(10, 210))]
    stream, reader = stream_of(folder, ids)
    stream.measure(0, reader.read_below("model.layers.0."))
    stats = stream.measure(1, reader.read_below("model.layers.1."))
    assert 0 < len(stats.starved) < 8
    for expert in range(8):
        routed = len(expert_inputs(folder, ids, expert, layer=1)[0])
        assert (expert in stats.starved) == (routed < FEWEST)
        sample = 32 if expert in stats.starved else 0  # of the one batch
        for role in ("gate_up", "down"):
            assert stats.units[f"mlp.experts.{expert}.{role}"].tokens == routed + sample
    few = recipe(calibration={"samples": 4, "max_tokens": 64})
    done = quantize(folder, tmp_path / "out", few, calibration=calibration)
    (warning,) = [each for each in done.warnings if "experts." in each]
    assert re.search(r"reached \d+ experts \(layers\.0\.experts\.\d first\); a sample of", warning)


TWINS = ("olmoe", "glm4_moe", "dots1", "deepseek_v2")
"""Mixtures whose layers are like another's of the list."""


def kinds() -> list[Any]:
    marks = dict.fromkeys(TWINS, pytest.mark.full)
    every = [*MIXTURES, *TOWERS, "phi3", "olmo2"]
    return [pytest.param(kind, marks=marks.get(kind, ())) for kind in every]


@pytest.mark.parametrize("kind", kinds())
def test_scales_are_folded_without_a_change_and_routers_stay(
    kind: str, calibration: Path, tmp_path: Path
) -> None:
    """At 8 bits rounding is small, and a wrong fold is not; towers stay as they are."""
    source = write_tiny(kind, tmp_path / "source")
    done = quantize(source, tmp_path / "out", recipe(scheme="W8A16"), calibration=calibration)
    folder = Path(done.path)
    assert {unit.ratio for unit in done.units} != {None}
    routers = [n for n in load_file(source / "model.safetensors") if n.endswith("gate.weight")]
    written, before = (
        load_file(folder / "model.safetensors"),
        load_file(source / "model.safetensors"),
    )
    for name in routers:
        change = written[name].float() / before[name].float()
        assert torch.equal(change.log2(), change.log2().round()), "not a power of two"
    whole = write_dequantized(folder, tmp_path / "dequantized")
    ids = torch.randint(5, 4000, (4, 48), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits = [
            model_of(kind).from_pretrained(path, dtype=torch.float32)(ids).logits
            for path in (source, whole)
        ]
    exact, rounded = (each.log_softmax(-1) for each in logits)
    divergence = (exact.exp() * (exact - rounded)).sum(dim=-1)
    assert float(divergence.median()) < 0.01


def test_all_experts_of_a_layer_are_one_block(calibration: Path, tmp_path: Path) -> None:
    """An engine has one scheme for them, so a mixed recipe widens all of them or none."""
    source = write_tiny("mixtral", tmp_path / "source")
    mixed = {"bits_per_weight": 6.0}
    done = quantize(source, tmp_path / "out", recipe(mixed=mixed), calibration=calibration)
    names = {unit.unit for unit in done.units}
    assert {f"layers.{n}.block_sparse_moe.experts" for n in (0, 1)} < names
    kept = {unit.unit for unit in done.units if unit.kept}
    assert kept
    facts = read_facts(Path(done.path))
    assert facts.stored.bits_per_weight <= 6.0


def test_experts_in_one_tensor_are_refused() -> None:
    shapes = {
        "model.layers.0.self_attn.q_proj.weight": (8, 8),
        "model.layers.0.mlp.experts.gate_up_proj": (4, 8, 16),
    }
    with pytest.raises(QuantizationError, match="holds all experts of a layer"):
        read_architecture({"model_type": "gpt_oss", "num_hidden_layers": 1}, shapes)


def test_layers_for_multi_token_prediction_and_towers_are_left() -> None:
    parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    shapes = {f"model.layers.{n}.{part}.weight": (8, 8) for n in (0, 1) for part in parts}
    shapes |= {
        "model.layers.0.input_layernorm.weight": (8,),
        "model.layers.1.input_layernorm.weight": (8,),
        "model.layers.1.eh_proj.weight": (8, 16),
        "model.visual.blocks.0.attn.qkv.weight": (24, 8),
        "model.embed_tokens.weight": (100, 8),
        "lm_head.weight": (100, 8),
    }
    found = read_architecture({"model_type": "glm4_moe", "num_hidden_layers": 1}, shapes)
    assert len(found.linears) == 4
    left = [
        name
        for name, shape in shapes.items()
        if len(shape) == 2 and name.removesuffix(".weight") not in found.linears
    ]
    left.remove("model.embed_tokens.weight")
    for name in left:
        module = name.removesuffix(".weight")
        patterns = [each.removeprefix("re:") for each in found.ignore]
        assert any(re.fullmatch(pattern, module) for pattern in patterns), module
    assert not any(
        re.fullmatch(each.removeprefix("re:"), linear)
        for each in found.ignore
        for linear in found.linears
    )
