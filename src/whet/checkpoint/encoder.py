"""From a logged request to the exact token ids that an engine sees.

Token ids of special tokens and of the lines between them are cached, and a text's ids are joined
from them. Samples are compared with the ids of the whole text; where they differ, larger parts are
used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whet.checkpoint.chat import ChatTemplate, TemplateProblem
from whet.checkpoint.file_tokenizer import open_tokenizer
from whet.core.errors import CheckpointError, UsageError
from whet.requests import LoggedRequest

Ids = NDArray[np.int32]

_FIRST_CHECKS: Final = 32
"""The first texts are checked one by one; then one of every `_CHECK_EVERY`."""
_CHECK_EVERY: Final = 499
_MAX_MEMORY: Final = 50_000_000
"""Characters and bytes of remembered texts."""
_ENTRY: Final = 200
"""Bytes of a remembered text beside itself and its ids."""
_MAX_ID: Final = 2**31 - 1
_LINE: Final = re.compile(r"(?<=\n)(?=\S)")
_SAMPLES: Final = (
    "You are.\n\nA  b\n\n\n  c 12 345\n7 d.e\t\tf \n g\n- h:\n    if x == 1:\n\n        y()",
    "Is it so? \u2026 na\u00efve e\u0301 \u4f60\u597d \U0001f600 \u00a0x\r\n\r\nz\r\n1 \n2  \n3\n",
    "\n\n x\n",
)
_MAX_SPECIAL: Final = 16
"""Special tokens that are tried within a text."""


class PromptEncoder:
    """One tokenizer with its chat template, as a server of the same folder uses them."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Use a tokenizer of transformers; ``chat_template`` replaces its own.

        ``variables`` are handed to the template of every request that does not set them itself.
        """
        self._fast = tokenizer.backend_tokenizer
        self._fast.no_truncation()  # its file may set both; a server uses neither
        self._fast.no_padding()
        self._chat = ChatTemplate(tokenizer, chat_template, variables)
        added = list(self._fast.get_added_tokens_decoder().values())
        self._special = _special_pattern(added)
        self._memory: dict[str, bytes] = {}
        self._used = self._count = 0
        self._cuts: list[re.Pattern[str] | None] = [_LINE, None]
        """Ways to cut text between special tokens, the finest first; empty: texts stay whole."""
        if any(token.single_word or token.lstrip or token.rstrip for token in added):
            self._cuts.clear()
        for text in (*_SAMPLES, *(_with_special(t.content) for t in added[:_MAX_SPECIAL])):
            self._check(self._ids_of_parts([text])[0], text)

    def ids_many(self, requests: Sequence[LoggedRequest]) -> list[Ids | TemplateProblem]:
        """Token ids of each prompt; the problem of one that the chat template refuses."""
        texts: dict[int, str] = {}
        row: list[Ids | TemplateProblem] = []
        for at, request in enumerate(requests):
            row.append(np.empty(0, dtype=np.int32))
            try:
                if request.prompt_token_ids is not None:
                    row[at] = _given(request.prompt_token_ids)
                elif request.messages is None:
                    row[at] = self._encode_whole(request.prompt or "", add_special_tokens=True)
                else:
                    texts[at] = self.text(request)
            except TemplateProblem as problem:
                row[at] = problem
        for at, ids in zip(texts, self.encode_many(list(texts.values())), strict=True):
            row[at] = ids
        return row

    def text(self, request: LoggedRequest) -> str:
        """The prompt as text, up to the begin of the answer."""
        return (request.prompt or "") if request.messages is None else self._chat.render(request)

    def encode(self, text: str) -> Ids:
        """Token ids of a text that contains its special tokens; read-only."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text; samples are checked."""
        row = self._ids_of_parts(texts)
        for at, text in enumerate(texts):
            self._count += 1
            if self._count <= _FIRST_CHECKS or self._count % _CHECK_EVERY == 0:
                cuts = len(self._cuts)
                row[at] = self._check(row[at], text)
                if len(self._cuts) < cuts:
                    row[at + 1 :] = self._ids_of_parts(texts[at + 1 :])
        return row

    def decode(self, ids: Ids) -> str:
        """The text of token ids, special tokens included."""
        return str(self._fast.decode(ids.tolist(), skip_special_tokens=False))

    def _ids_of_parts(self, texts: Sequence[str]) -> list[Ids]:
        if not self._cuts:
            return [self._encode_whole(text) for text in texts]
        rows = [self._parts(text) for text in texts]
        new = {part: b"" for row in rows for part in row if part not in self._memory}
        encoded = self._fast.encode_batch_fast(list(new), add_special_tokens=False)
        for part, each in zip(new, encoded, strict=True):
            new[part] = np.asarray(each.ids, dtype=np.int32).tobytes()
        memory = self._memory
        ids = [
            b"".join([new[part] if part in new else memory[part] for part in row]) for row in rows
        ]
        if self._used > _MAX_MEMORY:
            self._memory, self._used = {}, 0
        self._memory.update(new)
        self._used += sum(len(part) + len(each) + _ENTRY for part, each in new.items())
        return [np.frombuffer(each, dtype=np.int32) for each in ids]

    def _parts(self, text: str) -> list[str]:
        """Special tokens, and what is between them in one or more parts."""
        parts = self._special.split(text) if self._special else [text]
        cut = self._cuts[0]
        if cut is not None:
            parts = [
                piece
                for at, part in enumerate(parts)
                for piece in ([part] if at % 2 or "\n" not in part else cut.split(part))
            ]
        return [part for part in parts if part]

    def _check(self, ids: Ids, text: str) -> Ids:
        """The true ids; the finest cut is given up while the parts' ids differ from them."""
        true = self._encode_whole(text)
        while self._cuts and not np.array_equal(ids, true):
            self._cuts.pop(0)
            self._memory, self._used = {}, 0
            (ids,) = self._ids_of_parts([text])
        return true

    def _encode_whole(self, text: str, *, add_special_tokens: bool = False) -> Ids:
        encoded = self._fast.encode(text, add_special_tokens=add_special_tokens)
        return np.asarray(encoded.ids, dtype=np.int32)


def _given(ids: Sequence[int]) -> Ids:
    if any(each > _MAX_ID for each in ids):
        raise TemplateProblem("its token ids are larger than any vocabulary")
    return np.asarray(ids, dtype=np.int32)


def _special_pattern(added: Sequence[Any]) -> re.Pattern[str] | None:
    """Match a special token, the longest first."""
    tokens = sorted((token.content for token in added if token.content), key=len, reverse=True)
    if not tokens:
        return None
    # A common start makes the search several times faster.
    start = os.path.commonprefix(tokens)  # noqa: RUF071
    rest = "|".join(re.escape(token[len(start) :]) for token in tokens)
    return re.compile(f"({re.escape(start)}(?:{rest}))")


def _with_special(token: str) -> str:
    return f"a b{token}c\n{token} d  {token}\n\ne {token}{token}f."


def load_encoder(
    folder: Path,
    *,
    chat_template: Path | None = None,
    variables: Mapping[str, Any] | None = None,
) -> PromptEncoder:
    """Read the tokenizer in ``folder``; the rest as ``PromptEncoder`` takes it.

    Raises ``CheckpointError`` if it cannot be read, ``UsageError`` if ``chat_template`` cannot be
    read or parsed.
    """
    tokenizer = open_tokenizer(folder)
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointError(
            f"{folder} has only a slow tokenizer",
            fix="write tokenizer.json once with "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…)",
        )
    try:
        own = None if chat_template is None else chat_template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the chat template {chat_template} cannot be read ({error})",
            fix="give a file of UTF-8 text",
        ) from error
    return PromptEncoder(tokenizer, chat_template=own, variables=variables)
