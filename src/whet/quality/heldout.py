"""Held-out text as token ids, cut to a length that every measurement shares."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.spec import QualitySpec
from whet.quality.data import HeldoutDocument, load_documents, spread
from whet.quality.prompts import Encoder, Ids

_SHORTEST: Final = 2
_JSON_LINES: Final = (".jsonl", ".ndjson")
_BETWEEN_ROWS: Final = "\n\n"
_TITLE: Final = re.compile(r"^ = (?!=)[^\n]*(?<!=) = ?\r?$", re.MULTILINE)
"""The title line of a WikiText article; headings within one have two signs or more."""


HeldoutText = tuple[list[Ids], tuple[int, ...]]
"""Held-out text as token ids, and the source document of each item by number.

Windows of one source document are not independent of each other.
"""


def heldout_ids(path: Path, encoder: Encoder, spec: QualitySpec) -> list[Ids]:
    """Return the token ids of ``read_heldout`` alone."""
    return read_heldout(path, encoder, spec)[0]


def read_heldout(path: Path, encoder: Encoder, spec: QualitySpec) -> HeldoutText:
    """Return documents, or windows of a stream (``spec.protocol``), as token ids.

    Raises ``UsageError`` where the file cannot be used, and where nothing would be predicted.
    """
    if spec.protocol == "windows":
        return _windows(path, encoder, spec)
    documents = _documents(path, encoder, spec)
    return documents, tuple(range(len(documents)))


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
            f"{spec.max_tokens}",
            fix="give longer text or raise it",
        )
    return scorable


def _windows(path: Path, encoder: Encoder, spec: QualitySpec) -> HeldoutText:
    """The whole text as one stream, in windows of exactly ``max_tokens`` that do not overlap.

    This is how papers report WikiText-2: the rows of the test split joined by two line ends,
    tokenized once, cut into windows of 2,048 tokens, the incomplete tail dropped (GPTQ,
    arXiv 2210.17323). A tokenizer that adds a beginning-of-sequence token adds it once, before the
    first window; llama.cpp's tool differs. Each window predicts ``max_tokens`` − 1 tokens. More
    than ``max_documents`` windows are thinned evenly.

    The server must take one token more than ``max_tokens``: it is asked to generate one.
    A window belongs to the source document in which it begins.
    """
    size = spec.max_tokens
    if size < _SHORTEST:
        raise UsageError("a window of one token predicts nothing", fix="raise quality.max_tokens")
    texts = _source_texts(path)
    stream = encoder.document(HeldoutDocument(text="".join(texts)))
    starts = list(range(0, len(stream) - size + 1, size))
    if not starts:
        raise UsageError(
            f"{path} holds {len(stream)} tokens, less than one window of quality.max_tokens = "
            f"{size}",
            fix="give longer text or lower it",
        )
    starts = spread(starts, spec.max_documents)
    ends = _source_ends(texts, len(stream), encoder)
    windows = [stream[at : at + size] for at in starts]
    return windows, tuple(bisect_right(ends, at) for at in starts)


def _source_ends(texts: Sequence[str], tokens: int, encoder: Encoder) -> list[float]:
    """Return where each source document but the last ends in a stream of ``tokens``.

    Texts tokenized apart have other tokens at their seams, so the lengths are scaled to the stream.
    """
    lengths = [len(encoder.document(HeldoutDocument(text=text))) for text in texts]
    scale = tokens / sum(lengths)
    return [end * scale for end in accumulate(lengths)][:-1]


def _source_texts(path: Path) -> list[str]:
    """Return the whole text in pieces, one per source document.

    The text is a plain file as it is, or the ``text`` of JSON lines joined. WikiText's articles
    begin with their titles; without titles each JSON line is a source document.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(_rows(file, path)) if path.suffix in _JSON_LINES else [file.read()]
    except FileNotFoundError as error:
        raise UsageError(f"no held-out text at {path}", fix="correct the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the held-out text at {path} cannot be read: {error}") from error
    text = _BETWEEN_ROWS.join(rows)
    if not text.strip():
        raise UsageError(f"{path} holds no text", fix="give the text of a corpus")
    titles = [title.start() for title in _TITLE.finditer(text)]
    if titles:
        cuts = [0, *(at for at in titles if text[:at].strip()), len(text)]
        return [text[at:end] for at, end in pairwise(cuts)]
    return [f"{row}{_BETWEEN_ROWS}" for row in rows[:-1]] + [row for row in rows[-1:] if row]


def _rows(lines: Iterator[str], path: Path) -> Iterator[str]:
    """The text of each row, also where it is empty: WikiText's blank rows count."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{path} line {number} is not JSON",
                fix="correct that line, or name a plain text file .txt",
            ) from error
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise UsageError(
                f'{path} line {number} has no "text"',
                fix="quality.protocol: windows needs plain text, "
                "not chats: give quality.heldout such a file, or leave the protocol out",
            )
        yield row["text"]
