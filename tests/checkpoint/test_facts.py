"""Shape, parameters and KV of published models, from headers alone; and folders that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import (
    llama_shapes,
    tiny_config,
    write_hollow,
    write_json,
    write_tiny_llama,
)
from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError

LLAMA_2_7B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
LLAMA_3_8B = LLAMA_2_7B | {
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}
LLAMA_3_2_1B = LLAMA_3_8B | {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "intermediate_size": 8192,
    "head_dim": 64,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("config", "parameters", "kv_bytes"),
    [
        # Parameters as the model cards' safetensors metadata count them; KV is 2·L·H·d·2 by hand.
        (LLAMA_2_7B, 6_738_415_616, 524_288),
        (LLAMA_3_8B, 8_030_261_248, 131_072),
        (LLAMA_3_2_1B, 1_235_814_400, 32_768),
    ],
)
def test_published_models(
    tmp_path: Path, config: dict[str, Any], parameters: int, kv_bytes: int
) -> None:
    facts = read_facts(write_hollow(tmp_path, config))
    assert facts.parameters == parameters
    assert facts.weight_bytes == 2 * parameters
    assert facts.kv_bytes_per_token == kv_bytes
    assert facts.stored.scheme == "16bit"
    assert facts.stored.bits_per_weight == 16.0
    assert facts.max_position == config["max_position_embeddings"]


def test_head_dim_is_read_and_not_divided(tmp_path: Path) -> None:
    """Qwen3-32B: hidden 5120 over 64 heads would give 80; its heads are 128 wide."""
    config = LLAMA_2_7B | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 25600,
        "vocab_size": 151936,
    }
    shapes = {name: ("BF16", shape) for name, shape in llama_shapes(config).items()}
    for layer in range(64):
        for part in ("q_norm", "k_norm"):
            shapes[f"model.layers.{layer}.self_attn.{part}.weight"] = ("BF16", (128,))
    facts = read_facts(write_hollow(tmp_path, config, shapes))
    assert facts.head_dim == 128
    assert facts.parameters == 32_762_123_264
    assert facts.kv_bytes_per_token == 262_144


def test_latent_attention_keeps_one_vector_a_layer(tmp_path: Path) -> None:
    """DeepSeek-V3: 61 layers of 512 + 64 elements at 2 bytes are 70,272 bytes a token."""
    config = tiny_config(300) | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    shapes = {name: ("BF16", shape) for name, shape in llama_shapes(config).items()}
    for layer in range(2, 61):
        shapes[f"model.layers.{layer}.mlp.up_proj.weight"] = ("BF16", (256, 128))
    facts = read_facts(write_hollow(tmp_path, config | {"num_hidden_layers": 61}, shapes))
    assert facts.mla
    assert facts.kv_bytes_per_token == 70_272


def test_layers_of_linear_attention_have_no_kv(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention"]
    facts = read_facts(write_tiny_llama(tmp_path, layer_types=kinds))
    assert facts.kv_bytes_per_token == 2 * 64 * 2  # one layer, one head of 64, keys and values
    assert facts.states is not None
    assert facts.states.layers == 1


def test_a_nested_text_config_is_the_decoder(tmp_path: Path) -> None:
    """Gemma 3 and other multimodal models keep the decoder's keys one level down."""
    config = tiny_config(300)
    write_hollow(tmp_path, config)
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config}
    write_hollow(
        tmp_path, outer, {name: ("BF16", shape) for name, shape in llama_shapes(config).items()}
    )
    facts = read_facts(tmp_path)
    assert facts.hidden_size == 128
    assert facts.architecture == "Gemma3ForConditionalGeneration"


def test_gemma_3_leaves_out_what_its_class_has_as_defaults(tmp_path: Path) -> None:
    """The text_config of Gemma 3 4B, whole. Its class: 8 heads of 256, 4 of them KV."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    outer = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152},
    }
    whole = text | {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "tie_word_embeddings": True,
    }
    shapes = {name: ("BF16", shape) for name, shape in llama_shapes(whole).items()}
    facts = read_facts(write_hollow(tmp_path, outer, shapes))
    assert (facts.heads, facts.kv_heads, facts.head_dim) == (8, 4, 256)
    assert (facts.vocab_size, facts.max_position) == (262208, 131072)
    assert facts.kv_bytes_per_token == 5 * 4096  # every sixth of 34 layers: 2·4·256·2 each
    assert facts.kv_bytes(32_768) == 5 * 4096 * 32_768 + 29 * 4096 * 1024


def test_experts_and_their_width(tmp_path: Path) -> None:
    config = tiny_config(300) | {"num_local_experts": 4, "intermediate_size": 256}
    facts = read_facts(write_hollow(tmp_path, config))
    assert (facts.experts, facts.intermediate_size) == (4, 256)
    facts = read_facts(write_hollow(tmp_path, config | {"moe_intermediate_size": 64}))
    assert facts.intermediate_size == 64


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"type": "dynamic", "factor": 2.0}, 1024),
        ({"rope_type": "yarn", "factor": 4.0}, 512),
        ({"rope_type": "default"}, 512),
    ],
)
def test_longest_sequence_with_rope_scaling(
    tmp_path: Path, scaling: dict[str, Any], length: int
) -> None:
    assert read_facts(write_tiny_llama(tmp_path, rope_scaling=scaling)).max_position == length


def test_a_tied_head_saved_twice_is_counted_once(tmp_path: Path) -> None:
    untied = read_facts(write_tiny_llama(tmp_path / "untied"))
    both = read_facts(
        write_hollow(
            tmp_path / "both",
            tiny_config(300) | {"tie_word_embeddings": True},
            {name: ("BF16", shape) for name, shape in llama_shapes(tiny_config(300)).items()},
        )
    )
    assert untied.parameters - both.parameters == 300 * 128


def test_rotary_buffers_are_no_parameters(tmp_path: Path) -> None:
    shapes = {name: ("F16", shape) for name, shape in llama_shapes(tiny_config(300)).items()}
    plain = read_facts(write_hollow(tmp_path / "a", tiny_config(300), shapes))
    shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (32,))
    assert read_facts(write_hollow(tmp_path / "b", tiny_config(300), shapes)).parameters == (
        plain.parameters
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_in_the_checkpoint_is_not_run(tmp_path: Path, name: str) -> None:
    """DeepSeek, Kimi, Phi-3 … bring code that no engine needs."""
    facts = read_facts(write_tiny_llama(tmp_path))
    (tmp_path / "evil.py").write_text("raise SystemExit('the code of the checkpoint was run')")
    data = json.loads((tmp_path / name).read_text())
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    write_json(tmp_path / name, data | {"auto_map": names, "model_type": "evil"})
    assert read_facts(tmp_path) == facts


def test_an_unknown_type_with_a_key_left_out(tmp_path: Path) -> None:
    config = tiny_config(300) | {"model_type": "new", "num_attention_heads": None}
    with pytest.raises(CheckpointError, match=r"num_attention_heads .* no default for .* 'new'"):
        read_facts(write_hollow(tmp_path, config, {"x": ("BF16", (1,))}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "hidden_size must be a positive whole number"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a positive"),
        ({"num_hidden_layers": 3}, "says 3 layers, but layer 2 has no tensors"),
        ({"vocab_size": 301}, r"shape \[300, 128\], but config.json says \[301, 128\]"),
        ({"max_position_embeddings": None}, "no max_position_embeddings"),
        ({"intermediate_size": None}, "no intermediate_size"),
    ],
)
def test_a_config_that_does_not_fit_its_tensors(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    write_tiny_llama(tmp_path)
    config = tiny_config(300) | change
    write_json(tmp_path / "config.json", config)
    with pytest.raises(CheckpointError, match=said):
        read_facts(tmp_path)


def test_a_missing_head(tmp_path: Path) -> None:
    shapes = {name: ("BF16", shape) for name, shape in llama_shapes(tiny_config(300)).items()}
    del shapes["lm_head.weight"]
    with pytest.raises(CheckpointError, match="has no lm_head"):
        read_facts(write_hollow(tmp_path, tiny_config(300), shapes))


@pytest.mark.parametrize(("tied", "fix"), [(True, "tied to it"), (False, "download")])
def test_a_missing_embedding(tmp_path: Path, *, tied: bool, fix: str) -> None:
    """Some savers of tied models store the head alone."""
    shapes = {name: ("BF16", shape) for name, shape in llama_shapes(tiny_config(300)).items()}
    del shapes["model.embed_tokens.weight"]
    config = tiny_config(300) | {"tie_word_embeddings": tied}
    with pytest.raises(CheckpointError, match=f"has no input embedding.*{fix}"):
        read_facts(write_hollow(tmp_path, config, shapes))


@pytest.mark.parametrize("name", ["wte", "word_embeddings", "embed_in", "embeddings", "embed"])
def test_an_embedding_of_another_name(tmp_path: Path, name: str) -> None:
    shapes = {
        tensor.replace("embed_tokens", name): ("BF16", shape)
        for tensor, shape in llama_shapes(tiny_config(300)).items()
    }
    assert read_facts(write_hollow(tmp_path, tiny_config(300), shapes)).vocab_size == 300


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("model.layers.1.self_attn.q_proj", "layers.1.attention.wq"),  # Meta
        ("model.layers.1.self_attn", "blk.1.attn"),  # llama.cpp
        ("model.layers.1.self_attn.q_proj", "decoder.layers.1.self_attention.linear_qkv"),
        ("model.layers.1", "_orig_mod.model.layers.1"),  # torch.compile
        ("model.layers.1", "base_model.model.model.layers.1"),  # peft
    ],
)
def test_names_of_another_project_need_a_conversion(tmp_path: Path, old: str, new: str) -> None:
    shapes = {
        tensor.replace(old, new): ("BF16", shape)
        for tensor, shape in llama_shapes(tiny_config(300)).items()
    }
    with pytest.raises(CheckpointError, match=r"do not have transformers' names.*convert") as told:
        read_facts(write_hollow(tmp_path, tiny_config(300), shapes))
    assert new.partition(".")[0] in str(told.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", "version https://git-lfs.github.com/spec/v1\n"])
def test_a_broken_config(tmp_path: Path, text: str) -> None:
    write_tiny_llama(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_facts(tmp_path)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_facts(tmp_path)
