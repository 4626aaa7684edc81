"""One request of a log, its text, its line in a log, and the count of lines that are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from whet.core.units import NS_PER_S
from whet.requests.log_times import Json, as_object

REQUEST_LOG: Final = "request log"
NO_REQUEST: Final = "no request in it"
BAD_MESSAGES: Final = "malformed messages"
FindingName = Literal[
    "times", "order", "duplicates", "redacted", "one-text", "truncated", "counts",
    "tokenizer", "limits", "models", "sessions", "template-fields", "not-read", "not-sent", "media",
]  # fmt: skip
"""What is odd about a log, in one or two words; docs/logs.md says what to do about each."""

_TEXT_KEYS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The key of a part's text, by the part's type, for the types that vLLM treats as text."""


class Unreadable(ValueError):
    """A line of a log that holds no request; the message is the reason."""


class Broken(Unreadable):
    """A line that is damaged: a log with many of these is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRequest:
    """One request of a log or a trace: chat messages, a plain prompt, token ids, or lengths alone.

    ``place`` is the file and line, ``form`` the form that the line was recognised as. ``at_ns`` is
    Unix time, or counts from a trace's start; ``odd_time`` says that the line has one that is not
    understood. ``output`` is the answer's text without
    ``reasoning``; both are None where the log does not hold them. ``tool_calls`` are the answer's.
    ``chat_template_kwargs`` are the request's own variables for the chat template, such as
    ``enable_thinking``. ``sampling`` are its sampling parameters as they were sent, and
    ``max_tokens`` is its own limit on the answer. The token counts are those of the server.
    ``hash_ids`` name the blocks of the prompt in a trace of lengths: equal leading ids are an equal
    beginning. ``tier`` is the service tier that was asked for. ``unread`` are fields that may
    change the prompt and are not known here. ``request_id`` is what gateways or servers call it.
    ``turn`` is the number of the answer in a ShareGPT conversation, from 1.
    """

    place: str
    form: str = REQUEST_LOG
    at_ns: int | None = None
    odd_time: bool = False
    model: str | None = None
    session: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    output: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    turn: int | None = None
    request_id: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    cache_salt: str | None = None
    tier: str | None = None
    hash_ids: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def has_prompt(self) -> bool:
        """Whether it can be sent again; a trace of lengths has no prompts."""
        prompts = (self.messages, self.prompt, self.prompt_token_ids)
        return any(each is not None for each in prompts)

    @property
    def input_tokens(self) -> int | None:
        """Tokens of the prompt: its ids, or as logged."""
        ids = self.prompt_token_ids
        return self.prompt_tokens if ids is None else len(ids)

    @property
    def output_bound(self) -> int | None:
        """Tokens that were generated or, where the log does not say, the request's own limit."""
        return self.max_tokens if self.output_tokens is None else self.output_tokens

    @property
    def failed(self) -> bool:
        """Whether it had no input or no answer: nothing can be sent in its place."""
        return self.input_tokens == 0 or self.output_bound == 0

    @property
    def greedy(self) -> bool:
        """Whether it asks for temperature 0; where it asks for none, a server samples."""
        return self.sampling.get("temperature") == 0

    @property
    def silent(self) -> bool:
        """Whether its limit is all that it says of the answer's length."""
        known = self.output_tokens is not None or bool(self.output)
        return self.max_tokens is not None and not known


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Lines of a log that are not counted: the reason, how many, and the place of the first."""

    reason: str
    count: int
    first: str


def finding(name: FindingName, text: str) -> str:
    """One sentence about a log that ends with the name of what is odd."""
    return f"{text} [{name}]"


def describe_left_out(records: Iterable[LeftOut]) -> str:
    """Each reason with its count and first place."""
    return ", ".join(f"{each.reason}: {each.count}, first {each.first}" for each in records)


class LeftOutCounts:
    """Counts lines that are left out, by reason."""

    def __init__(self) -> None:
        self._reasons: dict[str, tuple[int, str]] = {}

    def add(self, reason: str, place: str) -> None:
        """Count one more line; the first place of each reason is stored."""
        count, first = self._reasons.get(reason, (0, place))
        self._reasons[reason] = (count + 1, first)

    def records(self) -> tuple[LeftOut, ...]:
        """One record per reason, in the order in which the reasons occurred."""
        return tuple(
            LeftOut(reason=reason, count=count, first=first)
            for reason, (count, first) in self._reasons.items()
        )


def plain_messages(request: LoggedRequest, *, answer: bool = True) -> list[Json]:
    """The messages with one text as content each; with ``answer``, the logged one is last.

    Content parts that are not text are dropped (see ``media``). Arguments of tool calls, which the
    API has as JSON text, become objects.
    """
    messages = [_plain(message) for message in request.messages or ()]
    if not answer or (request.output is None and not request.tool_calls):
        return messages
    logged: Json = {"role": "assistant", "content": request.output or ""}
    if request.reasoning is not None:
        logged["reasoning_content"] = request.reasoning
    if request.tool_calls:
        logged["tool_calls"] = list(request.tool_calls)
    return [*messages, _plain(logged)]


def document_text(request: LoggedRequest) -> str:
    """Prompt and answer as plain text; the messages of a chat with an empty line between them."""
    if request.messages is None:
        return (request.prompt or "") + (request.output or "")
    texts = (message["content"] for message in plain_messages(request))
    return "\n\n".join(text for text in texts if text)


def media(request: LoggedRequest) -> Counter[str]:
    """Content parts that are not text, counted by type (``image_url``, ``input_audio``, …)."""
    contents = (message.get("content") for message in request.messages or ())
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return Counter(
        str(part.get("type") or next(iter(part), "unknown"))
        for part in parts
        if isinstance(part, dict) and part_text(part) is None
    )


def part_text(part: object) -> str | None:
    """The text of one part of a message, None for a part without text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    key = _TEXT_KEYS.get(str(part.get("type", "text")))
    text = None if key is None else part.get(key)
    return text if isinstance(text, str) else None


def content_text(content: object) -> str:
    """The text of a message's content, which is a text or a list of parts."""
    parts = content if isinstance(content, list) else [content]
    return "".join(part_text(part) or "" for part in parts)


def _plain(message: Mapping[str, Any]) -> Json:
    plain = {**message, "content": content_text(message.get("content"))}
    if message.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return plain


def _call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    arguments = as_object(function.get("arguments"))
    return call if arguments is None else {**call, "function": {**function, "arguments": arguments}}


def one_of_each(ids: Sequence[int], numbers: dict[int, int]) -> tuple[int, ...]:
    """The ids, where equal ones are one number in memory: ``numbers`` holds those met before.

    A token then costs a reference of 8 bytes, and not a number of 32 as well.
    """
    return tuple(map(numbers.setdefault, ids, ids))


def request_line(request: LoggedRequest) -> Json:
    """The JSON object of a line: ``request`` without its place."""
    ids, limit = request.prompt_token_ids, request.max_tokens
    line: Json = {
        "timestamp": None if request.at_ns is None else _time(request.at_ns),
        "model": request.model,
        "cache_salt": request.cache_salt,
        "session_id": request.session,
        "messages": None if request.messages is None else list(request.messages),
        "prompt": request.prompt if ids is None else ids,
        "tools": list(request.tools) or None,
        "chat_template_kwargs": request.chat_template_kwargs or None,
        **request.sampling,
        "service_tier": request.tier,
        "max_tokens": request.output_tokens if limit is None else limit,
        "response": _answer(request) or None,
    }
    return {name: value for name, value in line.items() if value is not None}


def _time(at_ns: int) -> str:
    """ISO 8601 in UTC with nanoseconds, which a float of seconds cannot hold."""
    seconds, rest = divmod(at_ns, NS_PER_S)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{rest:09d}Z"


def _answer(request: LoggedRequest) -> Json:
    answer: Json = {}
    if request.output is not None or request.reasoning is not None or request.tool_calls:
        message: Json = {"role": "assistant", "content": request.output}
        if request.reasoning is not None:
            message["reasoning_content"] = request.reasoning
        if request.tool_calls:
            message["tool_calls"] = request.tool_calls
        is_chat = request.messages is not None
        answer["choices"] = [{"message": message} if is_chat else {"text": request.output}]
    if request.output_tokens is not None:
        answer["usage"] = {"completion_tokens": request.output_tokens}
    return answer
