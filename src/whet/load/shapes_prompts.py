"""Shapes as prompts, of token ids or of words, and as a load with the calls that send it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from whet.client import CompletionCall
from whet.core.errors import UsageError
from whet.core.records import PlannedRequest
from whet.load.cold import KnownLoad, cold_workload
from whet.load.plan import TEMPERATURE, to_call
from whet.load.shapes import Layout, Piece, Shape, best_hit_tokens, shared_by_layout
from whet.load.sharing import TokenIds
from whet.load.texts import TextTokenizer, exact_text, seeded

_BEFORE: Final = "a"
"""What a piece of text is read after, alone: a tokenizer may treat the first word otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapedRequest:
    """One request of a shape, in the order in which they are sent.

    ``text`` reads back as ``prompt_token_ids``; None where ids were drawn. ``shared_tokens`` is the
    longest beginning that an earlier request has, in tokens.
    """

    index: int
    prompt_token_ids: TokenIds
    max_tokens: int
    prefix_id: str
    shared_tokens: int
    text: str | None = None


def build_shape(
    shape: Shape, vocabulary: Sequence[int], *, fresh: str = ""
) -> tuple[ShapedRequest, ...]:
    """The shape's requests as token ids drawn from ``vocabulary`` (see ``ordinary_ids``).

    Another ``fresh`` gives other tokens in the same structure: a server that keeps its cache from
    one run to the next needs them. Raises ``UsageError`` where there are too few ids to begin as
    many pieces apart.
    """
    layouts = tuple(shape.layouts())
    ids = list(dict.fromkeys(vocabulary))
    _require_heads(layouts, len(ids), "token ids")
    firsts = seeded(f"shape-heads/{shape.seed}/{fresh}").permutation(ids).tolist()
    words = np.asarray(ids, dtype=object)  # equal tokens are one number in memory

    def write(piece: Piece, _: bool) -> _Part:
        rng = seeded(f"shape/{shape.seed}/{fresh}/{piece.label}")
        return _Part(ids=(firsts[piece.head], *rng.choice(words, piece.tokens - 1).tolist()))

    return _build(layouts, write)


def build_shape_text(
    shape: Shape, tokenizer: TextTokenizer, *, fresh: str = ""
) -> tuple[ShapedRequest, ...]:
    """As ``build_shape`` in plain prompts of words, which read back as stated.

    What the tokenizer puts before a text counts with its first piece: at blocks that are no longer
    than that, prompts that begin apart share it. Raises ``UsageError`` too where a piece cannot be
    met or reads otherwise beside others.
    """
    layouts = tuple(shape.layouts())
    writer = _TextWriter(layouts, tokenizer, f"shape-text/{shape.seed}/{fresh}")
    return tuple(map(writer.checked, _build(layouts, writer.write)))


def load_shape(shape: Shape, requests: Sequence[ShapedRequest], *, block_size: int) -> KnownLoad:
    """What ``build_shape`` or ``build_shape_text`` made, to be sent as it is: as ids, or text."""
    workload = cold_workload(
        [request.prompt_token_ids for request in requests],
        [request.max_tokens for request in requests],
        names=[request.prefix_id for request in requests],
        block_size=block_size,
        seed=shape.seed,
    )
    return KnownLoad(
        workload=workload,
        calls=tuple(
            _call(plan, request.text)
            for plan, request in zip(workload.requests, requests, strict=True)
        ),
        best_hit_tokens=best_hit_tokens(shape, block_size),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A piece as written; ``text`` is None where the ids themselves are sent."""

    ids: TokenIds
    text: str | None = None


def _build(
    layouts: Sequence[Layout], write: Callable[[Piece, bool], _Part]
) -> tuple[ShapedRequest, ...]:
    """``write`` is told whether the piece begins a prompt; each is written once."""
    written: dict[str, _Part] = {}
    for layout in layouts:
        for place, piece in enumerate(layout.pieces):
            if piece.label not in written:
                written[piece.label] = write(piece, place == 0)
    return tuple(
        _joined(index, layout, [written[piece.label] for piece in layout.pieces], shared)
        for index, (layout, shared) in enumerate(
            zip(layouts, shared_by_layout(layouts), strict=True)
        )
    )


def _joined(index: int, layout: Layout, parts: Sequence[_Part], shared: int) -> ShapedRequest:
    texts = [part.text for part in parts if part.text is not None]
    return ShapedRequest(
        index=index,
        prompt_token_ids=tuple(token for part in parts for token in part.ids),
        max_tokens=layout.max_tokens,
        prefix_id=layout.prefix_id,
        shared_tokens=shared,
        text=" ".join(texts) if texts else None,
    )


class _TextWriter:
    """Pieces of words, settled against the tokenizer after a word, or at the beginning."""

    def __init__(self, layouts: Sequence[Layout], tokenizer: TextTokenizer, label: str) -> None:
        self._tokenizer, self._label = tokenizer, label
        self._before = tokenizer.content_ids(_BEFORE)
        rng = seeded(f"{label}/heads")
        self._opening: list[str] = rng.permutation(tokenizer.heads).tolist()
        self._inner = self._apart(rng.permutation(tokenizer.words).tolist(), _heads(layouts))
        _require_heads(layouts, len(self._inner), "words")
        opening = [replace(layout, pieces=layout.pieces[:1]) for layout in layouts]
        _require_heads(opening, len(self._opening), "first words")

    def write(self, piece: Piece, opens: bool) -> _Part:
        read = self._tokenizer.ids if opens else self._after_a_word
        text = exact_text(
            piece.tokens,
            head=(self._opening if opens else self._inner)[piece.head],
            words=self._tokenizer.words,
            measure=lambda text: len(read(text)),
            rng=seeded(f"{self._label}/{piece.label}"),
        )
        return _Part(ids=read(text), text=text)

    def checked(self, request: ShapedRequest) -> ShapedRequest:
        """The request, if its whole text reads as its pieces do."""
        if self._tokenizer.ids(request.text or "") != request.prompt_token_ids:
            raise UsageError(
                "this tokenizer reads a piece of a prompt otherwise when others stand beside it; "
                "send token ids"
            )
        return request

    def _after_a_word(self, text: str) -> TokenIds:
        return self._tokenizer.content_ids(f"{_BEFORE} {text}")[len(self._before) :]

    def _apart(self, words: Sequence[str], count: int) -> list[str]:
        """``count`` words of which no two have the same first token after another word."""
        firsts: dict[int, str] = {}
        for word in words:
            if len(firsts) == count:
                break
            firsts.setdefault(self._after_a_word(word)[0], word)
        return list(firsts.values())


def _heads(layouts: Sequence[Layout]) -> int:
    return 1 + max(piece.head for layout in layouts for piece in layout.pieces)


def _require_heads(layouts: Sequence[Layout], found: int, what: str) -> None:
    if found < _heads(layouts):
        raise UsageError(
            f"the shape needs {_heads(layouts)} {what} to begin its pieces apart, and there are "
            f"{found}; ask for fewer requests"
        )


def _call(request: PlannedRequest, text: str | None) -> CompletionCall:
    if text is None:
        return to_call(request)
    return CompletionCall(
        prompt=text,
        max_tokens=request.max_tokens,
        temperature=TEMPERATURE,
        ignore_eos=True,
        extra={"skip_special_tokens": False},
    )
