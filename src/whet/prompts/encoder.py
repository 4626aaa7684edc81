"""From a logged request to the exact token ids that an engine sees.

Special tokens split a text before anything else, so the ids of what is between two of them are
remembered. A tokenizer for which that does not hold is noticed on samples, and whole texts are
encoded from then on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import CheckpointError, UsageError
from whet.prompts.chat import ChatTemplate, TemplateProblem
from whet.prompts.records import LoggedRequest

Ids = NDArray[np.int32]

_FIRST_CHECKS: Final = 32
"""The first texts are checked one by one; then one of every `_CHECK_EVERY`."""
_CHECK_EVERY: Final = 499
_MAX_MEMORY: Final = 50_000_000
"""Characters and bytes of remembered texts."""
_ENTRY: Final = 200
"""Bytes of a remembered text beside itself and its ids."""
_MAX_ID: Final = 2**31 - 1
_SAMPLES: Final = (
    "You are.\n\nA  b\n\n\n  c 12 345\n7 d.e\t\tf \n g\n- h:\n    if x == 1:\n\n        y()",
    "Is it so? \u2026 na\u00efve e\u0301 \u4f60\u597d \U0001f600 \u00a0x\r\n\r\nz\r\n1 \n2  \n3\n",
    "\n\n x\n",
)
_MAX_SPECIAL: Final = 16
"""Special tokens that are tried within a text."""


class PromptEncoder:
    """One tokenizer with its chat template, as a server of the same folder uses them."""

    def __init__(self, tokenizer: Any, *, chat_template: str | None = None) -> None:
        """Use a tokenizer of transformers; ``chat_template`` replaces its own."""
        self._fast = tokenizer.backend_tokenizer
        self._fast.no_truncation()  # its file may set both; a server uses neither
        self._fast.no_padding()
        self._chat = ChatTemplate(tokenizer, chat_template)
        added = list(self._fast.get_added_tokens_decoder().values())
        self._special = _special_pattern(added)
        self._memory: dict[str, bytes] = {}
        self._used = self._count = 0
        self.splits = not any(token.single_word for token in added)
        self._around = self._find_around()
        for text in (*_SAMPLES, *(_with_special(t.content) for t in added[:_MAX_SPECIAL])):
            self._check(self._ids_of_parts(text), text)

    def ids(self, request: LoggedRequest) -> Ids:
        """The prompt's token ids; ``TemplateProblem`` where the chat template refuses it."""
        if request.prompt_token_ids is not None:
            if any(each > _MAX_ID for each in request.prompt_token_ids):
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
        """The prompt as text, up to the begin of the answer."""
        return (request.prompt or "") if request.messages is None else self._chat.render(request)

    def encode(self, text: str) -> Ids:
        """Token ids of a text that contains its special tokens; read-only."""
        self._count += 1
        ids = self._ids_of_parts(text)
        if self._count <= _FIRST_CHECKS or self._count % _CHECK_EVERY == 0:
            return self._check(ids, text)
        return ids

    def decode(self, ids: Ids) -> str:
        """The text of token ids, special tokens included."""
        return str(self._fast.decode(ids.tolist(), skip_special_tokens=False))

    def _ids_of_parts(self, text: str) -> Ids:
        if not self.splits:
            return self._encode_whole(text)
        parts = self._special.split(text) if self._special else [text]
        new = list(dict.fromkeys(part for part in parts if part and part not in self._memory))
        encoded = self._fast.encode_batch_fast(new, add_special_tokens=False)
        fresh = {
            part: np.asarray(each.ids, dtype=np.int32).tobytes()
            for part, each in zip(new, encoded, strict=True)
        }
        row = [fresh[p] if p in fresh else self._memory[p] for p in parts if p]
        self._remember(fresh)
        return np.frombuffer(b"".join(row), dtype=np.int32)

    def _remember(self, fresh: dict[str, bytes]) -> None:
        if self._used > _MAX_MEMORY:
            self._memory, self._used = {}, 0
        self._memory.update(fresh)
        self._used += sum(len(part) + len(ids) + _ENTRY for part, ids in fresh.items())

    def _check(self, ids: Ids, text: str) -> Ids:
        """The true ids; the parts are not used any more where ``ids`` differs from them."""
        true = self._encode_whole(text)
        if not np.array_equal(ids, true):
            self.splits, self._memory = False, {}
        return true

    def _encode_whole(self, text: str, *, add_special_tokens: bool = False) -> Ids:
        encoded = self._fast.encode(text, add_special_tokens=add_special_tokens)
        return np.asarray(encoded.ids, dtype=np.int32)

    def _find_around(self) -> tuple[Ids, Ids] | None:
        """The ids that a tokenizer adds around a plain prompt; None if it does anything else."""
        around = self._encode_whole("", add_special_tokens=True)
        for at in range(len(around) + 1):
            before, after = around[:at], around[at:]
            if all(
                np.array_equal(
                    self._encode_whole(text, add_special_tokens=True),
                    np.concatenate([before, self._encode_whole(text), after]),
                )
                for text in _SAMPLES
            ):
                return before, after
        return None


def _special_pattern(added: Sequence[Any]) -> re.Pattern[str] | None:
    """Match a special token, the longest first, with the white space that it takes in."""
    tokens = sorted((t for t in added if t.content), key=lambda token: -len(token.content))
    if not tokens:
        return None
    alternatives = (
        (r"\s*" if token.lstrip else "")
        + re.escape(token.content)
        + (r"\s*" if token.rstrip else "")
        for token in tokens
    )
    return re.compile("(" + "|".join(alternatives) + ")")


def _with_special(token: str) -> str:
    return f"a b{token}c\n{token} d  {token}\n\ne {token}{token}f."


def load_encoder(folder: Path, *, chat_template: Path | None = None) -> PromptEncoder:
    """Read the tokenizer in ``folder``.

    Raises ``CheckpointError`` where there is none that can be read, ``UsageError`` where
    ``chat_template`` cannot be read or parsed.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read ({reason}); "
            "check that tokenizer.json is there and complete"
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointError(
            f"{folder} has only a slow tokenizer; write tokenizer.json once with "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…)"
        )
    try:
        own = None if chat_template is None else chat_template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the chat template {chat_template} cannot be read ({error}); give a file of UTF-8 text"
        ) from error
    return PromptEncoder(tokenizer, chat_template=own)
