"""Held-out documents as token ids, cut to a length that every measurement shares."""

from __future__ import annotations

from pathlib import Path

from whet.core.errors import UsageError
from whet.core.spec import QualitySpec
from whet.quality.data import load_documents
from whet.quality.prompts import Encoder, Ids


def heldout_ids(path: Path, encoder: Encoder, spec: QualitySpec) -> list[Ids]:
    """Token ids of each document, cut so that it and the one token asked for fit ``max_tokens``.

    ``UsageError`` where no document has two tokens: nothing would be predicted.
    """
    longest = spec.max_tokens - 1
    encoded = [
        encoder.document(document)[:longest]
        for document in load_documents(path, spec.max_documents)
    ]
    scorable = [ids for ids in encoded if len(ids) > 1]
    if not scorable:
        raise UsageError(
            f"{path} holds no document of two tokens or more within quality.max_tokens = "
            f"{spec.max_tokens}; give longer text or raise it"
        )
    return scorable
