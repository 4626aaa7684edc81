"""GGUF files: written from a checkpoint, read back, and refused where they are another model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint_factory import write_tiny_llama
from whet.checkpoint import read_facts, weights_facts
from whet.checkpoint.gguf_file import read_gguf
from whet.checkpoint.locate import local_folder
from whet.core.errors import CheckpointError
from whet.demo import pair_paths
from whet.quant.llama_cpp.convert import conversion_problem, write_gguf

pytest.importorskip("gguf", reason="the package gguf is not installed")
TARGET = pair_paths()[0]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gguf") / "target.gguf"
    write_gguf(TARGET, out, progress=lambda _done, _total: None)
    return out


def test_a_file_has_the_facts_of_its_checkpoint(file: Path) -> None:
    target = read_facts(TARGET)
    facts = weights_facts(file, target)
    assert facts.path == str(file)
    assert facts.parameters == target.parameters
    assert facts.linear_parameters == target.linear_parameters
    assert facts.linear_inputs == target.linear_inputs
    assert facts.tokenizer == target.tokenizer
    assert (facts.stored.scheme, facts.stored.bits_per_weight) == ("16bit", 16.0)
    assert facts.tied_embeddings


def test_rotated_channels_are_interleaved(file: Path) -> None:
    """Row i of a head's first half goes to row 2i, that of its second half to row 2i + 1."""
    from safetensors.torch import load_file

    source = load_file(TARGET / "model.safetensors")["model.layers.0.self_attn.k_proj.weight"]
    header = read_gguf(file).tensors["blk.0.attn_k.weight"]
    assert header.shape == tuple(source.shape)
    row = source.shape[1] * 2
    written = file.read_bytes()[header.start : header.end]
    half = source.shape[0] // 2
    for at, origin in ((0, 0), (1, half), (2, 1), (3, half + 1)):
        assert written[at * row : (at + 1) * row] == source[origin].view(_int16()).numpy().tobytes()


def _int16() -> Any:
    import torch

    return torch.int16


def test_the_metadata_is_the_tokenizers(file: Path) -> None:
    metadata = read_gguf(file).metadata
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    assert metadata["tokenizer.ggml.tokens"][2] == "<|end|>"
    assert metadata["tokenizer.ggml.token_type"][2] == 3
    assert metadata["tokenizer.ggml.eos_token_id"] == 2
    assert metadata["llama.attention.head_count_kv"] == 1


def test_a_file_of_another_model_is_refused(file: Path, tmp_path: Path) -> None:
    other = read_facts(write_tiny_llama(tmp_path / "other"))
    with pytest.raises(CheckpointError, match="holds another model: block_count is 6"):
        weights_facts(file, other)


def test_a_file_with_another_vocabulary_is_refused(file: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((TARGET / name).read_bytes())
    tokenizer = json.loads((TARGET / "tokenizer.json").read_text())
    tokenizer["added_tokens"][3]["content"] = "<|boss|>"
    tokenizer["model"]["vocab"]["<|boss|>"] = tokenizer["model"]["vocab"].pop("<|system|>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    from whet.checkpoint.gguf_file import gguf_facts

    with pytest.raises(CheckpointError, match=r"another vocabulary: id 3 is '<\|system\|>'"):
        gguf_facts(file, model=tmp_path)


def test_a_file_that_is_not_whole_is_a_sentence(file: Path, tmp_path: Path) -> None:
    target = read_facts(TARGET)
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        weights_facts(tmp_path / "text.gguf", target)
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="is not a whole GGUF file"):
        weights_facts(tmp_path / "cut.gguf", target)


def test_a_file_is_a_place_for_weights(file: Path) -> None:
    assert local_folder(str(file)) == file.resolve()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "and this is Qwen2ForCausalLM"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "with scaled RoPE"),
    ],
)
def test_what_whet_does_not_write(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    for path in TARGET.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((TARGET / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    problem = conversion_problem(tmp_path)
    assert problem is not None
    assert reason in problem
    assert problem.endswith("serve it with weights: ./file.gguf")
    assert conversion_problem(TARGET) is None
