"""A folder that would keep whet at work without an end is refused in one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_json, write_tiny_llama
from whet.checkpoint import locate, read_facts
from whet.checkpoint.chat import ChatTemplate
from whet.checkpoint.tokenizer import load_tokenizer
from whet.core.errors import CheckpointError, UsageError


def change(folder: Path, **more: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | more)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny")


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next", "nonsense"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 1e9),
        ("n_layer", 10**9),
        ("num_attention_heads", 10**9),
        ("num_key_value_heads", 10**12),
        ("hidden_size", 10**12),
        ("intermediate_size", 10**30),
        ("head_dim", 10**30),
        ("vocab_size", 10**30),
        ("max_position_embeddings", 10**30),
        ("sliding_window", 10**30),
        ("num_experts", 10**9),
        ("num_experts_per_tok", 10**30),
        ("mamba_d_state", 10**30),
        ("kv_lora_rank", 10**30),
        ("text_config", {"num_hidden_layers": 10**9}),
        ("rope_scaling", {"rope_type": "linear", "factor": 10**30}),
    ],
)
def test_a_number_that_no_model_has(tiny: Path, kind: str, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"no model has more than|correct rope_scaling"):
        read_facts(change(tiny, model_type=kind, **{key: value}))


def test_a_scaling_of_positions_that_no_model_has(tiny: Path) -> None:
    with pytest.raises(CheckpointError, match="correct rope_scaling"):
        read_facts(change(tiny, rope_scaling={"rope_type": "linear", "factor": 1e300}))


def test_large_bases_of_rotary_embeddings_are_ordinary(tiny: Path) -> None:
    assert read_facts(change(tiny, rope_theta=45_845_122_340)).layers > 0


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_refused_as_by_transformers(tiny: Path, encoding: str) -> None:
    file = tiny / "config.json"
    file.write_text(file.read_text(), encoding=encoding)
    with pytest.raises(CheckpointError, match="byte-order mark; save it as UTF-8 without one"):
        read_facts(tiny)


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "vocab.json"],
)
@pytest.mark.parametrize("device", [True, False])
def test_a_pipe_or_a_device_is_refused(tiny: Path, name: str, *, device: bool) -> None:
    (tiny / name).unlink(missing_ok=True)
    if device:
        (tiny / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(tiny / name)
    for read in (read_facts, load_tokenizer, lambda path: locate(str(path))):
        with pytest.raises(CheckpointError, match=f"{name} is a pipe, a socket or a device"):
            read(tiny)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 10 ** (10 ** 9) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ 'x' * 100000000 }}",
        "{% set n = namespace(s='x') %}{% for i in range(50) %}{% set n.s = n.s ~ n.s %}"
        "{% endfor %}{{ n.s }}",
    ],
)
def test_a_template_without_an_end_is_refused(
    tiny: Path, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.checkpoint.chat._RENDER_S", 1)
    with pytest.raises(UsageError, match="the chat template takes more than 1 s or"):
        ChatTemplate(load_tokenizer(tiny), template)


def test_an_ordinary_template_is_tried_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for m in messages %}{{ m.content }}{{ 2 ** 3 }}{% endfor %}"
    tokenizer = load_tokenizer(tiny)
    ChatTemplate(tokenizer, template)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("tried again"))
    assert ChatTemplate(tokenizer, template).chat([{"role": "user", "content": "a"}]) == "a8"
