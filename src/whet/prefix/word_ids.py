"""Token ids of ordinary text by its words: a word's ids are the same wherever it stands.

Tokenizers of the byte-level kind cut a text before each single space and never merge over the cut.
Not all do, so `render` checks samples of what comes out here against the whole text's ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

_MOST_WORDS: Final = 400_000

Encode = Callable[[Sequence[str]], list[list[int]]]


class WordIds:
    """Ids of words that were met, with the space before them or without."""

    def __init__(self, encode: Encode) -> None:
        """``encode`` gives the ids of each of some texts."""
        self._encode = encode
        self._words: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int] | None:
        """The ids of ``text``, or None where words do not tell: two spaces stand together."""
        if "  " in text:
            return None
        first, *rest = text.split(" ")
        words = [first, *(f" {word}" for word in rest)] if first else [f" {w}" for w in rest]
        known = self._words
        try:
            found = [known[word] for word in words]
        except KeyError:
            self._learn(words)
            found = [known[word] for word in words]
        return [each for ids in found for each in ids]

    def _learn(self, words: Sequence[str]) -> None:
        if len(self._words) > _MOST_WORDS:
            self._words.clear()
        new = list(dict.fromkeys(word for word in words if word not in self._words))
        self._words.update(zip(new, self._encode(new), strict=True))
