"""A log's own token counts against its text: redacted and cut logs, and other tokenizers."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Final

from whet.core.format import plural
from whet.requests.records import LeftOutCounts, LoggedRequest, content_text, media

_FRAME_TOKENS: Final = 64
"""Tokens that a chat template may put around the text; as many again for each 4 messages."""
_FACTOR: Final = 1.5
_FEWEST: Final = 20
"""Requests of one text that are a redacted log, or one that was made by a load generator."""
_UNTIMED: Final = "have no time: they stay behind the request before them"
_UNREAD: Final = "have a time that is not understood; write it as 2025-11-27T08:00:00Z"
_TWICE: Final = "have the time and the text of the request before: lines that are in the log twice?"
_SHORTENED: Final = "have a prompt that says it was truncated"
_PLACEHOLDER: Final = re.compile(
    r"[\W_]*|[\[<][^\n\"{}]{0,80}[\]>]|([\w-]{1,20}[:=])?[0-9a-f]{16,}", re.IGNORECASE
)
"""A prompt's last message in the place of its text: ``***``, ``[REDACTED]``, a hash."""
_CUT: Final = re.compile(r"(\.\.\.|…) ?[\[(<][^\])>\n]{0,40}truncated", re.IGNORECASE)
_PROMPT: Final = "have a prompt of fewer bytes than the log counts tokens: redacted or cut"
_ANSWER: Final = (
    "have an answer of fewer bytes than the log counts tokens: redacted, cut, or reasoning that is "
    "not logged"
)


class TextCheck:
    """Compares each request's logged token counts with the bytes of its text.

    No tokenizer makes more tokens than a text has bytes, so a larger count is of another text.
    """

    def __init__(self, *doubts: str | None) -> None:
        """``doubts`` are those that others have about the log."""
        self._doubts = [each for each in doubts if each]
        self._requests = self._textless = 0
        self._tokens, self._bytes = array("q"), array("q")
        self._odd = LeftOutCounts()
        self._texts: set[str] = set()
        self._models = Counter[str]()
        self._before: LoggedRequest | None = None

    def add(self, request: LoggedRequest) -> None:
        """Count one request."""
        self._requests += 1
        if request.at_ns is None:
            self._odd.add(_UNREAD if request.odd_time else _UNTIMED, request.place)
        elif self._before is not None and _same(request, self._before):
            self._odd.add(_TWICE, request.place)
        self._before = request
        if request.model is not None:
            self._models[request.model] += 1
        end = _end(request)
        if len(self._texts) < 2 and not media(request):
            self._texts.add("" if _PLACEHOLDER.fullmatch(end) else end)
        if _CUT.search(end):
            self._odd.add(_SHORTENED, request.place)
        if request.prompt_tokens is not None and not media(request):
            size = _prompt_bytes(request)
            self._tokens.append(request.prompt_tokens)
            self._bytes.append(size)
            frame = _FRAME_TOKENS + _FRAME_TOKENS // 4 * len(request.messages or ())
            if request.prompt_tokens > size + frame:
                self._textless += 1
                self._odd.add(_PROMPT, request.place)
        answer = _size(request.output or "", request.reasoning or "", request.tool_calls)
        if answer and (request.output_tokens or 0) > answer + _FRAME_TOKENS:
            self._odd.add(_ANSWER, request.place)

    @property
    def problem(self) -> str | None:
        """Why the prompts are not those that were sent; None while most can be."""
        if 2 * self._textless <= len(self._tokens):
            return None
        tokens, size = median(self._tokens), median(self._bytes)
        return (
            f"the log says {tokens:,.0f} tokens per prompt and its text has {size:,.0f} bytes "
            f"(medians of {len(self._tokens):,} requests): it is redacted or cut; give a log with "
            "the whole text"
        )

    def doubts(self) -> Iterator[str]:
        """What is odd about the requests, one sentence each."""
        yield from self._doubts
        if len(self._models) > 1:
            counts = ", ".join(f"{name} ({count:,})" for name, count in self._models.most_common())
            yield f"the log holds requests for several models, taken together here: {counts}"
        for each in self._odd.records():
            if each.reason != _UNTIMED or each.count < self._requests:
                count = f"{each.count:,} of {plural(self._requests, 'request')}"
                yield f"{count} (first {each.first}) {each.reason}"
        if self._requests >= _FEWEST and len(self._texts) == 1:
            yield (
                f"all {self._requests:,} prompts end in the same text, or in a placeholder such as "
                "a hash: they may be redacted"
            )


def count_doubt(pairs: Iterable[tuple[int | None, int]]) -> str | None:
    """What is odd about tokens as logged and as counted, by their medians; None if nothing is.

    Templates and tokenizers differ by some tokens or some percent, which is ordinary.
    """
    known = [(logged, counted) for logged, counted in pairs if logged is not None]
    if not known:
        return None
    ratio = median((logged + 1) / (counted + 1) for logged, counted in known)
    theirs, ours = (median(each) for each in zip(*known, strict=True))
    if 1 / _FACTOR <= ratio <= _FACTOR or abs(theirs - ours) <= _FRAME_TOKENS:
        return None
    why = "redacted, cut, or " if theirs > ours else "counts without cached tokens, or "
    return (
        f"the log says {theirs:,.0f} tokens per prompt and its text has {ours:,.0f} (medians of "
        f"{len(known):,} requests): {why}another tokenizer or template"
    )


def _end(request: LoggedRequest) -> str:
    """The text of the prompt's last message; of token ids, these."""
    if request.messages is None:
        return request.prompt or str(request.prompt_token_ids)
    return content_text(request.messages[-1].get("content")) if request.messages else ""


def _same(one: LoggedRequest, other: LoggedRequest) -> bool:
    """Whether two requests have one time, prompt and answer."""
    keys = ("at_ns", "messages", "prompt", "prompt_token_ids", "output")
    return all(getattr(one, key) == getattr(other, key) for key in keys)


def _prompt_bytes(request: LoggedRequest) -> int:
    """Bytes of everything that a template may render; of token ids, their number."""
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    texts: list[object] = [request.prompt or "", request.tools, request.chat_template_kwargs]
    for message in request.messages or ():
        texts.append(content_text(message.get("content")))
        texts.append({key: message[key] for key in message if key not in ("role", "content")})
    return _size(*texts, request.sampling)


def _size(*texts: object) -> int:
    """Bytes of texts, and of the JSON of objects that are not empty."""
    given = (each if isinstance(each, str) else json.dumps(each) for each in texts if each)
    return sum(len(text.encode("utf-8", "replace")) for text in given)
