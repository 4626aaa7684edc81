"""Whatever a checkpoint's JSON says, the answer is facts or one sentence, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import tiny_config, write_json, write_tiny_llama
from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError

NONSENSE: tuple[Any, ...] = (None, True, -1, 0, 1.5, "x", [], [None], {}, {"x": [1]}, 10**30)
CONFIG_KEYS = (
    *tiny_config(300),
    "layer_types",
    "rope_scaling",
    "rope_parameters",
    "quantization_config",
    "text_config",
    "kv_lora_rank",
    "num_experts",
    "moe_intermediate_size",
    "sliding_window",
    "num_kv_shared_layers",
    "hybrid_override_pattern",
    "block_configs",
    "mamba_d_state",
    "auto_map",
)
TOKENIZER_KEYS = ("model", "added_tokens")
TOKENIZER_CONFIG_KEYS = ("bos_token", "eos_token", "chat_template", "auto_map")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("config.json", key) for key in CONFIG_KEYS),
        *(("tokenizer.json", key) for key in TOKENIZER_KEYS),
        *(("tokenizer_config.json", key) for key in TOKENIZER_CONFIG_KEYS),
        ("generation_config.json", "eos_token_id"),
    ],
)
def test_nonsense_under_a_key(model: Path, name: str, key: str) -> None:
    before = (model / name).read_text()
    try:
        for value in NONSENSE:
            write_json(model / name, json.loads(before) | {key: value})
            ends_in_words(model)
    finally:
        (model / name).write_text(before)


@pytest.mark.parametrize("key", ["vocab", "merges"])
def test_nonsense_in_the_vocabulary(model: Path, key: str) -> None:
    before = (model / "tokenizer.json").read_text()
    try:
        for value in NONSENSE:
            data = json.loads(before)
            data["model"][key] = value
            write_json(model / "tokenizer.json", data)
            ends_in_words(model)
    finally:
        (model / "tokenizer.json").write_text(before)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_json_that_is_too_deep(model: Path, name: str) -> None:
    before = (model / name).read_text()
    try:
        (model / name).write_text("[" * 100_000)
        ends_in_words(model)
    finally:
        (model / name).write_text(before)


def ends_in_words(path: Path) -> None:
    try:
        facts = read_facts(path)
    except CheckpointError:
        return
    assert facts.parameters in (372_352, 333_952)  # untied, tied
