"""The text that scales are fitted on: read, drawn by a seed, tokenized and cut.

A JSONL file is passed over once to find its usable rows (16 bytes of memory a row) and to hash it;
then only the rows that the seed draws are read again and tokenized. A request log of any length
takes the memory of its longest line, and the draw is what it would be with every row in memory.
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
    """Token ids of each sample, at most ``facts.max_tokens`` long, and where they came from."""

    ids: tuple[tuple[int, ...], ...]
    facts: CalibrationFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    """A drawn document and the line that it stands on, from 1."""

    line: int
    document: Document


@dataclass(kw_only=True, slots=True)
class _Survey:
    """What a pass over a file found: where the usable rows begin, and on which line."""

    places: array[int] = field(default_factory=lambda: array("Q"))
    lines: array[int] = field(default_factory=lambda: array("Q"))
    skipped: int = 0
    torn: bool = False


def load_calibration(
    path: Path, tokenizer_path: Path, *, samples: int, max_tokens: int, seed: int
) -> Calibration:
    """Up to ``samples`` documents of ``path``, drawn by ``seed``, in the file's order.

    A document longer than ``max_tokens`` is cut to a window drawn by the same seed, its first
    token kept: chats that share one long system prompt would otherwise all become that prompt.
    A torn last line, which a log that is still written may have, is left out with a warning.
    Raises ``UsageError`` where the file cannot be read or holds no usable text.
    """
    sha256 = calibration_sha256(path)
    dice = random.Random(seed)
    rows = _has_rows(path)
    survey = _survey(path) if rows else _Survey()
    drawn = (
        _draw_rows(path, survey, dice, samples)
        if rows
        else _draw_text(path, dice, samples, max_tokens)
    )
    tokenizer = load_tokenizer(tokenizer_path)
    cut = (_cut(ids, max_tokens, dice) for ids in _tokenize(path, drawn, tokenizer))
    ids = tuple(sample for sample in cut if len(sample) >= _MIN_TOKENS)
    if not ids:
        raise UsageError(f"the calibration file {path} holds no usable text; give {_FORMS}")
    facts = CalibrationFacts(
        source=str(path),
        sha256=sha256,
        samples=len(ids),
        tokens=sum(map(len, ids)),
        max_tokens=max_tokens,
        seed=seed,
        form=", ".join(sorted({item.document.form for item in drawn})),
        rows=len(survey.places) if rows else None,
        skipped=survey.skipped,
        left_out=sum(item.document.left_out for item in drawn),
        warnings=tuple(_warnings(path, survey, drawn)),
    )
    return Calibration(ids=ids, facts=facts)


def calibration_sha256(path: Path) -> str:
    """The hash that ``CalibrationFacts`` carries; ``UsageError`` where the file cannot be read."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError("it is a pipe or a device, and must be read twice")
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
    """By its name; a name that says nothing (``requests.log``) is judged by its first line."""
    if path.suffix.lower() in (*_ROWS, ".txt"):
        return path.suffix.lower() in _ROWS
    with path.open("rb") as file:
        first = file.readline()
    try:
        return isinstance(json.loads(first.decode("utf-8-sig")), dict)
    except ValueError:
        return False


def _survey(path: Path) -> _Survey:
    """Find the usable rows. Raises ``UsageError`` for a broken line that is not a torn end."""
    survey, start = _Survey(), 0
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                found = _read(path, line, raw) if raw.strip() else None
            except UsageError:
                if raw.endswith(b"\n") or not survey.places:
                    raise
                survey.torn = True
                continue
            if found is not None:
                survey.places.append(start)
                survey.lines.append(line)
            elif raw.strip():
                survey.skipped += 1
            start += len(raw)
    return survey


def _read(path: Path, line: int, raw: bytes) -> Document | None:
    try:
        return read_row(json.loads(raw.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"line {line} of {path} is not UTF-8 text; save the file as UTF-8"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"line {line} of {path} is not JSON; give one JSON object a line, or name the file .txt"
        ) from error


def _draw(dice: random.Random, available: int, wanted: int) -> Sequence[int]:
    return range(available) if available <= wanted else dice.sample(range(available), wanted)


def _draw_rows(path: Path, survey: _Survey, dice: random.Random, wanted: int) -> list[_Drawn]:
    drawn = []
    with path.open("rb") as file:
        for index in sorted(_draw(dice, len(survey.places), wanted)):
            file.seek(survey.places[index])
            document = _read(path, survey.lines[index], file.readline())
            if document is not None:  # else the file was changed between the passes
                drawn.append(_Drawn(line=survey.lines[index], document=document))
    return drawn


def _draw_text(path: Path, dice: random.Random, wanted: int, max_tokens: int) -> list[_Drawn]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"the calibration file {path} is not UTF-8 text; give {_FORMS}") from error
    pieces = list(_pieces(text, max_tokens * _CHARS_PER_TOKEN))
    return [
        _Drawn(line=index + 1, document=Document(form="text", text=pieces[index]))
        for index in sorted(_draw(dice, len(pieces), wanted))
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
    path: Path, drawn: Sequence[_Drawn], tokenizer: PreTrainedTokenizerBase
) -> list[Sequence[int]]:
    """Token ids of each document, in their order."""
    if any(item.document.messages for item in drawn) and not tokenizer.chat_template:
        raise UsageError(
            f"{path} holds chat messages, but the tokenizer has no chat template; give rows "
            "with text"
        )
    found: dict[int, Sequence[int]] = {}
    for special in (False, True):
        # A template writes its own first token; a plain text gets it from the tokenizer.
        texts = {
            index: _render(path, item, tokenizer) if item.document.messages else _text(item)
            for index, item in enumerate(drawn)
            if not item.document.token_ids and special is not bool(item.document.messages)
        }
        if texts:
            encoded = tokenizer(list(texts.values()), add_special_tokens=special, verbose=False)
            found |= zip(texts, encoded["input_ids"], strict=True)
    for index, item in enumerate(drawn):
        if item.document.token_ids:
            found[index] = _logged_ids(path, item, tokenizer)
    return [found[index] for index in sorted(found)]


def _text(item: _Drawn) -> str:
    return item.document.text + item.document.reply


def _logged_ids(path: Path, item: _Drawn, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids = list(item.document.token_ids)
    if max(ids) >= len(tokenizer):
        raise UsageError(
            f"line {item.line} of {path} holds token id {max(ids)}, and the tokenizer has "
            f"{len(tokenizer)} tokens; give a log of this model, or prompts as text"
        )
    reply: list[int] = tokenizer.encode(item.document.reply, add_special_tokens=False)
    return ids + reply


def _render(path: Path, item: _Drawn, tokenizer: PreTrainedTokenizerBase) -> str:
    from jinja2 import TemplateError

    document = item.document
    try:
        try:
            return _apply(document, list(document.messages), tokenizer)
        except TemplateError:  # Gemma's, for one, knows no system role
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
    """The system prompt at the head of the first turn, as a template without the role needs it."""
    if len(messages) < 2 or messages[0]["role"] not in ("system", "developer"):
        return messages
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _cut(ids: Sequence[int], max_tokens: int, dice: random.Random) -> tuple[int, ...]:
    if len(ids) <= max_tokens:
        return tuple(ids)
    start = dice.randrange(1, len(ids) - max_tokens + 2)
    return (ids[0], *ids[start : start + max_tokens - 1])


def _warnings(path: Path, survey: _Survey, drawn: Sequence[_Drawn]) -> Iterator[str]:
    if survey.torn:
        yield f"the last line of {path} is torn and was left out; nothing else of it is lost"
    left_out = sum(item.document.left_out for item in drawn)
    if left_out:
        yield (
            f"{left_out} of the calibration chats' content parts hold no text (images, sound, "
            "files); scales are fitted on the text around them"
        )
