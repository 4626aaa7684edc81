"""From a logged request to the exact token ids that an engine sees, many times over.

The same text costs little again: texts are encoded in units, which are remembered. That the units'
tokens are the text's is checked on samples as they come, and given up where it does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import CheckpointError, UsageError
from whet.core.records import LoggedRequest
from whet.prefix.units import split_units

Ids = NDArray[np.int32]

_MOST_UNITS: Final = 100_000
_MOST_TEXTS: Final = 4_096
_SURE: Final = 32
"""Texts that are checked one after another; then one in `_EVERY`."""
_EVERY: Final = 499
_PROBES: Final = ("whet-system-probe", "whet_tool_probe")


class TemplateProblem(ValueError):
    """The chat template does not take these messages; the message says why."""


class PromptEncoder:
    """One tokenizer with its chat template, as a server of the same folder has it."""

    def __init__(self, tokenizer: Any, *, chat_template: str | None = None) -> None:
        """``tokenizer`` is one of transformers'; ``chat_template`` replaces its own."""
        self._tokenizer = tokenizer
        self._fast = tokenizer.backend_tokenizer
        self._template = chat_template or tokenizer.chat_template
        added = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        self._special = re.compile("(" + "|".join(map(re.escape, added)) + ")") if added else None
        self._texts: dict[str, Ids] = {}
        self._units: dict[str, Ids] = {}
        self._seen = 0
        self.whole = False

    def ids(self, request: LoggedRequest) -> Ids:
        """The prompt's token ids; ``TemplateProblem`` where the chat template refuses it."""
        if request.prompt_token_ids is not None:
            return np.asarray(request.prompt_token_ids, dtype=np.int32)
        if request.messages is None:
            return self._encode_whole(request.prompt or "", add_special_tokens=True)
        return self.encode(self.text(request))

    def text(self, request: LoggedRequest) -> str:
        """The prompt as text, up to where the answer begins."""
        if request.messages is None:
            return request.prompt or ""
        from jinja2 import TemplateError

        if self._template is None:
            raise UsageError(
                "the log has chat messages and the tokenizer has no chat template; give the one "
                "that the server uses with --chat-template FILE"
            )
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [self._plain(message) for message in request.messages],
                    tools=[dict(tool) for tool in request.tools] or None,
                    chat_template=self._template,
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
        except (TemplateError, TypeError, KeyError, AttributeError) as error:
            raise TemplateProblem("the chat template does not take its messages") from error

    def encode(self, text: str) -> Ids:
        """Token ids of a text that has its special tokens in it."""
        self._seen += 1
        if self.whole:
            return self._encode_whole(text)
        parts = self._special.split(text) if self._special else [text]
        found = _joined([self._part(part) for part in parts if part])
        if self._seen <= _SURE or self._seen % _EVERY == 0:
            true = self._encode_whole(text)
            self.whole = not np.array_equal(found, true)
            return true
        return found

    def count(self, text: str) -> int:
        """Tokens of a text that stands among others."""
        return len(_joined([self._unit(unit) for unit in split_units(text)]))

    def tools_first(self) -> bool:
        """Whether the template puts tools before the system prompt."""
        if self._template is None:
            return False
        system, tool = _PROBES
        told = {"type": "function", "function": {"name": tool, "description": "", "parameters": {}}}
        messages = ({"role": "system", "content": system}, {"role": "user", "content": "x"})
        try:
            text = self.text(LoggedRequest(place="", messages=messages, tools=(told,)))
        except TemplateProblem:
            return False
        return 0 <= text.find(tool) < text.find(system)

    def decode(self, ids: Ids) -> str:
        """The text of token ids."""
        return str(self._fast.decode(ids.tolist(), skip_special_tokens=False))

    def _plain(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Parts as vLLM hands them to a template that knows text only: joined by line ends."""
        content = message.get("content")
        if not isinstance(content, list | tuple) or "'type'" in str(self._template):
            return dict(message)
        texts = [str(part.get("text", "")) for part in content if isinstance(part, dict)]
        return {**message, "content": "\n".join(text for text in texts if text)}

    def _part(self, text: str) -> Ids:
        """What stands between two special tokens."""
        found = self._texts.get(text)
        if found is None:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            found = self._texts[text] = self._of_units(split_units(text))
        return found

    def _of_units(self, units: Sequence[str]) -> Ids:
        if len(self._units) > _MOST_UNITS:
            self._units.clear()
        new = list(dict.fromkeys(unit for unit in units if unit not in self._units))
        if new:
            for unit, encoded in zip(
                new, self._fast.encode_batch_fast(new, add_special_tokens=False), strict=True
            ):
                self._units[unit] = np.asarray(encoded.ids, dtype=np.int32)
        return _joined([self._units[unit] for unit in units])

    def _unit(self, unit: str) -> Ids:
        return self._of_units([unit])

    def _encode_whole(self, text: str, *, add_special_tokens: bool = False) -> Ids:
        encoded = self._fast.encode(text, add_special_tokens=add_special_tokens)
        return np.asarray(encoded.ids, dtype=np.int32)


def _joined(parts: Sequence[Ids]) -> Ids:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def load_encoder(folder: Path, *, chat_template: Path | None = None) -> PromptEncoder:
    """The tokenizer in ``folder``; ``CheckpointError`` where there is none that can be read."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be read ({str(error).splitlines()[0]}); "
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
        raise UsageError(f"the chat template {chat_template} cannot be read ({error})") from error
    return PromptEncoder(tokenizer, chat_template=own)
