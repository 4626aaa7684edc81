"""Oddities of a checkpoint that an engine loads without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from whet.checkpoint.files import read_chat_template
from whet.checkpoint.headers import read_headers
from whet.checkpoint.hub import is_hollow
from whet.checkpoint.tokenizer import read_vocabulary
from whet.core.records.model import ModelFacts

_PARTS: Final = (".k_scale", ".v_scale")
_ONE: Final = {"F32": b"\x00\x00\x80\x3f", "BF16": b"\x80\x3f", "F16": b"\x00\x3c"}
"""The number 1 as stored, by dtype."""


def checkpoint_doubts(facts: ModelFacts) -> Iterator[str]:
    """One sentence each: token ids without a row, and a stored head that is not used."""
    path = Path(facts.path)
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
    if head is not None and embedding is not None and head.read() != embedding.read():
        yield (
            f"config.json of {path.name} ties the output head to the embedding, and the stored "
            "lm_head differs: engines leave it out; correct tie_word_embeddings"
        )


def no_template(folder: Path) -> Iterator[str]:
    """Yield what a model without a chat template cannot do."""
    if read_chat_template(folder) is None:
        yield (
            f"{folder.name} has no chat template: servers of it take plain prompts and no chat "
            "messages, and the gate leaves tasks with messages out"
        )


def kv_scales_problem(folder: Path) -> str | None:
    """Return why the KV scales of a checkpoint folder are not calibrated, or None.

    Scales that are all 1.0 are the default of quantizers and engines; measured maxima divided by
    448 (the largest E4M3 value) are never all 1. None also where the folder stores no scales.
    ``CheckpointError`` for a folder that cannot be read.
    """
    headers = [h for name, h in read_headers(folder).items() if name.endswith(_PARTS)]
    ones = (each.read() == _ONE.get(each.dtype, b"") * each.elements for each in headers)
    if not headers or not all(ones):
        return None
    return (
        f"all {len(headers)} KV scales of {folder} are 1.0, so they are not calibrated; quantize "
        "again with kv_cache: fp8"
    )
