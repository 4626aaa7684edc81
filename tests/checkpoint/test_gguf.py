"""GGUF files: read, and refused where they are another model's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint_factory import write_tiny_llama
from whet.checkpoint import read_facts, weights_facts
from whet.checkpoint.hub import local_folder
from whet.checkpoint.tokenizer import read_vocabulary
from whet.core.errors import CheckpointError
from whet.demo import pair_paths

pytest.importorskip("gguf", reason="the package gguf is not installed")
TARGET = pair_paths()[0]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as the converter writes it, as far as whet reads it."""
    import gguf
    from safetensors.torch import load_file

    out = tmp_path_factory.mktemp("gguf") / "target.gguf"
    facts, tensors = read_facts(TARGET), load_file(TARGET / "model.safetensors")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, facts.layers)
    ids = read_vocabulary(TARGET).ids
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_block_count(facts.layers)
    writer.add_embedding_length(facts.hidden_size)
    writer.add_head_count(facts.heads)
    writer.add_token_list(sorted(ids, key=lambda token: ids[token]))
    for name, tensor in tensors.items():
        stored = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(stored, tensor.half().numpy())
    writer.add_tensor("rope_freqs.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
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
