"""Chat messages to the prompt's text: the one place that calls a chat template.

A logged request is rendered as vLLM does it; a chat of whet's own or of a data file as plain text.
vLLM brings messages to one form before the template sees them: parts of text are joined unless the
template walks over them, arguments of tool calls are objects, tools have their fields in one order
(vLLM 0.32: ``renderers/chat_utils.py``, ``renderers/hf.py``, ``entrypoints/generate/base``).
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import psutil
from jinja2 import TemplateError, TemplateSyntaxError

from whet.core.errors import UsageError
from whet.core.units import GIB, NS_PER_S
from whet.requests import LoggedRequest, part_text

_RENDER_S: Final = 10
_RENDER_CHARS: Final = 10**7
_RENDER_BYTES: Final = 2 * GIB
_ENDING: Final[set[str]] = set()
"""Templates whose rendering was seen to end."""
FIXED_DATE: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The date that a template is given for text without a time of its own.

With the clock's date the token ids of Llama 3.2, gpt-oss or Granite would change at midnight.
"""
_ANOTHER_DATE: Final = datetime(2027, 12, 23, tzinfo=UTC)
_LOOP: Final = re.compile(
    r"""\{%-?\s*for\s+\w+\s+in\s+(?:[\w.\[\]'"-]*(?:\.content\b|\[['"]content['"]\])|content\b)"""
)
"""A template that walks over a message's parts (what vLLM finds in its syntax tree)."""
# What a template may raise that handles a value as what it is not.
_FAULTS: Final = (
    TemplateError, TypeError, LookupError, AttributeError, ValueError, ArithmeticError,
    RecursionError, MemoryError,
)  # fmt: skip
_CORRECT: Final = "correct it in the model's folder (whet prompts has --chat-template FILE)"
TEMPLATE_REFUSES: Final = "the chat template does not take its messages"
_RESERVED: Final = frozenset(
    {
        *("messages", "conversation", "tools", "chat_template", "tokenize", "padding"),
        *("truncation", "max_length", "return_tensors", "return_dict", "continue_final_message"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs", "strftime_now"),
    }
)
"""Names that a request's own template variables cannot replace."""
_UNDEFINED: Final = re.compile(r"'\w+' is undefined")
_TOOL_FIELDS: Final = ("name", "description", "parameters")

Message = Mapping[str, Any]
Variables = tuple[tuple[str, str | int | float | bool], ...]
"""Template variables in a form that can be a key."""


class TemplateProblem(ValueError):
    """The chat template does not take these messages; the message says why."""


class ChatTemplate:
    """A tokenizer's chat template, or one in its place, with variables that all chats share."""

    def __init__(
        self, tokenizer: Any, own: str | None = None, variables: Mapping[str, Any] | None = None
    ) -> None:
        """``own`` replaces the tokenizer's. Raises ``UsageError`` for one with a fault in it."""
        self._tokenizer, self._own = tokenizer, own
        self.variables = dict(variables or {})
        source = own or tokenizer.chat_template or ""
        self.source = "\n".join(source.values()) if isinstance(source, dict) else str(source)
        self._walks = _LOOP.search(self.source) is not None
        self._developer = re.search("[\"']developer[\"']", self.source) is not None
        if self.source:
            self._check()

    def with_variables(self, more: Mapping[str, Any]) -> ChatTemplate:
        """The same template with more variables, which replace its own."""
        return ChatTemplate(self._tokenizer, self._own, {**self.variables, **more})

    def render(self, request: LoggedRequest) -> str:
        """The prompt up to the begin of the answer; ``TemplateProblem`` where it is refused."""
        if not self.source:
            raise UsageError(
                "there are chat messages and the tokenizer has no chat template",
                fix="put the server's into the model's folder (chat_template.jinja; whet prompts "
                "has --chat-template FILE), or take plain prompts",
            )
        messages = [self._message(message) for message in request.messages or ()]
        if not self._developer and any(each["role"] == "developer" for each in messages):
            messages = _as_system(messages)
        try:
            return self._apply(
                messages,
                tools=[_tool(tool) for tool in request.tools],
                at=sent_at(request),
                variables={"add_generation_prompt": True, **request.chat_template_kwargs},
            )
        except _FAULTS as error:
            # The template's own words are safe to show; text of the messages is not.
            why = str(error) if isinstance(error, TemplateError) else ""
            safe = why and (why in self.source or _UNDEFINED.fullmatch(why))
            raise TemplateProblem(
                f"{TEMPLATE_REFUSES} ({why})" if safe else TEMPLATE_REFUSES
            ) from error

    def chat(self, messages: Sequence[Message], *, answered: bool = False, **more: Any) -> str:
        """The text of ``folded`` alone."""
        return self.folded(messages, answered=answered, **more)[0]

    def folded(
        self,
        messages: Sequence[Message],
        *,
        answered: bool = False,
        tools: Sequence[Message] = (),
        at: datetime = FIXED_DATE,
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[str, Sequence[Message]]:
        """Plain messages as text, up to the begin of the answer, or ``answered`` as they are.

        The second value is the messages that the template took: a system message becomes the
        begin of the first turn where it is refused (Gemma 2). Raises
        ``TemplateProblem`` with the template's words, which may quote the messages.
        """
        own = {**(variables or {}), "add_generation_prompt": not answered}
        apply = partial(self._apply, tools=tools, at=at, variables=own)
        try:
            return apply(self._parts(messages)), messages
        except _FAULTS as error:
            if len(messages) > 1 and messages[0].get("role") in ("system", "developer"):
                system, first, *rest = messages
                merged = {**first, "content": f"{system['content']}\n\n{first['content']}"}
                row = [merged, *rest]
                with suppress(*_FAULTS):
                    return apply(self._parts(row)), row
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise TemplateProblem(f"{TEMPLATE_REFUSES} ({kind}{str(error).rstrip('.')})") from error

    @property
    def takes_date(self) -> bool:
        """Whether ``date_string`` replaces the clock's date, as in Llama 3.2."""
        return "strftime_now" in self.source and "date_string" in self.source

    def shows_date(self, messages: Sequence[Message]) -> bool:
        """Whether the text of plain messages changes from day to day."""
        return self.chat(messages) != self.chat(messages, at=_ANOTHER_DATE)

    def _parts(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages with parts as content, for a template that does not take text."""
        if not self._walks or "is string" in self.source:
            return [dict(message) for message in messages]
        return [{**each, "content": self._content(each.get("content"))} for each in messages]

    def _apply(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Sequence[Message],
        at: datetime,
        variables: Mapping[str, Any],
    ) -> str:
        values = {**self.variables, **variables}
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self._own,
                tokenize=False,
                strftime_now=at.strftime,
                **{name: value for name, value in values.items() if name not in _RESERVED},
            )
        )

    def _check(self) -> None:
        probe = LoggedRequest(place="", messages=({"role": "user", "content": "x"},))
        if self.source not in _ENDING:
            if not _ends(partial(self.render, probe)):
                raise UsageError(
                    f"the chat template takes more than {_RENDER_S} s or {_RENDER_CHARS:,} "
                    "characters for one word",
                    fix=_CORRECT,
                )
            _ENDING.add(self.source)
        try:
            self.render(probe)
        except TemplateProblem as problem:
            error = problem.__cause__
            if isinstance(error, TemplateSyntaxError):
                raise UsageError(
                    f"the chat template cannot be parsed (line {error.lineno}: {error.message})",
                    fix=_CORRECT,
                ) from error

    def _message(self, message: Message) -> dict[str, Any]:
        role = message.get("role")
        rendered: dict[str, Any] = {"role": role, "content": self._content(message.get("content"))}
        if role == "assistant":
            if calls := message.get("tool_calls"):
                rendered["tool_calls"] = [_call(call) for call in calls]
            if (reasoning := message.get("reasoning")) is not None:
                rendered["reasoning"] = rendered["reasoning_content"] = reasoning
        elif role == "tool":
            if "tool_call_id" in message:
                rendered["tool_call_id"] = message["tool_call_id"]
            if isinstance(rendered["content"], list):
                rendered["content"] = "\n".join(_texts(rendered["content"]))
        elif role == "developer":
            rendered["tools"] = message.get("tools")
        if isinstance(message.get("name"), str):
            rendered["name"] = message["name"]
        return rendered

    def _content(self, content: object) -> str | list[dict[str, Any]]:
        """Text, or parts for a template that walks over them."""
        parts: Sequence[object] = [content] if isinstance(content, str) else ()
        parts = content if isinstance(content, list | tuple) else parts
        return [_part(part) for part in parts] if self._walks else "\n".join(_texts(parts))


def _part(part: object) -> dict[str, Any]:
    text = part_text(part)
    if text is not None:
        return {"type": "text", "text": text}
    return dict(part) if isinstance(part, Mapping) else {}


def _texts(parts: Sequence[object]) -> list[str]:
    return [text for text in map(part_text, parts) if text]


def _call(call: Message) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, ``{}`` if they are not a JSON object."""
    function = call.get("function")
    if not isinstance(function, dict):
        return dict(call)
    arguments = function.get("arguments")
    with suppress(ValueError, RecursionError):
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    arguments = arguments if isinstance(arguments, dict) else {}
    return {**call, "function": {**function, "arguments": arguments}}


def _tool(tool: Message) -> dict[str, Any]:
    """A tool with the fields that vLLM knows, in its order; missing fields are None."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return dict(tool)
    fields = {name: function.get(name) for name in _TOOL_FIELDS}
    if function.get("strict") is not None:
        fields["strict"] = function["strict"]
    return {"type": tool.get("type", "function"), "function": fields}


def _as_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Developer messages as system messages, merged into the first if they are apart."""
    row = [
        {"role": "system", **{k: v for k, v in each.items() if k not in ("role", "tools")}}
        if each["role"] == "developer"
        else each
        for each in messages
    ]
    if not any(each["role"] == "system" for each in row[1:]):
        return row
    system = [
        content if isinstance(content := each["content"], str) else "\n".join(_texts(content))
        for each in row
        if each["role"] == "system"
    ]
    merged = {"role": "system", "content": "\n\n".join(text for text in system if text)}
    return [merged, *(each for each in row if each["role"] != "system")]


def _ends(render: Callable[[], str]) -> bool:
    """Return whether a rendering ends within its bounds; tried in a child process."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (_RENDER_S, _RENDER_S))
        most = psutil.Process().memory_info().vms + _RENDER_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        code = int(len(render()) > _RENDER_CHARS)
    except TemplateProblem as problem:
        code = int(isinstance(problem.__cause__, MemoryError))
    finally:  # whatever was raised: a child must not go on as its parent
        os._exit(code)


def sent_at(request: LoggedRequest) -> datetime:
    """When a request was sent, in UTC; the fixed date where its time is unknown."""
    if request.at_ns is None:
        return FIXED_DATE
    return datetime.fromtimestamp(request.at_ns // NS_PER_S, UTC)
