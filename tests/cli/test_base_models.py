"""Models that are not chats or not checkpoints: base models without a template, GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_json, write_tiny_llama
from tests.cli.stage import Whet, write_spec
from tests.cli.test_init_from_log import write_log
from whet.core.errors import CheckpointError, UsageError
from whet.core.spec import load_spec

H100 = ("--device", "H100 SXM")
NOTE = "has no chat template: servers of it take plain prompts and no chat messages, and the gate"


def write_base(folder: Path, **config: Any) -> Path:
    """A tiny model whose tokenizer has no chat template."""
    write_tiny_llama(folder, max_position_embeddings=8192, **config)
    words = json.loads((folder / "tokenizer_config.json").read_text())
    del words["chat_template"]
    write_json(folder / "tokenizer_config.json", words)
    return folder


def write_prompts(path: Path, requests: int = 1500) -> Path:
    lines = (
        {
            "request": {"model": "m", "prompt": f"Order {number} of {1900 + number} was " * 4},
            "response": {"choices": [{"text": "shipped"}], "usage": {"completion_tokens": 8}},
        }
        for number in range(requests)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_from_a_log_of_plain_prompts_to_a_check(whet: Whet, tmp_path: Path) -> None:
    write_base(tmp_path / "model")
    write_prompts(tmp_path / "log.jsonl")
    said = whet("init", "--model", "model", "--traffic", "log.jsonl", *H100)
    assert said.code == 0, said.err
    checked = whet("check", *H100)
    assert checked.code == 0, checked.err
    assert checked.err.count(NOTE) == 1


def test_a_log_of_chats_says_where_a_template_goes(whet: Whet, tmp_path: Path) -> None:
    write_base(tmp_path / "model")
    write_log(tmp_path / "log.jsonl")
    said = whet("init", "--model", "model", "--traffic", "log.jsonl", *H100)
    sentence = said.sentence(UsageError.exit_code)
    assert (
        "the tokenizer has no chat template; put the server's into the model's folder" in sentence
    )


def test_a_spec_without_a_log(whet: Whet, tmp_path: Path) -> None:
    write_base(tmp_path / "target")
    plain = {"fp16": {}}
    write_spec(tmp_path, model={"target": "./target"}, quality={"max_tasks": 0}, variants=plain)
    said = whet("check", *H100)
    assert said.code == 0, said.err
    assert said.err.count(NOTE) == 1
    assert load_spec(tmp_path / "whet.yaml").quality.max_tasks == 0


def test_it_is_quantized_with_the_built_in_text(whet: Whet, tmp_path: Path) -> None:
    write_base(tmp_path / "model", hidden_size=64, num_attention_heads=1, intermediate_size=64)
    little = ("--samples", "8", "--max-tokens", "32", "--group-size", "32", "--device", "cpu")
    said = whet("quantize", "model", "out", *little)
    assert said.code == 0, said.err
    assert "scales are fitted on chats as plain text" in said.out


COMMANDS = (
    "quantize {} out",
    "plan {} --workload log.jsonl --objective ttft_p95<=1s",
    "quality {}",
    "prompts log.jsonl --model {}",
    "init new.yaml --model {}",
    "init new.yaml --model {} --traffic log.jsonl",
    "init new.yaml --model model --draft {}",
    "check",
)


@pytest.mark.parametrize("ref", ["./model-q4.gguf", "./folder", "someone/Name-8B-GGUF:Q4_K_M"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_gguf_file_gets_one_sentence_in_every_command(
    whet: Whet, tmp_path: Path, command: str, ref: str
) -> None:
    (tmp_path / "model-q4.gguf").write_bytes(b"GGUF")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model-q4.gguf").write_bytes(b"GGUF")
    write_prompts(tmp_path / "log.jsonl", 200)
    write_spec(tmp_path, model={"target": ref}, variants={"fp16": {}})
    said = whet(*command.format(ref).split())
    sentence = said.sentence(CheckpointError.exit_code)
    assert "holds GGUF weights; give the safetensors checkpoint they were made of" in sentence
    assert not (tmp_path / "new.yaml").exists()
