"""What is known of an architecture, and what is done where nothing is."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.checkpoint_factory import write_tokenizer
from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError, QuantizationError
from whet.core.spec import RecipeSpec
from whet.quant import quantize
from whet.quant.architecture import read_architecture

SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
}


def write_model(folder: Path, kind: str, **changes: object) -> Path:
    vocab_size = write_tokenizer(folder)
    config = AutoConfig.for_model(kind, **{**SHAPE, "vocab_size": vocab_size, **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize(
    "recipe", [{"method": "rtn", "group_size": 32}, {"scheme": "FP8_DYNAMIC"}], ids=["rtn", "fp8"]
)
def test_experts_are_rounded_and_routers_left(
    kind: str, recipe: dict[str, object], calibration: Path, tmp_path: Path
) -> None:
    experts = {"num_local_experts": 4, "num_experts": 4, "moe_intermediate_size": 64}
    source = write_model(tmp_path / "source", kind, **experts)
    made = quantize(
        source, tmp_path / "out", RecipeSpec.model_validate(recipe), calibration=calibration
    )
    facts = read_facts(Path(made.path))
    inner = 2 * 4 * 3
    assert facts.stored.quantized_modules == 2 * 4 + inner
    tensors = load_file(Path(made.path) / "model.safetensors")
    routers = [name for name in tensors if name.endswith("gate.weight")]
    assert len(routers) == 2
    assert all(tensors[name].dtype == torch.bfloat16 for name in routers)
    config = json.loads((Path(made.path) / "config.json").read_text())
    ignored = config["quantization_config"]["ignore"]
    patterns = [each.removeprefix("re:") for each in ignored]
    for name in routers:
        assert any(re.fullmatch(each, name.removesuffix(".weight")) for each in patterns)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("phi", "does not know which"), ("starcoder2", "does not know which")],
)
def test_what_needs_inputs_is_refused_with_what_is_missing(
    kind: str, words: str, calibration: Path, tmp_path: Path
) -> None:
    source = write_model(tmp_path / "source", kind)
    with pytest.raises(QuantizationError, match=words) as caught:
        quantize(
            source,
            tmp_path / "out",
            RecipeSpec(method="awq", group_size=32),
            calibration=calibration,
        )
    assert "use method gptq" in str(caught.value)


def test_an_unknown_decoder_is_rounded_on_request(calibration: Path, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", "phi")
    recipe = RecipeSpec(method="rtn", group_size=32)
    made = quantize(source, tmp_path / "out", recipe, calibration=calibration)
    model = AutoModelForCausalLM.from_pretrained(made.path, dtype=torch.float32)
    whole = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    ids = torch.tensor([[3, 9, 27, 81, 100]])
    with torch.no_grad():
        off = model(ids).logits - whole(ids).logits
    assert 0 < off.square().mean() < 0.1 * whole(ids).logits.square().mean()


def test_engines_fuse_what_is_one_unit() -> None:
    names = ("q_proj", "k_proj", "v_proj", "dense")
    shapes = {f"model.layers.0.self_attn.{name}.weight": (8, 8) for name in names}
    shapes |= {
        f"model.layers.0.mlp.experts.{expert}.w{part}.weight": (8, 8)
        for expert in (0, 1)
        for part in (1, 2, 3)
    }
    shapes["model.layers.0.mlp.gate.weight"] = (2, 8)
    (units,) = read_architecture({"model_type": "new_moe"}, shapes).units
    assert {unit.name: unit.linears for unit in units} == {
        "qkv": tuple(f"self_attn.{name}" for name in names[:3]),
        "dense": ("self_attn.dense",),
        "mlp.experts.0.gate_up": ("mlp.experts.0.w1", "mlp.experts.0.w3"),
        "mlp.experts.0.down": ("mlp.experts.0.w2",),
        "mlp.experts.1.gate_up": ("mlp.experts.1.w1", "mlp.experts.1.w3"),
        "mlp.experts.1.down": ("mlp.experts.1.w2",),
    }


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["transformer.h.0.attn.c_attn.weight"], "no decoder layers"),
        (["model.layers.0.a.weight", "other.layers.0.a.weight"], "several parts"),
    ],
)
def test_what_is_no_decoder_is_refused(names: list[str], words: str) -> None:
    with pytest.raises(QuantizationError, match=words):
        read_architecture({"model_type": "other"}, dict.fromkeys(names, (4, 4)))


@pytest.mark.parametrize("router", ["ffn.dispatcher", "ffn.switch"])
def test_a_router_is_told_by_its_rows_whatever_its_name(router: str) -> None:
    shapes = {
        f"model.layers.0.ffn.specialists.{expert}.{name}.weight": (8, 16)
        for expert in range(4)
        for name in ("w_in", "w_out")
    }
    shapes["model.layers.0.ffn.shared.w_in.weight"] = (4, 16)  # as wide as there are experts
    left = {f"model.layers.0.{router}.weight": (4, 16), "model.layers.0.ffn.own.weight": (1, 16)}
    architecture = read_architecture({"model_type": "new_moe"}, {**shapes, **left})
    assert architecture.linears == [name.removesuffix(".weight") for name in shapes]


PUBLISHED = {"d2t": torch.zeros(40, dtype=torch.int64), "t2d": torch.ones(64, dtype=torch.bool)}


@pytest.fixture(params=["layers.0", "midlayer"])
def eagle_head(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A head of one layer in the two forms that they are published in."""
    folder = tmp_path / "head"
    source = write_model(folder, "llama", num_hidden_layers=1)
    tensors = load_file(source / "model.safetensors")
    wide = torch.ones(1, 2, dtype=torch.bfloat16)
    result = {
        name.replace("model.layers.0", request.param).removeprefix("model."): (
            torch.kron(wide, tensor) if ".self_attn." in name and "o_proj" not in name else tensor
        )
        for name, tensor in tensors.items()
    }
    result["fc.weight"] = torch.randn(64, 3 * 64).to(torch.bfloat16)
    if request.param == "midlayer":
        result = {**result, **PUBLISHED}
    save_file(result, source / "model.safetensors")
    return source


@pytest.mark.parametrize(
    "recipe", [{"scheme": "W8A8", "method": "rtn"}, {"scheme": "FP8_DYNAMIC"}], ids=["int8", "fp8"]
)
def test_a_speculation_head_is_rounded_but_for_what_takes_in_the_target(
    eagle_head: Path, recipe: dict[str, object], calibration: Path, tmp_path: Path
) -> None:
    made = quantize(
        eagle_head, tmp_path / "out", RecipeSpec.model_validate(recipe), calibration=calibration
    )
    out = Path(made.path)
    assert read_facts(out).stored.quantized_modules == 7
    before, after = (load_file(path / "model.safetensors") for path in (eagle_head, out))
    plain = {name for name in before if "_proj" not in name}
    assert {"fc.weight", "lm_head.weight", "norm.weight"} < plain
    assert all(torch.equal(before[name], after[name]) for name in plain)
    ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    assert ignored == ["lm_head", "re:.*fc$"]  # vLLM calls it model.fc


def test_a_speculation_head_has_no_inputs_to_measure(
    eagle_head: Path, calibration: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        QuantizationError, match=r"reads the hidden states of its target.*round to near"
    ):
        quantize(eagle_head, tmp_path / "out", RecipeSpec(), calibration=calibration)
    assert not (tmp_path / "out").exists()


def test_a_head_without_a_tokenizer_is_told_where_there_is_one(
    eagle_head: Path, calibration: Path, tmp_path: Path
) -> None:
    (eagle_head / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"copy its target's tokenizer\.json"):
        quantize(
            eagle_head,
            tmp_path / "out",
            RecipeSpec(scheme="FP8_DYNAMIC", method="rtn"),
            calibration=calibration,
        )
