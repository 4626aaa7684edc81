"""Held-out text as token ids, cut to a length that every measurement shares."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from whet.core.errors import UsageError
from whet.core.spec import QualitySpec
from whet.quality.data import HeldoutDocument, load_documents
from whet.quality.prompts import Encoder, Ids

_SHORTEST: Final = 2
_JSON_LINES: Final = (".jsonl", ".ndjson")
_BETWEEN_ROWS: Final = "\n\n"
Item = TypeVar("Item")


def heldout_ids(path: Path, encoder: Encoder, spec: QualitySpec) -> list[Ids]:
    """Token ids of what is scored as one: documents, or windows of a stream (``spec.protocol``).

    Raises ``UsageError`` where the file cannot be used, and where nothing would be predicted.
    """
    if spec.protocol == "windows":
        return _windows(path, encoder, spec)
    return _documents(path, encoder, spec)


def _documents(path: Path, encoder: Encoder, spec: QualitySpec) -> list[Ids]:
    """Each document, cut so that it and the one token asked for fit ``max_tokens``."""
    longest = spec.max_tokens - 1
    encoded = [
        encoder.document(document)[:longest]
        for document in load_documents(path, spec.max_documents)
    ]
    scorable = [ids for ids in encoded if len(ids) >= _SHORTEST]
    if not scorable:
        raise UsageError(
            f"{path} holds no document of two tokens or more within quality.max_tokens = "
            f"{spec.max_tokens}; give longer text or raise it"
        )
    return scorable


def _windows(path: Path, encoder: Encoder, spec: QualitySpec) -> list[Ids]:
    """The whole text as one stream, in windows of exactly ``max_tokens`` that do not overlap.

    This is how papers report WikiText-2: the rows of the test split joined by two line ends,
    tokenized once, cut into windows of 2,048 tokens, the incomplete tail dropped (GPTQ,
    arXiv 2210.17323, ``datautils.py`` and ``llama.py`` of its code; AWQ and SpinQuant took it
    over). The stream is encoded as a plain call of the tokenizer does it: one that adds a
    beginning-of-sequence token adds it once, before the first window, as in the perplexity guide
    of Hugging Face's transformers. llama.cpp's tool differs (a BOS a window, its second half
    scored). Each window predicts ``max_tokens`` − 1 tokens, so that weighing by token is the
    papers' mean over windows. More than ``max_documents`` windows are thinned evenly.

    The server must take one token more than ``max_tokens``: it is asked to generate one.
    """
    size = spec.max_tokens
    if size < _SHORTEST:
        raise UsageError("a window of one token predicts nothing; raise quality.max_tokens")
    stream = encoder.document(HeldoutDocument(text=_text(path)))
    windows = [stream[at : at + size] for at in range(0, len(stream) - size + 1, size)]
    if not windows:
        raise UsageError(
            f"{path} holds {len(stream)} tokens, less than one window of quality.max_tokens = "
            f"{size}; give longer text or lower it"
        )
    return _spread(windows, spec.max_documents)


def _spread(items: Sequence[Item], limit: int) -> list[Item]:
    count = min(limit, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def _text(path: Path) -> str:
    """The whole text: a plain file as it is, or the ``text`` of JSON lines joined."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix in _JSON_LINES:
                text = _BETWEEN_ROWS.join(_rows(file, path))
            else:
                text = file.read()
    except FileNotFoundError as error:
        raise UsageError(f"no held-out text at {path}; correct the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the held-out text at {path} cannot be read: {error}") from error
    if not text.strip():
        raise UsageError(f"{path} holds no text; give the text of a corpus")
    return text


def _rows(lines: Iterator[str], path: Path) -> Iterator[str]:
    """The text of each row, also where it is empty: WikiText's blank rows count."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{path} line {number} is not JSON; correct that line, or name a plain text file "
                ".txt"
            ) from error
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise UsageError(
                f'{path} line {number} has no "text"; quality.protocol: windows needs plain text, '
                "not chats: give quality.heldout such a file, or leave the protocol out"
            )
        yield row["text"]
