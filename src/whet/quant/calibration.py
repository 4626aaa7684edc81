"""The text that scales are fitted on: read, drawn by a seed, tokenized and cut."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from whet.core.errors import CheckpointError, UsageError
from whet.core.records import CalibrationFacts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FORMS: Final = "JSONL rows with messages, text or prompt, or a .txt file"
_CHARS_PER_TOKEN: Final = 8  # more than real text has, so that a piece fills its window
_MIN_TOKENS: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Token ids of each sample, at most ``facts.max_tokens`` long, and where they came from."""

    ids: tuple[tuple[int, ...], ...]
    facts: CalibrationFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One usable document: text, or chat messages for the template. ``line`` counts from 1."""

    line: int
    content: str | list[dict[str, Any]]


def load_calibration(
    path: Path, tokenizer_path: Path, *, samples: int, max_tokens: int, seed: int
) -> Calibration:
    """Up to ``samples`` documents of ``path``, drawn by ``seed``, in the file's order.

    A document longer than ``max_tokens`` is cut to a window drawn by the same seed, its first
    token kept: chats that share one long system prompt would otherwise all become that prompt.
    Raises ``UsageError`` where the file cannot be read or holds no usable text.
    """
    data = _read_bytes(path)
    rows = list(_rows(path, _decode(path, data), max_tokens))
    dice = random.Random(seed)
    drawn = [rows[index] for index in sorted(_draw(dice, len(rows), samples))]
    tokenizer = _load_tokenizer(tokenizer_path)
    cut = (_cut(ids, max_tokens, dice) for ids in _tokenize(path, drawn, tokenizer))
    ids = tuple(sample for sample in cut if len(sample) >= _MIN_TOKENS)
    if not ids:
        raise UsageError(f"the calibration file {path} holds no usable text; give {_FORMS}")
    facts = CalibrationFacts(
        source=str(path),
        sha256=hashlib.sha256(data).hexdigest(),
        samples=len(ids),
        tokens=sum(map(len, ids)),
        max_tokens=max_tokens,
        seed=seed,
    )
    return Calibration(ids=ids, facts=facts)


def calibration_sha256(path: Path) -> str:
    """The hash that ``CalibrationFacts`` carries; ``UsageError`` where the file cannot be read."""
    return hashlib.sha256(_read_bytes(path)).hexdigest()


def _draw(dice: random.Random, available: int, wanted: int) -> Sequence[int]:
    return range(available) if available <= wanted else dice.sample(range(available), wanted)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the calibration file {path} cannot be read ({error.strerror or error}); give {_FORMS}"
        ) from error


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"the calibration file {path} is not UTF-8 text; give {_FORMS}") from error


def _rows(path: Path, text: str, max_tokens: int) -> Iterator[_Row]:
    if path.suffix.lower() in (".jsonl", ".json", ".ndjson"):
        for line, raw in enumerate(text.split("\n"), start=1):
            content = _content(path, line, raw) if raw.strip() else None
            if content:
                yield _Row(line=line, content=content)
        return
    for line, piece in enumerate(_pieces(text, max_tokens * _CHARS_PER_TOKEN), start=1):
        yield _Row(line=line, content=piece)


def _content(path: Path, line: int, raw: str) -> str | list[dict[str, Any]] | None:
    """What a JSONL row offers, or None where it has none of the known keys or they are empty."""
    try:
        row = json.loads(raw)
    except ValueError as error:
        raise UsageError(
            f"line {line} of {path} is not JSON; give one JSON object a line, or name the file .txt"
        ) from error
    if not isinstance(row, dict):
        return None
    messages = row.get("messages")
    if isinstance(messages, list) and messages:
        flat = [_message(item) for item in messages if isinstance(item, dict)]
        return flat if any(str(item["content"]).strip() for item in flat) else None
    found = next((row[key] for key in ("text", "prompt") if isinstance(row.get(key), str)), "")
    return found if found.strip() else None


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    """A chat message whose content is one string, as every template takes it."""
    content = item.get("content")
    if isinstance(content, list):
        parts = (part.get("text", "") for part in content if isinstance(part, dict))
        content = "".join(str(part) for part in parts)
    return {**item, "role": str(item.get("role", "user")), "content": content or ""}


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


def _load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
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


def _tokenize(
    path: Path, rows: Sequence[_Row], tokenizer: PreTrainedTokenizerBase
) -> Iterator[list[int]]:
    chats = [row for row in rows if not isinstance(row.content, str)]
    texts = [row.content for row in rows if isinstance(row.content, str)]
    if chats and not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            f"{path} holds chat messages, but the tokenizer has no chat template; give rows "
            "with text"
        )
    rendered = [_render(path, row, tokenizer) for row in chats]
    for batch, special in ((rendered, False), (texts, True)):
        if batch:
            # A template writes its own first token; a plain text gets it from the tokenizer.
            yield from tokenizer(batch, add_special_tokens=special, verbose=False)["input_ids"]


def _render(path: Path, row: _Row, tokenizer: PreTrainedTokenizerBase) -> str:
    from jinja2 import TemplateError

    try:
        return str(tokenizer.apply_chat_template(row.content, tokenize=False))  # type: ignore[arg-type]
    except (TemplateError, ValueError, TypeError) as error:
        raise UsageError(
            f"line {row.line} of {path} does not fit the chat template ({error}); "
            "change its roles, or give the row as text"
        ) from error


def _cut(ids: Sequence[int], max_tokens: int, dice: random.Random) -> tuple[int, ...]:
    if len(ids) <= max_tokens:
        return tuple(ids)
    start = dice.randrange(1, len(ids) - max_tokens + 2)
    return (ids[0], *ids[start : start + max_tokens - 1])
