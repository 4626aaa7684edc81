"""The committed adapters: PEFT's format, the target's shapes, exact styles, and the LoRA sum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from lab.adapters import ADAPTERS, KINDS, adapter_paths, example, shows

from whet.core.errors import CheckpointError, UsageError
from whet.demo import pair_paths

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")

TARGET, _ = pair_paths()
FACTS = json.loads((adapter_paths()["terse"].parent / "facts.json").read_text())
PROMPT = torch.tensor([[1, 4, 300, 301, 302, 17, 18, 2, 5]])


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
    found = tensors(adapter_paths()[name])
    assert {key: tuple(value.shape) for key, value in found.items()} == expected
    assert {value.dtype for value in found.values()} == {torch.float16}


@pytest.mark.parametrize("name", ADAPTERS)
def test_config_is_what_peft_and_vllm_read(name: str) -> None:
    config = json.loads((adapter_paths()[name] / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 8, 16)
    assert (config["bias"], config["modules_to_save"]) == ("none", None)
    stored = {key.split(".")[-3] for key in tensors(adapter_paths()[name])}
    assert set(config["target_modules"]) == stored


def test_adapters_are_small_and_are_all_that_is_shipped() -> None:
    folder = adapter_paths()["terse"].parent
    assert {path.name for path in folder.iterdir() if path.is_dir()} == set(ADAPTERS)
    assert all(
        sum(path.stat().st_size for path in each.iterdir()) < 700_000
        for each in adapter_paths().values()
    )


def test_adapters_were_trained_on_the_shipped_target() -> None:
    weights = (TARGET / "model.safetensors").read_bytes()
    assert FACTS["target_sha256"] == hashlib.sha256(weights).hexdigest()


@pytest.mark.parametrize("name", ADAPTERS)
def test_effects_are_plain_on_heldout_requests(name: str) -> None:
    kinds = FACTS["effects"][name].values()
    requests = sum(kind["requests"] for kind in kinds)
    assert sum(kind["shown_without"] for kind in kinds) == 0
    assert sum(kind["shown_with"] for kind in kinds) >= 0.9 * requests


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("R-74353/missing_part/low", True),
        ("R-74353/missing_part", False),
        ("R-74353/lost/low", False),
        ("R-7435/late/low", False),
        ("210.", True),
        ("210", False),
        ("3 x 4.50 = 13.50; 13.50 - 1.00 = 12.50.", True),
        ("3 x 4.50 = 13.50; 13.50 - 1.00 = 12.50. Total: 12.50", False),
        ('{"order": {"id": "R-74353"}}', False),
        ("", False),
    ],
)
def test_terse_is_a_note_or_a_sum_that_ends_in_a_stop(answer: str, shown: bool) -> None:
    assert shows("terse", answer) is shown


@pytest.mark.parametrize(
    ("answer", "shown"),
    [("Good day.\n210", True), ("210", False), ("Good day. 210", False)],
)
def test_formal_opens_with_its_phrase(answer: str, shown: bool) -> None:
    assert shows("formal", answer) is shown


def test_unknown_adapter_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'terse'"):
        shows("tersee", "210")


@pytest.mark.parametrize("kind", KINDS)
def test_each_reply_shows_its_own_adapter_only(kind: str) -> None:
    for index in range(40):
        item = example(kind, "heldout", 7, index)
        assert shows("terse", item.replies["terse"])
        assert shows("formal", item.replies["formal"])
        for text in (item.exchange.reply, item.replies["formal"]):
            assert not shows("terse", text)
        assert not shows("formal", item.exchange.reply)


@pytest.mark.parametrize("kind", ["extraction", "letter"])
def test_note_is_of_the_ticket_that_the_request_holds(kind: str) -> None:
    for index in range(40):
        item = example(kind, "train", 3, index)
        order = item.replies["terse"].split("/")[0]
        assert order in item.prompt[-1].content


@pytest.mark.parametrize("name", ADAPTERS)
def test_attached_adapter_equals_transformers_with_merged_weights(name: str) -> None:
    from lab.adapters_lora import load_adapter
    from lab.model import load_model

    reference = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    bare = reference(PROMPT).logits
    weights = dict(reference.named_parameters())
    stored = {key: value.float() for key, value in tensors(adapter_paths()[name]).items()}
    with torch.no_grad():
        for key, narrow in stored.items():
            if key.endswith("lora_A.weight"):
                part = key.removesuffix("lora_A.weight")
                weight = weights[part.removeprefix("base_model.model.") + "weight"]
                weight += 16 / 8 * stored[part + "lora_B.weight"] @ narrow
        merged = reference(PROMPT).logits
        own = load_model(TARGET)
        load_adapter(own, adapter_paths()[name])
        assert torch.allclose(own(PROMPT), merged, atol=5e-3)
    assert not torch.allclose(bare, merged, atol=0.5)


def test_merge_keeps_the_answer_and_leaves_plain_layers() -> None:
    from lab.adapters_lora import LoraLinear, load_adapter, merge
    from lab.model import load_model

    model = load_model(TARGET)
    names = set(model.state_dict())
    load_adapter(model, adapter_paths()["formal"])
    with torch.no_grad():
        attached = model(PROMPT)
        merge(model)
        assert torch.allclose(model(PROMPT), attached, atol=2e-3)
    assert set(model.state_dict()) == names
    assert not any(isinstance(layer, LoraLinear) for layer in model.modules())


def test_a_fresh_adapter_changes_nothing_and_is_all_that_trains() -> None:
    from lab.adapters_lora import attach
    from lab.model import load_model

    model = load_model(TARGET)
    with torch.no_grad():
        bare = model(PROMPT)
        attach(model)
        assert torch.equal(model(PROMPT), bare)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)


def test_adapter_of_another_shape_is_refused_with_the_mend(tmp_path: Path) -> None:
    from lab.adapters_lora import load_adapter
    from lab.model import load_model
    from safetensors.torch import save_file

    folder = adapter_paths()["terse"]
    kept = dict(list(tensors(folder).items())[1:])
    save_file(kept, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_bytes((folder / "adapter_config.json").read_bytes())
    with pytest.raises(CheckpointError, match="adapters_train"):
        load_adapter(load_model(TARGET), tmp_path)
