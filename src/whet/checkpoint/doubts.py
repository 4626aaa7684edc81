"""Oddities of a checkpoint that an engine loads without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from whet.checkpoint.gguf_file import find_gguf
from whet.checkpoint.headers import TensorHeader, read_headers
from whet.checkpoint.hollow import is_hollow
from whet.checkpoint.tokenizer import read_vocabulary
from whet.core.records.model import ModelFacts
from whet.core.units import MIB

_COMPARED: Final = MIB
"""Bytes at the start of a head and an embedding that show whether they are one matrix."""


def checkpoint_doubts(facts: ModelFacts) -> Iterator[str]:
    """One sentence each: token ids without a row, and a stored head that is not used."""
    path = Path(facts.path)
    if find_gguf(path) is not None:
        return
    largest = max(read_vocabulary(path).ids.values(), default=0)
    if largest >= facts.vocab_size:
        yield (
            f"tokenizer.json of {path.name} has token ids up to {largest:,}, and the embedding has "
            f"{facts.vocab_size:,} rows: a prompt with a larger id cannot be computed; use the "
            "tokenizer of these weights"
        )
    if not facts.tied_embeddings or is_hollow(path):
        return
    stored = {each.name.rpartition("model.")[2]: each for each in read_headers(path).values()}
    head, embedding = stored.get("lm_head.weight"), stored.get("embed_tokens.weight")
    if head is not None and embedding is not None and _start(head) != _start(embedding):
        yield (
            f"config.json of {path.name} ties the output head to the embedding, and the stored "
            "lm_head differs: engines leave it out; correct tie_word_embeddings"
        )


def _start(tensor: TensorHeader) -> bytes:
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        return file.read(min(_COMPARED, tensor.size_bytes))
