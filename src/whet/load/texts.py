"""Texts of exact lengths, by the tokenizer that the server reads them with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from whet.core.errors import UsageError
from whet.requests import LoggedRequest
from whet.requests.records import one_of_each

if TYPE_CHECKING:
    from whet.checkpoint.encoder import PromptEncoder

_TRIES: Final = 40
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


class TextTokenizer:
    """Token ids of texts and requests as a server reads them, and words to write texts with."""

    def __init__(self, encoder: PromptEncoder) -> None:
        """``encoder`` is the one of the server's tokenizer."""
        self.encoder = encoder
        self._numbers: dict[int, int] = {}

    def content_ids(self, text: str) -> tuple[int, ...]:
        """The text alone, without the special tokens that the tokenizer puts before a prompt."""
        return one_of_each(self.encoder.encode(text).tolist(), self._numbers)

    def request_ids(self, request: LoggedRequest) -> tuple[int, ...]:
        """A prompt or a chat, up to where the answer begins.

        Raises ``UsageError`` where no template can hold the chat.
        """
        (ids,) = self.encoder.ids_many([request])
        if not isinstance(ids, np.ndarray):
            raise UsageError(
                f"{ids}",
                fix="leave out the role that it does not know, correct the template in the "
                "tokenizer's files, or send plain prompts",
            )
        return one_of_each(ids.tolist(), self._numbers)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words of ASCII letters that are, after a space, one token each; ordered by id.

        Single letters where the vocabulary has no such words.
        """
        tokenizer = self.encoder.tokenizer
        added = tokenizer.get_added_vocab()
        pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        plain = [piece for piece, _ in pieces if piece not in added and piece]
        spaced = [piece[1:] for piece in plain if piece[0] in "Ġ▁"]
        words = [word for word in spaced if word.isascii() and word.isalpha()]
        return tuple(words or [piece for piece in plain if piece.isascii() and piece.isalpha()])

    @cached_property
    def heads(self) -> tuple[str, ...]:
        """Words with pairwise different first tokens, with a space before them or without.

        The word with the fewest tokens, without the space, represents each first token.
        """
        bare = [self.content_ids(word) for word in self.words]
        first: dict[int, str] = {}
        for ids, word in sorted(zip(bare, self.words, strict=True), key=lambda pair: len(pair[0])):
            first.setdefault(ids[0], word)
        return tuple(first.values())


@lru_cache(maxsize=4)
def load_text_tokenizer(folder: Path) -> TextTokenizer:
    """Load the tokenizer in ``folder``; ``CheckpointError`` where it cannot be read."""
    from whet.checkpoint.encoder import load_encoder  # prompts of token ids need none

    return TextTokenizer(load_encoder(folder))


def seeded(label: str) -> np.random.Generator:
    """A generator that is the same on every machine for the same label."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(label.encode()).digest()[:16]))


def exact_text(
    tokens: int,
    *,
    head: str,
    words: Sequence[str],
    measure: Callable[[str], int],
    rng: np.random.Generator,
) -> str:
    """Write a text of words that begins with ``head`` and has ``tokens`` by ``measure``.

    Words are added or taken away by the difference, and where a word is too much, single letters.
    Raises ``UsageError`` where ``head`` alone is too long, or after a bounded number of tries.
    """
    least = measure(head)
    if least > tokens:
        raise UsageError(
            f"{tokens} tokens are too few for a text here: with what stands around it the shortest "
            f"has {least}",
            fix=f"ask for at least {least}",
        )
    parts, a_word = [head], 1.0
    for _ in range(_TRIES):
        missing = tokens - measure(" ".join(parts))
        if missing == 0:
            return " ".join(parts)
        if len(parts) > 1:
            a_word = max(1.0, (tokens - missing - least) / (len(parts) - 1))
        if missing < 0:
            keep = max(1, len(parts) - int(np.ceil(-missing / a_word)))
            parts = parts[:keep] if keep > 1 else [head]
        elif missing >= a_word:
            parts += rng.choice(words, int(missing / a_word)).tolist()
        else:
            parts[-1] += "".join(rng.choice(list(_LETTERS), missing))
    raise UsageError(
        f"no text of exactly {tokens} tokens was found in {_TRIES} tries with this tokenizer",
        fix="send token ids, or ask for another length",
    )
