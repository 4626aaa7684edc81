"""From a logged request to the exact token ids that an engine sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whet.checkpoint.chat import ChatTemplate, TemplateProblem
from whet.checkpoint.tokenizer import load_tokenizer
from whet.core.errors import CheckpointError, UsageError
from whet.core.outside import read_text
from whet.requests import LoggedRequest, TokenCheck

Ids = NDArray[np.int32]

_AT_ONCE: Final = 64
"""Texts encoded in one call, which keeps much more of each than its ids."""
_PADDED: Final = 512
"""Models pad their vocabulary to a multiple of at most so many tokens."""
_COUNTED: Final = 256
"""Requests whose tokens are compared with the log's own counts."""


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
        self.tokenizer = tokenizer
        self._fast = tokenizer.backend_tokenizer
        self._fast.no_truncation()  # its file may set both; a server uses neither
        self._fast.no_padding()
        ids = (self._fast.get_vocab_size() - 1, *self._fast.get_added_tokens_decoder())
        self._vocabulary = -(-(max(ids) + 1) // _PADDED) * _PADDED
        self._chat = ChatTemplate(tokenizer, chat_template, variables)

    def ids_many(self, requests: Sequence[LoggedRequest]) -> list[Ids | TemplateProblem]:
        """Token ids of each prompt; the problem of one that the chat template refuses.

        ``UsageError`` for a prompt that was logged as ids which this tokenizer does not have.
        """
        texts: dict[int, str] = {}
        row: dict[int, Ids | TemplateProblem] = {}
        for at, request in enumerate(requests):
            try:
                if request.prompt_token_ids is not None:
                    row[at] = self._given(request.place, request.prompt_token_ids)
                elif request.messages is None:
                    row[at] = np.asarray(self._fast.encode(request.prompt or "").ids, np.int32)
                else:
                    texts[at] = self.text(request)
            except TemplateProblem as problem:
                row[at] = problem
        row |= zip(texts, self.encode_many(list(texts.values())), strict=True)
        return [row[at] for at in range(len(requests))]

    def _given(self, place: str, ids: Sequence[int]) -> Ids:
        largest = max(ids, default=0)
        if largest >= self._vocabulary:
            raise UsageError(
                f"{place}: its token id {largest:,} is not one of this tokenizer, which has "
                f"{self._fast.get_vocab_size():,}: the log's ids are of another vocabulary",
                fix="give the model that the log is of, or a log with the text of its prompts",
            )
        return np.asarray(ids, dtype=np.int32)

    def count_doubts(self, requests: Sequence[LoggedRequest]) -> Iterator[str]:
        """Say what is odd about the log's counts, by some of its requests."""
        check, rows = TokenCheck(self.encode), requests[:: len(requests) // _COUNTED + 1]
        for request, ids in zip(rows, self.ids_many(rows), strict=True):
            if not isinstance(ids, TemplateProblem):
                check.add(request, len(ids))
        return check.doubts()

    def text(self, request: LoggedRequest) -> str:
        """The prompt as text, up to the begin of the answer."""
        return (request.prompt or "") if request.messages is None else self._chat.render(request)

    def encode(self, text: str) -> Ids:
        """Token ids of a text that contains its special tokens."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text."""
        return [
            np.asarray(each.ids, dtype=np.int32)
            for start in range(0, len(texts), _AT_ONCE)
            for each in self._fast.encode_batch_fast(
                texts[start : start + _AT_ONCE], add_special_tokens=False
            )
        ]

    def answer_tokens(self, request: LoggedRequest) -> int | None:
        """Return the answer's length as the server counted it, else of its text, else None."""
        if request.output_tokens is not None:
            return request.output_tokens
        text = (request.reasoning or "") + (request.output or "")
        return len(self.encode(text)) if text else None

    def decode(self, ids: Ids) -> str:
        """The text of token ids, special tokens included."""
        return str(self._fast.decode(ids.tolist(), skip_special_tokens=False))


def load_encoder(
    folder: Path, *, chat_template: Path | None = None, variables: Mapping[str, Any] | None = None
) -> PromptEncoder:
    """Read the tokenizer in ``folder``; the rest as ``PromptEncoder`` takes it.

    Raises ``CheckpointError`` if it cannot be read, ``UsageError`` if ``chat_template`` cannot be
    read or parsed.
    """
    tokenizer = load_tokenizer(folder)
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointError(
            f"{folder} has only a slow tokenizer",
            fix="write tokenizer.json once with "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…)",
        )
    try:
        own = None if chat_template is None else read_text(chat_template)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the chat template {chat_template} cannot be read ({error})",
            fix="give a file of UTF-8 text",
        ) from error
    return PromptEncoder(tokenizer, chat_template=own, variables=variables)
