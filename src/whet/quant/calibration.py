"""Read calibration text: sample requests by a seed, tokenize them and cut them to length.

The first pass over a log counts its usable requests; the second takes the sampled ones, so a long
log needs little memory.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whet.checkpoint import load_tokenizer
from whet.checkpoint.chat import ChatTemplate, TemplateProblem, sent_at
from whet.core.errors import CheckpointError, UsageError
from whet.core.records.model import ModelFacts
from whet.core.records.quant import CalibrationFacts
from whet.core.records.summary import Estimate
from whet.core.spec import RecipeSpec
from whet.requests import (
    BLANK,
    INCOMPLETE,
    LoggedRequest,
    LogReader,
    document_text,
    media,
    plain_messages,
)
from whet.requests.sample import conversation_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FORMS: Final = "JSONL rows with messages, text or prompt, or a request log"
_MIN_TOKENS: Final = 2
_HELD_OUT: Final = 0.2
"""Share of the conversations that judge where their text calibrates, too."""

Among = Callable[[LoggedRequest], bool]
"""Which requests may be sampled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Token ids of each sample, at most ``facts.max_tokens`` long, and their origin."""

    ids: tuple[tuple[int, ...], ...]
    facts: CalibrationFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class Judge:
    """The text that chooses between methods, and the statistics that it is read with.

    ``mean`` returns Σ value ÷ Σ tokens of (Σ value, tokens) per document, with its interval.
    """

    text: Path
    mean: Callable[[Sequence[tuple[float, int]]], Estimate]


def conversation_key(request: LoggedRequest) -> bytes:
    """Return a hash that all requests of a conversation share, in whichever file they are."""
    key = conversation_of(request)
    return hashlib.blake2b(key.encode() if isinstance(key, str) else key, digest_size=16).digest()


def held_out(text: Path, *, calibrates: bool) -> frozenset[bytes]:
    """Return the conversations of ``text`` that judge: a fifth, by hash, where it calibrates."""
    keys = sorted({*map(conversation_key, filter(_has_text, LogReader(text, documents=True)))})
    return frozenset(keys[: max(1, round(_HELD_OUT * len(keys)))] if calibrates else keys)


def load_calibration(
    path: Path,
    tokenizer_path: Path,
    *,
    samples: int,
    max_tokens: int,
    seed: int,
    among: Among | None = None,
) -> Calibration:
    """Up to ``samples`` documents of ``path``, sampled by ``seed``, in the file's order.

    A longer document is cut to its first token and a window sampled by the same seed: chats that
    share a long system prompt would otherwise all become that prompt. An incomplete last line, as
    in a log that is still written, is skipped with a warning. ``UsageError`` where the file cannot
    be read, has no usable text (``among`` its requests), or has over 1% of broken lines.
    """
    sha256 = calibration_sha256(path)
    dice = random.Random(seed)
    reader = LogReader(path, documents=True)

    def usable(request: LoggedRequest) -> bool:
        return _has_text(request) and (among is None or among(request))

    available = sum(map(usable, reader))
    reader.refuse_textless()
    chosen = set(range(available))
    if available > samples:
        chosen = set(dice.sample(range(available), samples))
    numbered = enumerate(filter(usable, reader))
    sampled = [request for index, request in numbered if index in chosen]
    tokenizer = load_tokenizer(tokenizer_path)
    template = ChatTemplate(tokenizer)
    cut = (_cut(_encode(each, tokenizer, template), max_tokens, dice) for each in sampled)
    ids = tuple(sample for sample in cut if len(sample) >= _MIN_TOKENS)
    if not ids and among is not None:
        raise UsageError(
            f"{path} has no conversation beside those that method auto chooses by",
            fix="give more text, or name the method",
        )
    if not ids:
        raise UsageError(f"the calibration file {path} has no usable text", fix=f"give {_FORMS}")
    facts = CalibrationFacts(
        source=str(path),
        sha256=sha256,
        samples=len(ids),
        tokens=sum(map(len, ids)),
        max_tokens=max_tokens,
        seed=seed,
        warnings=tuple(_warnings(reader, sampled, chats=bool(tokenizer.chat_template))),
    )
    return Calibration(ids=ids, facts=facts)


def load_for(
    recipe: RecipeSpec, facts: ModelFacts, path: Path, among: Among | None = None
) -> Calibration:
    """Return the samples of a recipe, none longer than the model's longest sequence."""
    spec = recipe.calibration
    calibration = load_calibration(
        path,
        Path(facts.path),
        samples=spec.samples,
        max_tokens=min(spec.max_tokens, facts.max_position),
        seed=spec.seed,
        among=among,
    )
    if (largest := max(map(max, calibration.ids))) >= facts.vocab_size:
        raise CheckpointError(
            f"the calibration text has the token id {largest:,}, and the embedding has "
            f"{facts.vocab_size:,} rows",
            fix="use the tokenizer of these weights",
        )
    return calibration


def calibration_sha256(path: Path) -> str:
    """The hash that ``CalibrationFacts`` carries; ``UsageError`` where the file cannot be read."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError("a pipe or a device cannot be read twice")
        if path.is_dir():
            files = sorted(each for each in path.rglob("*") if each.is_file())
            names = (f"{each.relative_to(path)} {calibration_sha256(each)}\n" for each in files)
            return hashlib.sha256("".join(names).encode()).hexdigest()
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(
            f"the calibration file {path} cannot be read ({error.strerror or error})",
            fix=f"give {_FORMS}",
        ) from error


def _has_text(request: LoggedRequest) -> bool:
    if request.messages is None:
        return bool(request.prompt_token_ids or (request.prompt or "").strip())
    return any(message["content"].strip() for message in plain_messages(request))


def _encode(
    request: LoggedRequest, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate
) -> list[int]:
    """Token ids of a request with its answer."""
    if ids := request.prompt_token_ids:
        if max(ids) >= len(tokenizer):
            raise UsageError(
                f"{request.place} holds token id {max(ids)}, and the tokenizer has "
                f"{len(tokenizer)} tokens",
                fix="give a log of this model, or prompts as text",
            )
        return [*ids, *tokenizer.encode(request.output or "", add_special_tokens=False)]
    if not request.messages or not template.source:
        return list(tokenizer.encode(document_text(request)))
    try:
        # A chat template writes its own first token; for plain text the tokenizer adds it.
        text = template.chat(
            plain_messages(request),
            answered=True,
            tools=request.tools,
            at=sent_at(request),
            variables=request.chat_template_kwargs,
        )
    except TemplateProblem as problem:
        raise UsageError(
            f"{request.place}: {problem}", fix="change its roles, or give the row as text"
        ) from problem
    return list(tokenizer.encode(text, add_special_tokens=False))


def _cut(ids: Sequence[int], max_tokens: int, dice: random.Random) -> tuple[int, ...]:
    if len(ids) <= max_tokens:
        return tuple(ids)
    start = dice.randrange(1, len(ids) - max_tokens + 2)
    return (ids[0], *ids[start : start + max_tokens - 1])


def _warnings(reader: LogReader, sampled: Sequence[LoggedRequest], *, chats: bool) -> Iterator[str]:
    if not chats and any(request.messages for request in sampled):
        yield "the tokenizer has no chat template: scales are fitted on chats as plain text"
    yield from reader.check.doubts()
    for each in reader.left_out():
        if each.reason == INCOMPLETE:
            yield f"the last line ({each.first}) is incomplete; all other lines were read"
        elif each.reason != BLANK:
            yield f"calibration lines left out: {each.count} ({each.reason}, first {each.first})"
    parts = sum(map(media, sampled), Counter[str]())
    if parts:
        types = ", ".join(f"{count} {kind}" for kind, count in sorted(parts.items()))
        yield (
            f"content parts that are not text were dropped from the calibration chats: {types}; "
            "scales are fitted on the text around them"
        )
