"""Models that reason before they answer: when they do, and where the reasoning ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables

SWITCHES: Final = ("enable_thinking", "thinking")
"""Template variables that turn the reasoning on and off."""
_EFFORT: Final = "reasoning_effort"
_OFF: Final = (False, "false", "none", "no_think", None)

_MARKS: Final[tuple[tuple[str, str], ...]] = (
    # Qwen, DeepSeek, GLM, MiniMax, Nemotron, Seed-OSS (seed:think), Apriel 1.5 (thinking)
    (r"<(?:\w+:)?think(?:ing)?(?::\w+)?>", r"</(?:\w+:)?think(?:ing)?(?::\w+)?>"),
    # gpt-oss, which calls tools in its commentary
    (r"<\|channel\|>analysis", r"<\|channel\|>(?:final|commentary).{0,80}?<\|message\|>"),
    (r"\[THINK\]", r"\[/THINK\]"),  # Ministral, Magistral
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Cohere
    (r"<\|channel>thought", r"<channel\|>"),  # Gemma 4
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),  # Apertus
    (r"<\|open\|>think<\|sep\|>", r"<\|close\|>think<\|sep\|>"),  # Kimi K3
    (r"<\|think\|>", r"<\|content\|>"),  # Solar
    (r"Here are my reasoning steps:", r"\[BEGIN FINAL RESPONSE\]"),  # Apriel 1.6
)
"""Patterns that open and close the reasoning."""
GENERATION: Final = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")
"""A tag of transformers that marks the assistant's text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thinking:
    """The reasoning before an answer. ``opened``: the prompt itself opens it.

    ``marks`` are the (open, close) patterns that the chat template holds. ``special``: the
    tokenizer has them as special tokens, which servers leave out of text unless asked. ``tokens``
    are what it may take, beside the answer.
    """

    opened: bool
    special: bool
    marks: tuple[tuple[str, str], ...]
    tokens: int = 0

    def answer(self, text: str) -> str | None:
        """What follows the reasoning; the whole text if it has none, None if it does not end."""
        ends = [each.end() for _, close in self.marks for each in re.finditer(close, text)]
        if ends:
            return text[max(ends) :].lstrip()
        if self.opened or any(re.search(start, text) for start, _ in self.marks):
            return None
        return text


@lru_cache(maxsize=16)
def _inputs(template: str) -> frozenset[str]:
    """The variables that a chat template reads from its caller; none if it cannot be parsed."""
    env = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return frozenset(find_undeclared_variables(env.parse(GENERATION.sub("", template))))
    except TemplateError:
        return frozenset()


def thinking_off(template: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that turn reasoning off; none if ``variables`` decide it already."""
    if any(name in variables for name in (*SWITCHES, _EFFORT)):
        return {}
    return {name: False for name in SWITCHES if name in _inputs(template)}


def find_thinking(
    template: str, prompt: str, variables: Mapping[str, Any], special: Iterable[str] = ()
) -> Thinking | None:
    """How the model reasons after ``prompt``, which the template made; None if it does not.

    A prompt that ends with an open or a close mark decides. Otherwise it does where the template
    holds a mark, unless the template's own switch is there and not on. ``special`` are the
    tokenizer's special tokens.
    """
    tail = prompt.rstrip()
    if any(re.search(rf"(?:{close})\Z", tail) for _, close in _MARKS):
        return None
    opened = [pair for pair in _MARKS if re.search(rf"(?:{pair[0]})\Z", tail)]
    marks = opened or [pair for pair in _MARKS if any(re.search(each, template) for each in pair)]
    inputs = _inputs(template)
    chosen = [variables[name] for name in (*SWITCHES, _EFFORT) if name in inputs & set(variables)]
    on = any(value not in _OFF for value in chosen) if chosen else inputs.isdisjoint(SWITCHES)
    if not opened and not (marks and on):
        return None
    hidden = any(
        token and (re.fullmatch(close, token) or token in close.replace("\\", ""))
        for token in special
        for _, close in marks
    )
    return Thinking(opened=bool(opened), special=hidden, marks=tuple(marks))
