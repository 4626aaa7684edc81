"""A logged request as the call that sends it again, and the fields of it that are not sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from whet.client import CompletionCall
from whet.core.format import plural
from whet.load.plan import TEMPERATURE
from whet.requests import LoggedRequest, finding

SAMPLER: Final = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
     "repetition_penalty", "seed", "stop", "stop_token_ids", "bad_words", "min_tokens"}
)  # fmt: skip
"""Replaced by the sampling of the measurement, with answers as long as logged."""
SEVERAL: Final = frozenset({"n", "best_of", "logprobs", "top_logprobs"})
"""What an answer of one choice, without probabilities, does not have: never sent."""
_MESSAGE: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal",
     "reasoning", "reasoning_content", "tools"}
)  # fmt: skip
"""Fields of a message that a server takes; datasets have others."""
_USUAL: Final = (("n", 1), ("best_of", 1), ("logprobs", False), ("tool_choice", "auto"))


def logged_call(request: LoggedRequest, output_tokens: int) -> CompletionCall:
    """The request with its tools, template arguments and other fields, greedy."""
    extra = {
        name: value for name, value in request.sampling.items() if name not in SAMPLER | SEVERAL
    }
    if request.messages is not None:
        extra["tools"] = [dict(tool) for tool in request.tools] or None
        extra["chat_template_kwargs"] = dict(request.chat_template_kwargs) or None
    extra["cache_salt"] = request.cache_salt
    return CompletionCall(
        prompt_token_ids=request.prompt_token_ids,
        prompt=request.prompt,
        messages=None if request.messages is None else tuple(map(_known, request.messages)),
        max_tokens=output_tokens,
        temperature=TEMPERATURE,
        ignore_eos=True,
        extra={name: value for name, value in extra.items() if value is not None},
    )


def marked(
    request: LoggedRequest, mark: str, encode: Callable[[str], Sequence[int]]
) -> LoggedRequest:
    """The request with ``mark`` before its prompt; ``encode`` makes token ids of it."""
    if request.messages is not None:
        messages = (marked_message(request.messages[0], mark), *request.messages[1:])
        return replace(request, messages=messages)
    if request.prompt is not None:
        return replace(request, prompt=mark + request.prompt)
    return replace(request, prompt_token_ids=(*encode(mark), *(request.prompt_token_ids or ())))


def marked_message(message: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    """The message with ``mark`` before its text."""
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": mark}, *content]}
    return {**message, "content": mark + (content or "")}


def _known(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name in _MESSAGE}


def unsent_fields(
    requests: Iterable[LoggedRequest], unsent: Collection[str] | None = None
) -> str | None:
    """One sentence that names the fields which are not sent again, and of how many requests.

    ``unsent`` None are all but the prompt's and the sampler's.
    """
    counts = Counter[str]()
    for request in requests:
        fields = {**request.sampling, "cache_salt": request.cache_salt}
        counts.update(
            name
            for name, value in fields.items()
            if (name not in SAMPLER if unsent is None else name in unsent)
            and value is not None
            and (name, value) not in _USUAL
        )
    if not counts:
        return None
    names = ", ".join(f"{name} of {plural(count, 'request')}" for name, count in counts.items())
    return finding("not-sent", f"fields of the log that are not sent: {names}")
