"""The built-in texts of generated requests, and from them the exact token ids that are sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from whet.core.errors import StorageError, UsageError
from whet.core.outside import json_value, read_text

if TYPE_CHECKING:
    from whet.checkpoint.chat import Variables

_KINDS: Final = ("system_short", "system_long", "user")


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptPool:
    """Texts by kind, in file order."""

    system_short: tuple[str, ...]
    system_long: tuple[str, ...]
    user: tuple[str, ...]

    def systems(self, *, long: bool) -> tuple[str, ...]:
        """System prompts of one length."""
        return self.system_long if long else self.system_short


@lru_cache(maxsize=4)
def read_pool(path: Path) -> PromptPool:
    """Read ``workload.jsonl`` of a run's inputs; ``StorageError`` if it is missing or damaged."""
    texts: dict[str, list[str]] = defaultdict(list)
    try:
        for line in read_text(path).splitlines():
            row = json_value(line)
            texts[row["kind"]].append(row["text"])
        if missing := [kind for kind in _KINDS if not texts[kind]]:
            raise ValueError(f"no {missing[0]} in it")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"the built-in texts in {path} cannot be read ({error})",
            fix="start a new run (--name)",
        ) from error
    return PromptPool(**{kind: tuple(texts[kind]) for kind in _KINDS})


class Renderer:
    """One tokenizer with its chat template, or a plain join where it has none."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_tokens: int | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """``max_tokens`` bounds a whole prompt; a longer user turn is cut at a word.

        ``variables`` are handed to the chat template.
        """
        from whet.checkpoint.chat import ChatTemplate

        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, variables=variables)
        self._max_tokens = max_tokens

    def render(self, system: str, user: str) -> tuple[int, ...]:
        """Token ids of the conversation up to where the answer begins."""
        ids = self._encode(system, user)
        if self._max_tokens is None or len(ids) <= self._max_tokens:
            return ids
        return self._shortened(system, user.split(" "), self._max_tokens)

    def _shortened(self, system: str, words: list[str], limit: int) -> tuple[int, ...]:
        """The longest beginning of the user turn that fits, by bisection over words."""
        longest: tuple[int, ...] = ()
        fits, too_many = 0, len(words)
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            ids = self._encode(system, " ".join(words[:middle]))
            if len(ids) <= limit:
                longest, fits = ids, middle
            else:
                too_many = middle
        if not longest:
            raise UsageError(
                f"workload.max_input_tokens is {limit}, but a built-in system prompt leaves no "
                "room for a user turn",
                fix="raise it, set workload.long_system_share to 0, or set "
                "traffic: log.jsonl, your own request log",
            )
        return longest

    def _encode(self, system: str, user: str) -> tuple[int, ...]:
        from whet.checkpoint.chat import TemplateProblem

        if not self._template.source:
            return tuple(self._tokenizer.encode(f"{system}\n\n{user}"))
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        try:
            text = self._template.chat(messages)
        except TemplateProblem as problem:
            raise UsageError(
                f"{problem}",
                fix="set model.chat_template_kwargs to the variables that it needs, or "
                "correct it in the tokenizer's files",
            ) from problem
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=4)
def load_renderer(folder: Path, max_tokens: int | None, variables: Variables = ()) -> Renderer:
    """Load the tokenizer in ``folder``; ``CheckpointError`` where it cannot be read."""
    from whet.checkpoint.tokenizer import load_tokenizer

    return Renderer(load_tokenizer(folder), max_tokens=max_tokens, variables=dict(variables))
