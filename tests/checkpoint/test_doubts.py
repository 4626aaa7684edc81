"""What loads all the same and is said: ids without a row, a head that no engine uses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.checkpoint_factory import write_tiny_llama
from whet.checkpoint import checkpoint_doubts, read_facts


def test_an_ordinary_checkpoint_raises_no_doubt(tmp_path: Path) -> None:
    assert list(checkpoint_doubts(read_facts(write_tiny_llama(tmp_path)))) == []


def test_a_token_id_without_a_row_is_said(tmp_path: Path) -> None:
    facts = read_facts(write_tiny_llama(tmp_path))
    file = tmp_path / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["vocab"]["zzz"] = facts.vocab_size
    file.write_text(json.dumps(tokenizer))
    (said,) = checkpoint_doubts(read_facts(tmp_path))
    assert f"ids up to {facts.vocab_size}, and the embedding has {facts.vocab_size} rows" in said


@pytest.mark.parametrize(("factor", "count"), [(1.0, 0), (1.1, 1)])
def test_a_tied_head_that_differs_is_said(tmp_path: Path, factor: float, count: int) -> None:
    file = write_tiny_llama(tmp_path, tie_word_embeddings=True) / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = (embedding * factor).astype(np.float16)
    save_file(tensors, file, metadata={"format": "pt"})
    said = list(checkpoint_doubts(read_facts(tmp_path)))
    assert len(said) == count
    assert all("the stored lm_head differs: engines leave it out" in each for each in said)
