"""From a logged request to the exact token ids that an engine sees, many times over.

The same text costs little again: what stands between two special tokens is remembered, and its
words are. That their tokens are those of the text is tried when a tokenizer is read and on samples
as they come; a way of cutting for which it does not hold is given up for the next.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import CheckpointError, UsageError
from whet.core.records import LoggedRequest
from whet.prefix.chat import ChatTemplate, TemplateProblem

__all__ = ["Ids", "PromptEncoder", "TemplateProblem", "load_encoder"]

Ids = NDArray[np.int32]

_SURE: Final = 32
"""Texts that are checked one after another; then one in `_EVERY`."""
_EVERY: Final = 499
_MOST_HELD: Final = 24_000_000
"""Characters and bytes that a memory holds, twice over; about 100 MB with what Python adds."""
_ENTRY: Final = 200
"""Bytes of an entry beside its text and its ids."""
_MOST_ID: Final = 2**31 - 1

_SPACE: Final = re.compile(r" (?=\S)")
_MARK: Final = "\0"
_ODD: Final = re.compile(r"[^\S ] ")
_ODD_ASCII: Final = ("\t", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x1f")
"""White space: a blank after it is a word's first character only where the word goes on."""
# Where lines end for a tokenizer's words: Llama's and Qwen's take all line ends together, GPT-2's
# leave the last one for itself. None: what stands between special tokens is not cut at all.
_LINES: Final = (re.compile(r"(?<=\n)(?=\S)"), re.compile(r"(?=\n\S)"), None)
_TRIED: Final = (
    "You are.\n\nA  b\n\n\n  c 12 345\n7 d.e\t\tf \n g\n- h:\n    if x == 1:\n\n        y()",
    "if (x) {\n}\n{\n",
    "Is it so? 'Yes', he's 20% (or $3.50) \u2026 na\u00efve e\u0301 \u4f60\u597d \u4e16\u754c "
    "\U0001f600 \u00a0x\r\n\r\nz\r\n1 \n2  \n3\n",
    "\n\n x\n",
    '  {"a": [1, 2], "b": "c"}\n<p>text</p>\n\n# A title\n| a | b |',
)
_MOST_SPECIAL: Final = 16
"""Special tokens that are tried within a text."""


class _Memory:
    """Token ids of texts, as bytes. The older half is dropped where it grows too large."""

    __slots__ = ("_before", "_held", "_now")

    def __init__(self) -> None:
        self._now: dict[str, bytes] = {}
        self._before: dict[str, bytes] = {}
        self._held = 0

    def get(self, text: str) -> bytes | None:
        found = self._now.get(text)
        if found is None and (found := self._before.get(text)) is not None:
            self.put(text, found)
        return found

    def get_all(self, texts: Sequence[str]) -> list[bytes] | None:
        """The ids of each text, None where one is not known of late."""
        try:
            return [*map(self._now.__getitem__, texts)]
        except KeyError:
            return None

    def put(self, text: str, ids: bytes) -> None:
        if self._held > _MOST_HELD:
            self._before, self._now, self._held = self._now, {}, 0
        self._now[text] = ids
        self._held += len(text) + len(ids) + _ENTRY


class PromptEncoder:
    """One tokenizer with its chat template, as a server of the same folder has it."""

    def __init__(self, tokenizer: Any, *, chat_template: str | None = None) -> None:
        """``tokenizer`` is one of transformers'; ``chat_template`` replaces its own.

        Raises ``UsageError`` for a chat template that cannot be parsed.
        """
        self._fast = tokenizer.backend_tokenizer
        self._fast.no_truncation()  # a tokenizer's file may hold both; a server asks for neither
        self._fast.no_padding()
        self._chat = ChatTemplate(tokenizer, chat_template)
        added = self._fast.get_added_tokens_decoder().values()
        self._special = _special_pattern(added)
        self._ways: list[re.Pattern[str] | None] = list(_LINES)
        self._texts, self._words = _Memory(), _Memory()
        self._before = ("", b"")
        self._seen = 0
        self._around = self._find_around()
        if any(token.single_word for token in added):
            self._ways.clear()
        for text in (*_TRIED, *_with_specials([token.content for token in added])):
            self._check(self._cut_ids(text), text)

    @property
    def whole(self) -> bool:
        """Whether every text is encoded as a whole, as it cannot be cut."""
        return not self._ways

    def ids(self, request: LoggedRequest) -> Ids:
        """The prompt's token ids; ``TemplateProblem`` where the chat template refuses it."""
        if request.prompt_token_ids is not None:
            if any(each > _MOST_ID for each in request.prompt_token_ids):
                raise TemplateProblem("its token ids are larger than any vocabulary")
            return np.asarray(request.prompt_token_ids, dtype=np.int32)
        if request.messages is not None:
            return self.encode(self.text(request))
        text = request.prompt or ""
        if self._around is None:
            return self._encode_whole(text, add_special_tokens=True)
        before, after = self._around
        return np.concatenate([before, self.encode(text), after])

    def text(self, request: LoggedRequest) -> str:
        """The prompt as text, up to where the answer begins.

        Raises ``TemplateProblem`` where the chat template refuses it, ``UsageError`` without one.
        """
        return (request.prompt or "") if request.messages is None else self._chat.render(request)

    def encode(self, text: str) -> Ids:
        """Token ids of a text that has its special tokens in it; not to be written to."""
        self._seen += 1
        found = self._cut_ids(text)
        if self._seen <= _SURE or self._seen % _EVERY == 0:
            return self._check(found, text)
        return found

    def count(self, text: str) -> int:
        """Tokens of a text that stands among others."""
        return len(self._cut_ids(text))

    def tools_first(self) -> bool:
        """Whether the template puts tools before the system prompt."""
        return self._chat.tools_first()

    def decode(self, ids: Ids) -> str:
        """The text of token ids."""
        return str(self._fast.decode(ids.tolist(), skip_special_tokens=False))

    def _cut_ids(self, text: str) -> Ids:
        if not self._ways:
            return self._encode_whole(text)
        parts = self._special.split(text) if self._special else (text,)
        way = self._ways[0]
        # Every second part is a special token: it is never cut.
        found = b"".join(
            [self._part(part, None if i % 2 else way) for i, part in enumerate(parts) if part]
        )
        return np.frombuffer(found, dtype=np.int32)

    def _check(self, found: Ids, text: str) -> Ids:
        """The true ids of ``text``; the way of cutting is given up where ``found`` is not those."""
        true = self._encode_whole(text)
        while self._ways and not np.array_equal(found, true):
            self._ways.pop(0)
            self._texts, self._words = _Memory(), _Memory()
            self._before = ("", b"")
            found = self._cut_ids(text)
        return true

    def _part(self, text: str, way: re.Pattern[str] | None) -> bytes:
        """What stands between two special tokens, or one of them."""
        found = self._texts.get(text)
        if found is not None:
            return found
        # A mended prompt is often the sent one and something more: its last word may be another.
        start, known = self._before
        if not (start and way and text.startswith(start) and text[len(start) :][:1] in ("", " ")):
            start, known = "", b""
        words = _words(text[len(start) :], way)
        row = self._of_words(words)
        found = known + b"".join(row)
        last = len(words[-1]) if words else 0
        if not start and words[1:] and words[-1][:1] == " " and not text[-last - 1].isspace():
            self._before = (text[:-last], b"".join(row[:-1]))
        self._texts.put(text, found)
        return found

    def _of_words(self, words: Sequence[str]) -> list[bytes]:
        known = self._words.get_all(words)
        if known is not None:
            return known
        row = [*map(self._words.get, words)]
        new = list(dict.fromkeys(w for w, ids in zip(words, row, strict=True) if ids is None))
        encoded = self._fast.encode_batch_fast(new, add_special_tokens=False)
        made = {
            word: np.asarray(each.ids, dtype=np.int32).tobytes()
            for word, each in zip(new, encoded, strict=True)
        }
        if len(words) > 1:  # one alone is remembered as a text
            for word, ids in made.items():
                self._words.put(word, ids)
        return [made[word] if ids is None else ids for word, ids in zip(words, row, strict=True)]

    def _encode_whole(self, text: str, *, add_special_tokens: bool = False) -> Ids:
        encoded = self._fast.encode(text, add_special_tokens=add_special_tokens)
        return np.asarray(encoded.ids, dtype=np.int32)

    def _find_around(self) -> tuple[Ids, Ids] | None:
        """What a tokenizer adds before and after a plain prompt; None if that is not all."""
        around = self._encode_whole("", add_special_tokens=True)
        for at in range(len(around) + 1):
            before, after = around[:at], around[at:]
            if all(
                np.array_equal(
                    self._encode_whole(text, add_special_tokens=True),
                    np.concatenate([before, self._encode_whole(text), after]),
                )
                for text in _TRIED
            ):
                return before, after
        return None


def _words(text: str, line: re.Pattern[str] | None) -> list[str]:
    """``text`` cut where a tokenizer's words begin: at line ends by ``line``, and before blanks."""
    if line is None:
        return [text]
    words: list[str] = []
    for each in line.split(text) if "\n" in text else (text,):
        if _simple(each):  # each blank begins a word: twice as fast as to join it to each
            words += each.replace(" ", _MARK + " ").split(_MARK)
        else:
            first, *others = _SPACE.split(each)
            words += [first, *(f" {word}" for word in others)]
    return [word for word in words if word] if "" in words else words


def _simple(text: str) -> bool:
    """Whether no blank stands after other white space."""
    if "  " in text or _MARK in text:
        return False
    if text.isascii():  # single characters are looked for many times faster than a pattern
        return ("\n" not in text or "\n " not in text) and not any(
            map(text.__contains__, _ODD_ASCII)
        )
    return _ODD.search(text) is None


def _special_pattern(added: Sequence[Any]) -> re.Pattern[str] | None:
    """Matches a special token, the longest first, with the white space that it takes in."""
    told = sorted((token for token in added if token.content), key=lambda each: -len(each.content))
    if not told:
        return None
    if not any(token.lstrip or token.rstrip for token in told):
        # A text is searched several times faster for what they all begin with.
        start = os.path.commonprefix([token.content for token in told])  # noqa: RUF071
        rest = "|".join(re.escape(token.content[len(start) :]) for token in told)
        return re.compile(f"({re.escape(start)}(?:{rest}))")
    row = [
        (r"\s*" if token.lstrip else "")
        + re.escape(token.content)
        + (r"\s*" if token.rstrip else "")
        for token in told
    ]
    return re.compile("(" + "|".join(row) + ")")


def _with_specials(added: Sequence[str]) -> Iterator[str]:
    """Texts with special tokens in them, next to words, blanks and line ends."""
    for token in added[:_MOST_SPECIAL]:
        yield f"a b{token}c\n{token} d  {token}\n\ne {token}{token}f."


def load_encoder(folder: Path, *, chat_template: Path | None = None) -> PromptEncoder:
    """The tokenizer in ``folder``; ``CheckpointError`` where there is none that can be read.

    ``UsageError`` where the file ``chat_template`` cannot be read or is none.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read ({told}); "
            "check that tokenizer.json is there and whole"
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointError(
            f"{folder} has a tokenizer of the older form only; write tokenizer.json once with "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…)"
        )
    try:
        own = None if chat_template is None else chat_template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the chat template {chat_template} cannot be read ({error}); give a file of UTF-8 text"
        ) from error
    return PromptEncoder(tokenizer, chat_template=own)
