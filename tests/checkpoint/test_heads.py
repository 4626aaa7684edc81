"""What a head says of itself, and how one of another model shows that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import (
    tiny_config,
    write_hollow_file,
    write_json,
    write_tiny_llama,
    write_tokenizer,
)
from whet.checkpoint import read_facts
from whet.checkpoint.heads import head_problem, read_head

EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {"model_type": "llama", "hidden_size": 128, "vocab_size": 300},
    "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]},
    "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
}


def write_head(folder: Path, *, whole: bool = False, **config: Any) -> Path:
    """A head of the tiny Llama in ``tests/checkpoint_factory.py``, without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config if whole else tiny_config(300) | EAGLE3 | config)
    write_hollow_file(folder / "model.safetensors", {"fc.weight": ("BF16", (128, 384))})
    return folder


@pytest.mark.parametrize(
    ("config", "method", "options"),
    [
        ({}, "eagle3", {}),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, "eagle3", {}),
        ({"architectures": ["PEagleLlamaForCausalLM"]}, "eagle3", {"parallel_drafting": True}),
        ({"pard_token": 7}, "eagle3", {"parallel_drafting": True}),
        ({"architectures": ["DFlashDraftModel"]}, "dflash", {}),
        ({"architectures": ["MuseGlimmerAssistantModel"]}, "dflash", {}),
        ({"architectures": ["Qwen3DSparkModel"]}, "dspark", {}),
        ({"architectures": ["LlamaForCausalLM"]}, "eagle", {}),
        ({"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_assistant"}, "mtp", {}),
    ],
)
def test_the_method_is_read_from_the_files(
    tmp_path: Path, config: dict[str, Any], method: str, options: dict[str, Any]
) -> None:
    head = read_head(write_head(tmp_path / "head", **config))
    assert (head.method, dict(head.options)) == (method, options)


def test_a_whole_model_is_a_draft(tmp_path: Path) -> None:
    assert read_head(write_tiny_llama(tmp_path / "draft")).method == "draft_model"


def test_the_format_of_speculators_has_k_and_its_shape_inside(tmp_path: Path) -> None:
    target = read_facts(write_tiny_llama(tmp_path / "target"))
    head = read_head(write_head(tmp_path / "head", whole=True, **SPECULATORS))
    assert (head.method, head.num_tokens, head.hidden_size) == ("eagle3", 5, 128)
    assert target.vocab_size == 300
    assert head_problem(head, target) is None


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({}, None),
        ({"hidden_size": 64}, "hidden states of 64 values and the target's have 128"),
        ({"hidden_size": 64, "target_hidden_size": 128}, None),
        ({"vocab_size": 999, "draft_vocab_size": 300}, "vocabulary has 999 tokens"),
        ({"draft_vocab_size": 100}, None),
        ({"num_target_layers": 36}, "made for 36 layers and the target has 2"),
        ({"dflash_config": {"target_layer_ids": [1, 17, 33]}}, "reads layer 33"),
    ],
)
def test_a_head_of_another_shape_is_named(
    tmp_path: Path, config: dict[str, Any], word: str | None
) -> None:
    target = read_facts(write_tiny_llama(tmp_path / "target"))
    problem = head_problem(read_head(write_head(tmp_path / "head", **config)), target)
    assert problem is None if word is None else word in (problem or "")


def test_a_head_of_another_tokenizer_is_named(tmp_path: Path) -> None:
    target = read_facts(write_tiny_llama(tmp_path / "target"))
    folder = write_head(tmp_path / "head")
    write_tokenizer(folder)
    assert head_problem(read_head(folder), target) is None
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    data["added_tokens"][0]["content"] = "<|begin|>"
    file.write_text(json.dumps(data))
    assert "its tokenizer is not the target's" in (head_problem(read_head(folder), target) or "")
