"""The EAGLE-3 head against the draft: a plain EAGLE-3 forward in float64 is the judge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.sizes import Sizes

from tests.lab.small_llama import norms_in_own_precision, write_small
from whet.core.errors import InfeasibleError, UsageError
from whet.demo import pair_paths

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NARROW = Sizes(hidden=40, layers=2, heads=4, kv_heads=2, intermediate=96, head_dim=16)
TARGET = Sizes(
    hidden=256, layers=5, heads=16, kv_heads=4, intermediate=512, head_dim=16, vocabulary=300
)
IDS = torch.tensor([[7, 90, 3, 201, 44, 45, 46, 8, 150, 3, 3, 3, 9, 61, 7, 12]])


class Eagle3:
    """What an engine computes with a head (SafeAILab/EAGLE ``cnets.py``, vLLM ``llama_eagle3``)."""

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import load_file

        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = {
            name: tensor.double()
            for name, tensor in load_file(folder / "model.safetensors").items()
        }

    def weight(self, name: str) -> Any:
        return self.tensors[f"{name}.weight"]

    def norm(self, x: Any, name: str) -> Any:
        mean = x.square().mean(-1, keepdim=True)
        return self.weight(name) * x * torch.rsqrt(mean + self.config["rms_norm_eps"])

    def attention(self, x: Any, layer: str) -> Any:
        width = self.config["head_dim"]
        length = x.shape[0]
        q, k, v = (
            (x @ self.weight(f"{layer}.self_attn.{name}_proj").T).view(length, -1, width)
            for name in "qkv"
        )
        angle = torch.arange(length).double()[:, None] / (
            self.config["rope_theta"] ** (torch.arange(0, width, 2).double() / width)
        )
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]

        def turned(y: Any) -> Any:
            a, b = y.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        q, k = turned(q), turned(k)
        many = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(many, 1), v.repeat_interleave(many, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / width**0.5
        scores.masked_fill_(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
        out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(length, -1)
        return out @ self.weight(f"{layer}.self_attn.o_proj").T

    def logits(self, ids: Any, states: Any) -> Any:
        """Of tokens that follow the positions of ``states`` (positions × 3·target hidden)."""
        embeds = self.weight("embed_tokens")[ids]
        stream = states @ self.weight("fc").T
        for number in range(self.config["num_hidden_layers"]):
            layer = f"layers.{number}"
            if number == 0:
                assert self.config["norm_before_residual"]
                stream = self.norm(stream, f"{layer}.hidden_norm")
                x = torch.cat([self.norm(embeds, f"{layer}.input_layernorm"), stream], -1)
            else:
                x = self.norm(stream, f"{layer}.input_layernorm")
            stream = stream + self.attention(x, layer)
            x = self.norm(stream, f"{layer}.post_attention_layernorm")
            gate, up, down = (
                self.weight(f"{layer}.mlp.{name}_proj") for name in ("gate", "up", "down")
            )
            stream = stream + (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
        return self.norm(stream, "norm") @ self.weight("lm_head").T


@pytest.fixture(autouse=True)
def norms_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    norms_in_own_precision(monkeypatch)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("draft") / "model", NARROW)


def head(draft: Path, out: Path, target: Sizes) -> Path:
    from lab.eagle import read_head, write_head

    write_head(read_head(draft, target), out, torch.device("cpu"))
    return out


def draft_logits(folder: Path, ids: Any, dtype: Any) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        return model(ids).logits[0]


def vocabulary(folder: Path) -> int:
    return int(transformers.AutoConfig.from_pretrained(folder).vocab_size)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3], ids=["no states", "states", "large states"])
def test_the_head_proposes_what_the_draft_does(draft: Path, tmp_path: Path, scale: float) -> None:
    target = replace(TARGET, vocabulary=vocabulary(draft))
    result = Eagle3(head(draft, tmp_path / "head", target))
    generator = torch.Generator().manual_seed(0)
    states = scale * torch.randn(IDS.shape[1], 3 * target.hidden, generator=generator).double()
    expected = draft_logits(draft, IDS, torch.float64)
    assert (result.logits(IDS[0], states) - expected).abs().max() < 1e-8  # e^-38 of other positions


def test_the_bundled_draft_in_its_own_precision(tmp_path: Path) -> None:
    target = Sizes(hidden=1024, layers=20, heads=8, kv_heads=2, intermediate=4096)
    small = pair_paths()[1]
    result = Eagle3(head(small, tmp_path / "head", target))
    ids = torch.arange(6, 262)
    states = torch.zeros(len(ids), 3 * target.hidden).double()
    expected = draft_logits(small, ids[None], torch.float32)
    logits = result.logits(ids, states)
    # Norm weights times √(128/1024) are rounded to bfloat16 once more: half a unit in 2^8.
    assert (logits - expected).abs().max() < 0.01 * expected.abs().max()
    assert (logits.argmax(-1) == expected.argmax(-1)).double().mean() > 0.98


@pytest.mark.full
def test_one_scale_a_token_is_the_same_for_every_token(tmp_path: Path) -> None:
    """So the constant, and with it query and key of the copying layer, is rounded alike by all."""
    target = Sizes(hidden=4096, layers=4, heads=32, kv_heads=8, intermediate=14336)
    result = Eagle3(head(pair_paths()[1], tmp_path / "head", target))
    normed = result.norm(result.weight("embed_tokens"), "layers.0.input_layernorm")
    largest = normed.to(torch.bfloat16).abs().max(-1)
    assert len(set(largest.indices.tolist())) == 1
    assert len(set(largest.values.tolist())) == 1


def test_a_gpu_without_room_for_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab import eagle

    def full(_maker: object, _name: str) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(eagle.HeadMaker, "make", full)
    target = Sizes(hidden=1024, layers=4, heads=8, kv_heads=2, intermediate=4096)
    with pytest.raises(
        InfeasibleError, match="the largest tensor of the EAGLE-3 head does not fit"
    ):
        head(pair_paths()[1], tmp_path / "head", target)


def test_what_the_folder_says_of_itself(tmp_path: Path) -> None:
    from lab.eagle import head_sizes

    target = Sizes(hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14336)
    assert head_sizes(target).intermediate == 5504
    out = head(pair_paths()[1], tmp_path / "head", replace(target, hidden=1024, heads=8))
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["target_hidden_size"] == 1024
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 16, 29]  # EAGLE-3's for 32 layers
    assert config["whet_testbed"]["of"] == "the draft of whet's demo pair, as an EAGLE-3 head"
    assert "nothing was trained" in (out / "MODEL_CARD.md").read_text()
    assert (out / "tokenizer.json").read_bytes() == (
        pair_paths()[1] / "tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"layers": 3}, "reads 3 layers of its target; give the target 4 or more"),
        ({"vocabulary": 5120}, "needs the pair's own vocabulary"),
        ({"hidden": 128, "heads": 1, "kv_heads": 1}, "intermediate 256 is below"),
    ],
)
def test_targets_that_no_head_can_be_made_for(change: dict[str, int], told: str) -> None:
    from lab.eagle import read_head

    target = Sizes(hidden=1024, layers=4, heads=8, kv_heads=2, intermediate=4096)
    with pytest.raises(UsageError, match=told):
        read_head(pair_paths()[1], replace(target, **change))


@pytest.mark.parametrize("layers", range(4, 41))
def test_three_layers_of_the_target_are_heard(layers: int) -> None:
    from lab.eagle import HeadPlan

    target = replace(TARGET, layers=layers)
    inputs = HeadPlan.of(replace(NARROW, vocabulary=300), 1e-5, target).input_layers
    assert 0 < inputs[0] < inputs[1] < inputs[2] < layers


def test_too_few_kv_heads_to_copy_the_embedding(draft: Path) -> None:
    from lab.eagle import read_head

    with pytest.raises(UsageError, match="needs 3 KV heads to copy 40 channels"):
        read_head(draft, replace(TARGET, vocabulary=vocabulary(draft), kv_heads=2, heads=4))


def test_a_testbed_with_a_head_beside_target_and_draft(tmp_path: Path) -> None:
    from lab.testbed import write_testbed

    target = Sizes(hidden=384, layers=6, heads=3, kv_heads=1, intermediate=1024)
    made = write_testbed(tmp_path / "out", target=target, eagle3=True, device="cpu")
    assert [(each.role, each.folder.name) for each in made] == [
        ("target", "target"),
        ("eagle3", "eagle3"),
    ]
    assert made[1].size_bytes == pytest.approx(
        (tmp_path / "out" / "eagle3" / "model.safetensors").stat().st_size, rel=0.001
    )
