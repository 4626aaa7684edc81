"""The committed adapters: PEFT's format, the target's shapes, stated effects."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from whet.demo import pair_paths
from whet.demo.bundled import PAIR

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")

TARGET, _ = pair_paths()
FOLDER = PAIR / "adapters"
ADAPTERS = ("terse", "formal")
FACTS = json.loads((FOLDER / "facts.json").read_text())


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "adapter_model.safetensors"))


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_projection_has_a_pair_of_its_shape(name: str) -> None:
    stated = json.loads((TARGET / "config.json").read_text())
    hidden, mlp, wide = stated["hidden_size"], stated["intermediate_size"], 128
    heads, groups = stated["num_attention_heads"] * wide, stated["num_key_value_heads"] * wide
    sizes = {
        "self_attn.q_proj": (hidden, heads),
        "self_attn.k_proj": (hidden, groups),
        "self_attn.v_proj": (hidden, groups),
        "self_attn.o_proj": (heads, hidden),
        "mlp.gate_proj": (hidden, mlp),
        "mlp.up_proj": (hidden, mlp),
        "mlp.down_proj": (mlp, hidden),
    }
    expected = {}
    for layer in range(stated["num_hidden_layers"]):
        for part, (inner, outer) in sizes.items():
            head = f"base_model.model.model.layers.{layer}.{part}"
            expected[f"{head}.lora_A.weight"] = (8, inner)
            expected[f"{head}.lora_B.weight"] = (outer, 8)
    found = tensors(FOLDER / name)
    assert {key: tuple(value.shape) for key, value in found.items()} == expected
    assert {value.dtype for value in found.values()} == {torch.float16}


@pytest.mark.parametrize("name", ADAPTERS)
def test_config_is_what_peft_and_vllm_read(name: str) -> None:
    config = json.loads((FOLDER / name / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 8, 16)
    assert (config["bias"], config["modules_to_save"]) == ("none", None)
    stored = {key.split(".")[-3] for key in tensors(FOLDER / name)}
    assert set(config["target_modules"]) == stored


def test_adapters_are_small_and_are_all_that_is_shipped() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} == set(ADAPTERS)
    for name in ADAPTERS:
        assert sum(path.stat().st_size for path in (FOLDER / name).iterdir()) < 700_000


def test_adapters_were_trained_on_the_shipped_target() -> None:
    weights = (TARGET / "model.safetensors").read_bytes()
    assert FACTS["target_sha256"] == hashlib.sha256(weights).hexdigest()


@pytest.mark.parametrize("name", ADAPTERS)
def test_effects_are_plain_on_heldout_requests(name: str) -> None:
    kinds = FACTS["effects"][name].values()
    requests = sum(kind["requests"] for kind in kinds)
    assert sum(kind["shown_without"] for kind in kinds) == 0
    assert sum(kind["shown_with"] for kind in kinds) >= 0.9 * requests
