"""What is odd about a log as a whole: one pass over its requests, and each finding by its name.

Redacted and cut texts, counts that cannot be, other tokenizers, duplicates, times against the order
of conversations. docs/logs.md lists the names.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any, Final

from whet.core.format import plural
from whet.requests.log_times import Clock
from whet.requests.parse import TEMPLATE_FIELDS
from whet.requests.records import (
    FindingName,
    LeftOutCounts,
    LoggedRequest,
    content_text,
    finding,
    media,
)

_FRAME_TOKENS: Final = 64
"""Tokens that a chat template may put around the text; as many again for each 4 messages."""
_FACTOR: Final = 1.5
_OTHER_TOKENIZER: Final = 1.1
_MOST_BYTES: Final = 24
"""Bytes of text per token that no tokenizer reaches in ordinary text."""
_FEWEST: Final = 20
"""Requests of one text that are a redacted log, or one that was made by a load generator."""
_ONE_TEXT: Final = 0.9
_CUT_SHARE: Final = 0.2
_FEW_SHORTER: Final = 4
_SHORTER: Final = 3
_SHORTER_SHARE: Final = 0.05
"""Requests that are shorter than the one before in their conversation: a log that is reversed."""
_LOOK: Final = 1_000
"""Requests whose counts are compared with their characters and words."""
_MOST_KEYS: Final = 100_000
_MOST_AT_ONCE: Final = 50
"""Requests of one time that are compared with one another."""
_UNTIMED: Final = "have no time: they stay behind the request before them"
_ODD: Final[Mapping[str, FindingName]] = {
    _UNTIMED: "times",
    "have a time that is not understood; write it as 2025-11-27T08:00:00Z": "times",
    "have the time and the text of an earlier one: lines that are in the log twice?": "duplicates",
    "have a prompt that says it was truncated": "truncated",
    "have a prompt of fewer bytes than the log counts tokens: redacted or cut": "redacted",
    f"have over {_MOST_BYTES} bytes of prompt for each token that the log counts: it counts "
    "without cached tokens, or a part": "counts",
    "have an answer of more tokens than their own limit: one of the two is of another request": (
        "counts"
    ),
    "have an answer of fewer bytes than the log counts tokens: redacted, cut, or reasoning that is "
    "not logged": "counts",
    "have fields that change the prompt and that whet renders without "
    f"({', '.join(sorted(TEMPLATE_FIELDS))})": "template-fields",
}
_, _UNREAD, _TWICE, _SHORTENED, _PROMPT, _FEW, _LIMIT, _ANSWER, _FIELDS = _ODD
_PLACEHOLDER: Final = re.compile(
    r"[\W_]*|[\[<][^\n\"{}]{0,80}[\]>]|([\w-]{1,20}[:=])?[0-9a-f]{16,}", re.IGNORECASE
)
"""A prompt's last message in the place of its text: ``***``, ``[REDACTED]``, a hash."""
_CUT: Final = re.compile(r"(\.\.\.|…) ?[\[(<][^\])>\n]{0,40}truncated", re.IGNORECASE)


class LogCheck:
    """Checks requests one after another: their counts against their text, and with one another.

    No tokenizer makes more tokens than a text has bytes, so a larger count is of another text.
    """

    def __init__(self, clock: Clock | None = None, *, in_file_order: bool = False) -> None:
        """``clock`` has read the times of the log; a log in the file's order needs none."""
        self._clock, self._in_file_order = clock or Clock(), in_file_order
        self._requests = self._textless = self._characters = 0
        self._tokens, self._bytes = array("q"), array("q")
        self._odd = LeftOutCounts()
        self._ends, self._sizes = Counter[int](), Counter[int]()
        self._models, self._unread = Counter[str](), Counter[str]()
        self._sessions = set[str]()
        self._turns: dict[int, int] = {}
        self._longer = self._shorter = 0
        self._same_time = deque[LoggedRequest](maxlen=_MOST_AT_ONCE)

    def add(self, request: LoggedRequest) -> None:
        """Count one request; a row of lengths has no text to check."""
        self._requests += 1
        if request.model is not None:
            self._models[request.model] += 1
        if not request.has_prompt:
            return
        if request.at_ns is None:
            self._odd.add(_UNREAD if request.odd_time else _UNTIMED, request.place)
        elif any(_same(request, each) for each in self._same_time):
            self._odd.add(_TWICE, request.place)
        if self._same_time and self._same_time[-1].at_ns != request.at_ns:
            self._same_time.clear()
        self._same_time.append(request)
        self._unread.update(request.unread)
        self._add_conversation(request)
        if not TEMPLATE_FIELDS.isdisjoint(request.sampling):
            self._odd.add(_FIELDS, request.place)
        self._add_text(request)
        self._add_counts(request)

    def _add_conversation(self, request: LoggedRequest) -> None:
        """Whether it is longer than the request before it of the same conversation."""
        messages = request.messages or ()
        first = next((_content(each) for each in messages if each["role"] == "user"), None)
        if request.session is not None and len(self._sessions) < 2:
            self._sessions.add(request.session)
        if first is None or len(self._turns) > _MOST_KEYS:
            return
        key = hash((request.session, first))
        before = self._turns.get(key, len(messages))
        self._longer += len(messages) > before
        self._shorter += len(messages) < before
        self._turns[key] = len(messages)

    def _add_text(self, request: LoggedRequest) -> None:
        end = _end(request)
        if _CUT.search(end):
            self._odd.add(_SHORTENED, request.place)
        if media(request):
            return
        self._sizes[len(end)] += 1
        key = 0 if _PLACEHOLDER.fullmatch(end) else hash(end)
        if key in self._ends or len(self._ends) < _MOST_KEYS:
            self._ends[key] += 1

    def _add_counts(self, request: LoggedRequest) -> None:
        if request.prompt_tokens is not None and not media(request):
            size = _prompt_bytes(request)
            self._tokens.append(request.prompt_tokens)
            self._bytes.append(size)
            if len(self._tokens) <= _LOOK and size > _FRAME_TOKENS:
                texts = [request.prompt or "", *map(_content, request.messages or ())]
                sizes = sum(map(len, texts)), sum(len(text.split()) for text in texts)
                self._characters += request.prompt_tokens in sizes
            frame = _FRAME_TOKENS + _FRAME_TOKENS // 4 * len(request.messages or ())
            if request.prompt_tokens > size + frame:
                self._textless += 1
                self._odd.add(_PROMPT, request.place)
            elif request.prompt_token_ids is None and size > _MOST_BYTES * (
                request.prompt_tokens + _FRAME_TOKENS
            ):
                self._odd.add(_FEW, request.place)
        answer = _size(request.output or "", request.reasoning or "", request.tool_calls)
        tokens = request.output_tokens or 0
        if answer and tokens > answer + _FRAME_TOKENS:
            self._odd.add(_ANSWER, request.place)
        if request.max_tokens and tokens > request.max_tokens:
            self._odd.add(_LIMIT, request.place)

    @property
    def problem(self) -> str | None:
        """Why the prompts are not those that were sent; None while most can be."""
        if 2 * self._textless <= len(self._tokens):
            return None
        tokens, size = median(self._tokens), median(self._bytes)
        return finding(
            "redacted",
            f"the log says {tokens:,.0f} tokens per prompt and its text has {size:,.0f} bytes "
            f"(medians of {len(self._tokens):,} requests): it is redacted or cut; give a log with "
            "the whole text",
        )

    def doubts(self) -> Iterator[str]:
        """What is odd about the requests, one sentence each with its name."""
        if self._clock.problem is not None:
            yield finding("times", str(self._clock.problem))
        if self._clock.doubt is not None:
            yield finding("times", self._clock.doubt)
        if len(self._models) > 1:
            counts = ", ".join(f"{name} ({count:,})" for name, count in self._models.most_common())
            text = f"the log holds requests for several models, taken together here: {counts}"
            yield finding("models", text)
        for each in self._odd.records():
            if each.reason != _UNTIMED or each.count < self._requests:
                count = f"{each.count:,} of {plural(self._requests, 'request')}"
                yield finding(_ODD[each.reason], f"{count} (first {each.first}) {each.reason}")
        yield from self._of_all()

    def _of_all(self) -> Iterator[str]:
        """What no single request shows of the texts and counts."""
        (_, same), *_ = self._ends.most_common(1) or [(0, 0)]
        if self._requests >= _FEWEST and same >= _ONE_TEXT * self._requests:
            every = "all" if same == self._requests else f"{same:,} of"
            yield finding(
                "one-text",
                f"{every} {self._requests:,} prompts end in the same text, or in a placeholder "
                "such as a hash: they may be redacted",
            )
        if self._unread:
            names = (
                f"{name:.40} of {plural(n, 'request')}" for name, n in self._unread.most_common(5)
            )
            text = "fields of the log that are neither counted nor sent, as whet does not know them"
            yield finding("not-read", f"{text}: {', '.join(names)}")
        if 2 * self._characters > min(len(self._tokens), _LOOK):
            yield finding("counts", "the log's counts are the characters or words of its prompts")
        longest = max(self._sizes, default=0)
        count = self._sizes[longest]
        if (
            same < count
            and count >= max(_FEWEST, _CUT_SHARE * self._requests)
            and _is_round(longest)
        ):
            yield finding(
                "truncated",
                f"{count:,} of {plural(self._requests, 'request')} end in a text of {longest:,} "
                "characters, and none is longer: they may be cut there",
            )
        yield from self._of_conversations()

    def _of_conversations(self) -> Iterator[str]:
        """What conversations show of the order and of the sessions."""
        if (
            not self._in_file_order
            and self._shorter > max(_FEW_SHORTER, _SHORTER * self._longer)
            and self._shorter > _SHORTER_SHARE * self._requests
        ):
            yield finding(
                "order",
                f"{self._shorter:,} requests are shorter than the one before them in their "
                "conversation: the log is probably newest first; give each line the time at which "
                "its request began, or reverse the file",
            )
        if self._requests >= _FEWEST and len(self._sessions) == 1 and len(self._turns) > 1:
            yield finding(
                "sessions",
                f"all requests have one session ({next(iter(self._sessions)):.40}) and begin with "
                f"{len(self._turns):,} questions: it is probably that of a project; remove the key",
            )


def count_doubt(pairs: Iterable[tuple[int | None, int]]) -> str | None:
    """What is odd about tokens as logged and as counted, by their medians; None if nothing is.

    Templates differ by some tokens or some percent, which is ordinary.
    """
    known = [(logged, counted) for logged, counted in pairs if logged is not None]
    if not known:
        return None
    ratio = median((logged + 1) / (counted + 1) for logged, counted in known)
    theirs, ours = (median(each) for each in zip(*known, strict=True))
    if 1 / _OTHER_TOKENIZER <= ratio <= _OTHER_TOKENIZER or abs(theirs - ours) <= _FRAME_TOKENS:
        return None
    why = "redacted, cut, or " if theirs > ours else "counts without cached tokens, or "
    why = "" if 1 / _FACTOR <= ratio <= _FACTOR else why
    return finding(
        "tokenizer",
        f"the log says {theirs:,.0f} tokens per prompt and its text has {ours:,.0f} (medians of "
        f"{len(known):,} requests): {why}another tokenizer or template",
    )


def _is_round(length: int) -> bool:
    """Whether a limit on characters has such a value."""
    return length >= 64 and (length % 100 == 0 or length & (length - 1) == 0 or length % 1024 == 0)


def _end(request: LoggedRequest) -> str:
    """The text of the prompt's last message; of token ids, these."""
    if request.messages is None:
        return request.prompt or str(request.prompt_token_ids)
    return _content(request.messages[-1]) if request.messages else ""


def _content(message: Mapping[str, Any]) -> str:
    return content_text(message.get("content"))


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
        texts.append(_content(message))
        texts.append({key: message[key] for key in message if key not in ("role", "content")})
    return _size(*texts, request.sampling)


def _size(*texts: object) -> int:
    """Bytes of texts, and of the JSON of objects that are not empty."""
    given = (each if isinstance(each, str) else json.dumps(each) for each in texts if each)
    return sum(len(text.encode("utf-8", "replace")) for text in given)
