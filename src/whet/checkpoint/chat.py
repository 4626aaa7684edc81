"""Chat messages to the prompt's text, as vLLM hands them to a model's chat template.

vLLM brings messages to one form before the template sees them: parts of text are joined unless the
template walks over them, arguments of tool calls are objects, tools have their fields in one order
(vLLM 0.32: ``renderers/chat_utils.py``, ``renderers/hf.py``, ``entrypoints/generate/base``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from jinja2 import TemplateError, TemplateSyntaxError

from whet.core.errors import UsageError
from whet.core.request_log import LoggedRequest, part_text
from whet.core.units import NS_PER_S

_LOOP: Final = re.compile(
    r"""\{%-?\s*for\s+\w+\s+in\s+(?:[\w.\[\]'"-]*(?:\.content\b|\[['"]content['"]\])|content\b)"""
)
"""A template that walks over a message's parts (what vLLM finds in its syntax tree)."""
# What a template may raise that handles a value as what it is not.
_FAULTS: Final = (
    TypeError, LookupError, AttributeError, ValueError, ArithmeticError, RecursionError
)  # fmt: skip
_REFUSED: Final = "the chat template does not take its messages"
_RESERVED: Final = ("messages", "conversation", "tools", "chat_template", "tokenize")
"""Names that a request's own template variables cannot replace."""
_TOOL_FIELDS: Final = ("name", "description", "parameters")

Message = Mapping[str, Any]


class TemplateProblem(ValueError):
    """The chat template does not take these messages; the message says why."""


class ChatTemplate:
    """A tokenizer's chat template, or one in its place."""

    def __init__(self, tokenizer: Any, own: str | None = None) -> None:
        """``own`` replaces the tokenizer's. Raises ``UsageError`` for one with a fault in it."""
        self._tokenizer, self._own = tokenizer, own
        source = own or tokenizer.chat_template or ""
        self._source = "\n".join(source.values()) if isinstance(source, dict) else str(source)
        self._walks = _LOOP.search(self._source) is not None
        self._developer = re.search("[\"']developer[\"']", self._source) is not None
        self._dated = "strftime_now" in self._source
        if self._source:
            self._check()

    def render(self, request: LoggedRequest) -> str:
        """The prompt up to the begin of the answer; ``TemplateProblem`` where it is refused."""
        if not self._source:
            raise UsageError(
                "the log has chat messages and the tokenizer has no chat template; give the one "
                "that the server uses with --chat-template FILE"
            )
        messages = [self._message(message) for message in request.messages or ()]
        if not self._developer and any(each["role"] == "developer" for each in messages):
            messages = _as_system(messages)
        values: dict[str, Any] = {"add_generation_prompt": True}
        if self._dated:
            values["strftime_now"] = partial(_at, request.at_ns)
        own = request.chat_template_kwargs.items()
        values |= {name: value for name, value in own if name not in _RESERVED}
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=[_tool(tool) for tool in request.tools] or None,
                    chat_template=self._own,
                    tokenize=False,
                    **values,
                )
            )
        except TemplateError as error:
            # The template's own words are safe to show; text of the messages is not.
            why = str(error)
            problem = f"{_REFUSED} ({why})" if why and why in self._source else _REFUSED
            raise TemplateProblem(problem) from error
        except _FAULTS as error:
            raise TemplateProblem(_REFUSED) from error

    def _check(self) -> None:
        probe = LoggedRequest(place="", messages=({"role": "user", "content": "x"},))
        try:
            self.render(probe)
        except TemplateProblem as problem:
            error = problem.__cause__
            if isinstance(error, TemplateSyntaxError):
                raise UsageError(
                    f"the chat template cannot be parsed (line {error.lineno}: {error.message}); "
                    "correct it, or give another with --chat-template FILE"
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
        if isinstance(content, str) and not self._walks:
            return content
        parts: Sequence[object]
        if isinstance(content, str):
            parts = [content]
        else:
            parts = content if isinstance(content, list | tuple) else ()
        if not self._walks:
            return "\n".join(_texts(parts))
        return [_part(part) for part in parts]


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
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        arguments = {}
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


def _at(at_ns: int | None, form: str) -> str:
    """The date for a template, in UTC: of the request, or now where its time is unknown."""
    at = datetime.now(UTC) if at_ns is None else datetime.fromtimestamp(at_ns // NS_PER_S, UTC)
    return at.strftime(form)
