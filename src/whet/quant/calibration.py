"""Read calibration text: sample rows by a seed, tokenize them and cut them to length.

The first pass over a JSONL file indexes its usable rows (16 bytes of memory per row); the second
reads and tokenizes the sampled rows only, so a long request log needs little memory.
"""

from __future__ import annotations

import hashlib
import json
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whet.core.errors import CheckpointError, UsageError
from whet.core.records import CalibrationFacts
from whet.quant.rows import Document, Message, read_row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FORMS: Final = "JSONL rows with messages, text or prompt, a request log, or a .txt file"
_ROWS: Final = (".jsonl", ".json", ".ndjson")
_CHARS_PER_TOKEN: Final = 8  # more than real text has, so that a piece fills its window
_MIN_TOKENS: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Token ids of each sample, at most ``facts.max_tokens`` long, and their origin."""

    ids: tuple[tuple[int, ...], ...]
    facts: CalibrationFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sample:
    """A sampled document and its line number, from 1."""

    line: int
    document: Document


@dataclass(kw_only=True, slots=True)
class _RowIndex:
    """The byte offsets and line numbers of the usable rows of a file."""

    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lines: array[int] = field(default_factory=lambda: array("Q"))
    skipped: int = 0
    truncated: bool = False


def load_calibration(
    path: Path, tokenizer_path: Path, *, samples: int, max_tokens: int, seed: int
) -> Calibration:
    """Up to ``samples`` documents of ``path``, sampled by ``seed``, in the file's order.

    A longer document is cut to its first token and a window sampled by the same seed: chats that
    share a long system prompt would otherwise all become that prompt. An incomplete last line, as
    in a log that is still written, is skipped with a warning. ``UsageError`` where the file cannot
    be read or has no usable text.
    """
    sha256 = calibration_sha256(path)
    dice = random.Random(seed)
    rows = _has_rows(path)
    index = _index_rows(path) if rows else _RowIndex()
    sampled = (
        _draw_rows(path, index, dice, samples)
        if rows
        else _draw_text(path, dice, samples, max_tokens)
    )
    tokenizer = load_tokenizer(tokenizer_path)
    cut = (_cut(ids, max_tokens, dice) for ids in _tokenize(path, sampled, tokenizer))
    ids = tuple(sample for sample in cut if len(sample) >= _MIN_TOKENS)
    if not ids:
        raise UsageError(f"the calibration file {path} has no usable text; give {_FORMS}")
    facts = CalibrationFacts(
        source=str(path),
        sha256=sha256,
        samples=len(ids),
        tokens=sum(map(len, ids)),
        max_tokens=max_tokens,
        seed=seed,
        form=", ".join(sorted({item.document.form for item in sampled})),
        rows=len(index.offsets) if rows else None,
        skipped=index.skipped,
        left_out=sum(item.document.left_out for item in sampled),
        warnings=tuple(_warnings(path, index, sampled)),
    )
    return Calibration(ids=ids, facts=facts)


def calibration_sha256(path: Path) -> str:
    """The hash that ``CalibrationFacts`` carries; ``UsageError`` where the file cannot be read."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError("a pipe or a device cannot be read twice")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(
            f"the calibration file {path} cannot be read ({error.strerror or error}); give {_FORMS}"
        ) from error


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a checkpoint folder; ``CheckpointError`` where it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"the tokenizer in {path} cannot be loaded ({str(error).splitlines()[0]}); "
            "download the checkpoint again"
        ) from error
    return tokenizer


def _has_rows(path: Path) -> bool:
    """Whether it is JSONL, by its suffix; with another suffix, by its first line."""
    if path.suffix.lower() in (*_ROWS, ".txt"):
        return path.suffix.lower() in _ROWS
    with path.open("rb") as file:
        first = file.readline()
    try:
        return isinstance(json.loads(first.decode("utf-8-sig")), dict)
    except ValueError:
        return False


def _index_rows(path: Path) -> _RowIndex:
    """Index the usable rows. Raises ``UsageError`` for a broken line before the last one."""
    index, start = _RowIndex(), 0
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                document = _read(path, line, raw) if raw.strip() else None
            except UsageError:
                if raw.endswith(b"\n") or not index.offsets:
                    raise
                index.truncated = True
                continue
            if document is not None:
                index.offsets.append(start)
                index.lines.append(line)
            elif raw.strip():
                index.skipped += 1
            start += len(raw)
    return index


def _read(path: Path, line: int, raw: bytes) -> Document | None:
    try:
        return read_row(json.loads(raw.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"line {line} of {path} is not UTF-8 text; save the file as UTF-8"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"line {line} of {path} is not JSON; write one JSON object a line, or name it .txt"
        ) from error


def _draw(dice: random.Random, available: int, samples: int) -> Sequence[int]:
    return range(available) if available <= samples else dice.sample(range(available), samples)


def _draw_rows(path: Path, index: _RowIndex, dice: random.Random, samples: int) -> list[_Sample]:
    sampled = []
    with path.open("rb") as file:
        for row in sorted(_draw(dice, len(index.offsets), samples)):
            file.seek(index.offsets[row])
            document = _read(path, index.lines[row], file.readline())
            if document is not None:  # otherwise the file changed between the passes
                sampled.append(_Sample(line=index.lines[row], document=document))
    return sampled


def _draw_text(path: Path, dice: random.Random, samples: int, max_tokens: int) -> list[_Sample]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"the calibration file {path} is not UTF-8 text; give {_FORMS}") from error
    pieces = list(_pieces(text, max_tokens * _CHARS_PER_TOKEN))
    return [
        _Sample(line=index + 1, document=Document(kind="text", text=pieces[index]))
        for index in sorted(_draw(dice, len(pieces), samples))
    ]


def _pieces(text: str, size: int) -> Iterator[str]:
    """Plain text in pieces of about ``size`` characters, cut between words."""
    start = 0
    while start < len(text):
        end = min(start + size, len(text))
        space = text.rfind(" ", start + 1, end) if end < len(text) else -1
        end = space if space > start else end
        if piece := text[start:end].strip():
            yield piece
        start = end


def _tokenize(
    path: Path, sampled: Sequence[_Sample], tokenizer: PreTrainedTokenizerBase
) -> list[Sequence[int]]:
    """Token ids of each document, in their order."""
    if any(item.document.messages for item in sampled) and not tokenizer.chat_template:
        raise UsageError(
            f"{path} holds chat messages, but the tokenizer has no chat template; give rows "
            "with text"
        )
    ids: dict[int, Sequence[int]] = {}
    for special in (False, True):
        # A chat template writes its own first token; for plain text the tokenizer adds it.
        texts = {
            index: _render(path, item, tokenizer) if item.document.messages else _text(item)
            for index, item in enumerate(sampled)
            if not item.document.token_ids and special is not bool(item.document.messages)
        }
        if texts:
            encoded = tokenizer(list(texts.values()), add_special_tokens=special, verbose=False)
            ids |= zip(texts, encoded["input_ids"], strict=True)
    for index, item in enumerate(sampled):
        if item.document.token_ids:
            ids[index] = _logged_ids(path, item, tokenizer)
    return [ids[index] for index in sorted(ids)]


def _text(item: _Sample) -> str:
    return item.document.text + item.document.reply


def _logged_ids(path: Path, item: _Sample, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids = list(item.document.token_ids)
    if max(ids) >= len(tokenizer):
        raise UsageError(
            f"line {item.line} of {path} holds token id {max(ids)}, and the tokenizer has "
            f"{len(tokenizer)} tokens; give a log of this model, or prompts as text"
        )
    reply: list[int] = tokenizer.encode(item.document.reply, add_special_tokens=False)
    return ids + reply


def _render(path: Path, item: _Sample, tokenizer: PreTrainedTokenizerBase) -> str:
    from jinja2 import TemplateError

    document = item.document
    try:
        try:
            return _apply(document, list(document.messages), tokenizer)
        except TemplateError:  # Gemma's template, for one, refuses a system role
            return _apply(document, _without_system(list(document.messages)), tokenizer)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"line {item.line} of {path} does not fit the chat template ({error}); "
            "change its roles, or give the row as text"
        ) from error


def _apply(document: Document, messages: list[Message], tokenizer: PreTrainedTokenizerBase) -> str:
    rendered = tokenizer.apply_chat_template(
        messages,
        tools=list(document.tools) or None,
        tokenize=False,
        **dict(document.options),
    )
    return str(rendered)


def _without_system(messages: list[Message]) -> list[Message]:
    """Move the system prompt into the first turn, for templates without a system role."""
    if len(messages) < 2 or messages[0]["role"] not in ("system", "developer"):
        return messages
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _cut(ids: Sequence[int], max_tokens: int, dice: random.Random) -> tuple[int, ...]:
    if len(ids) <= max_tokens:
        return tuple(ids)
    start = dice.randrange(1, len(ids) - max_tokens + 2)
    return (ids[0], *ids[start : start + max_tokens - 1])


def _warnings(path: Path, index: _RowIndex, sampled: Sequence[_Sample]) -> Iterator[str]:
    if index.truncated:
        yield f"the last line of {path} is incomplete and was skipped; all other lines were read"
    left_out = sum(item.document.left_out for item in sampled)
    if left_out:
        yield (
            "content parts that are not text (images, sound, files) were skipped in the "
            f"calibration chats: {left_out}; scales are fitted on the text around them"
        )
