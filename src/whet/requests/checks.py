"""What is odd about a log as a whole: one pass over its requests, and each finding by its name.

Redacted and cut texts, counts that cannot be, other tokenizers, duplicates, times against the order
of conversations. docs/logs.md lists the names.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from statistics import median
from typing import Any, Final

from whet.core.format import plural
from whet.core.units import NS_PER_S
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
from whet.requests.sample import prompt_number

_FRAME_TOKENS: Final = 64
"""Tokens that a chat template may put around the text; as many again for each 4 messages."""
_FACTOR: Final = 1.5
_OTHER_TOKENIZER: Final = 1.1
_FEWEST: Final = 20
"""Requests of one text that are a redacted log, or one that was made by a load generator."""
_ONE_TEXT: Final = 0.9
_CUT_SHARE: Final = 0.2
_FEW_SHORTER: Final = 4
_SHORTER: Final = 3
_SHORTER_SHARE: Final = 0.05
"""Requests that are shorter than the one before in their conversation: a log that is reversed."""
_LOOK: Final = 1_000
"""Requests whose answers are counted."""
_MOST_KEYS: Final = 100_000
_SAME_ANSWER: Final = 8
"""Tokens of an answer that are not in its text, such as its end and the names of channels."""
_FEWEST_ANSWERS: Final = 5
_FEWEST_MARKS: Final = 16
_MARKED: Final = 0.8
"""A text of so many signs, so many of them one, is masked: ``xxxx xx xxxxxx``."""
_UNTIMED: Final = "have no time: they stay behind the request before them"
_ODD: Final[Mapping[str, FindingName]] = {
    _UNTIMED: "times",
    "have a time that is not understood; write it as 2025-11-27T08:00:00Z": "times",
    "have the text of an earlier one within a second: lines that are in the log twice?": (
        "duplicates"
    ),
    "have the id, prompt and answer of an earlier one: each is counted once": "duplicates",
    "have a prompt that is masked, such as by x for each letter": "redacted",
    "have a prompt that says it was truncated": "truncated",
    "have a prompt of fewer bytes than the log counts tokens: redacted or cut": "redacted",
    "have an answer of more tokens than their own limit: one of the two is of another request": (
        "counts"
    ),
    "have an answer of fewer bytes than the log counts tokens: redacted, cut, or reasoning that is "
    "not logged": "counts",
    "have fields that change the prompt and that whet renders without "
    f"({', '.join(sorted(TEMPLATE_FIELDS))})": "template-fields",
}
_, _UNREAD, _TWICE, _AGAIN, _MASKED, _SHORTENED, _PROMPT, _LIMIT, _ANSWER, _FIELDS = _ODD
_PLACEHOLDER: Final = re.compile(
    r"[\W_]*|[\[<][^\n\"{}]{0,80}[\]>]|([\w-]{1,20}[:=])?[0-9a-f]{16,}", re.IGNORECASE
)
"""A prompt's last message in the place of its text: ``***``, ``[REDACTED]``, a hash."""
_LONGER: Final = (
    "have an answer of more tokens than their own limit, counted from its text: it is not the "
    "answer alone, or of another tokenizer"
)
_REASONS: Final = {
    "prompt": ("redacted, cut, or ", "counts without cached tokens, or "),
    "answer": ("totals of a session, reasoning that is not logged, or ", "more than it, or "),
}
"""Why the log counts more tokens than its text has, and why fewer."""
_CUT: Final = re.compile(r"(\.\.\.|…) ?[\[(<][^\])>\n]{0,40}truncated", re.IGNORECASE)


class LogCheck:
    """Checks requests one after another: their counts against their text, and with one another.

    No tokenizer makes more tokens than a text has bytes, so a larger count is of another text.
    """

    def __init__(self, clock: Clock | None = None, *, in_file_order: bool = False) -> None:
        """``clock`` has read the times of the log; a log in the file's order needs none."""
        self._clock, self._in_file_order = clock or Clock(), in_file_order
        self._requests = self._textless = self._masked = 0
        self._tokens, self._bytes = array("q"), array("q")
        self._odd = LeftOutCounts()
        self._ends, self._sizes = Counter[int](), Counter[int]()
        self._models, self._unread = Counter[str](), Counter[str]()
        self._sessions = set[str]()
        self._turns: dict[int, int] = {}
        self._longer = self._shorter = 0
        self._repeats = _Repeats()

    def add(self, request: LoggedRequest) -> bool:
        """Count one request; False for one that an earlier line holds, by its id and texts.

        A row of lengths has no text to check.
        """
        self._requests += 1
        if request.model is not None:
            self._models[request.model] += 1
        if not request.has_prompt:
            return True
        if repeat := self._repeats.reason(request):
            self._odd.add(repeat, request.place)
        if repeat == _AGAIN:
            return False
        if request.at_ns is None:
            self._odd.add(_UNREAD if request.odd_time else _UNTIMED, request.place)
        self._unread.update(request.unread)
        self._add_conversation(request)
        if not TEMPLATE_FIELDS.isdisjoint(request.sampling):
            self._odd.add(_FIELDS, request.place)
        self._add_text(request)
        self._add_counts(request)
        return True

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
        marks = "" if request.prompt_token_ids else _marks(end)
        if len(marks) >= _FEWEST_MARKS:
            self._masked += 1
            self._odd.add(_MASKED, request.place)
        key = 0 if marks or _PLACEHOLDER.fullmatch(end) else hash(end)
        if key in self._ends or len(self._ends) < _MOST_KEYS:
            self._ends[key] += 1

    def _add_counts(self, request: LoggedRequest) -> None:
        if request.prompt_tokens is not None and not media(request):
            size = _prompt_bytes(request)
            self._tokens.append(request.prompt_tokens)
            self._bytes.append(size)
            frame = _FRAME_TOKENS + _FRAME_TOKENS // 4 * len(request.messages or ())
            if request.prompt_tokens > size + frame:
                self._textless += 1
                self._odd.add(_PROMPT, request.place)
        answer = _size(request.output or "", request.reasoning or "", request.tool_calls)
        tokens = request.output_tokens or 0
        if answer and tokens > answer + _FRAME_TOKENS:
            self._odd.add(_ANSWER, request.place)
        if request.max_tokens and tokens > request.max_tokens:
            self._odd.add(_LIMIT, request.place)

    @property
    def problem(self) -> str | None:
        """Why the prompts are not those that were sent; None while most can be."""
        if 2 * self._masked > self._requests:
            text = f"{self._masked:,} of {self._requests:,} requests {_MASKED}"
            return finding("redacted", f"{text}; give a log with the whole text")
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


class TokenCheck:
    """Compares the log's own counts and limits with the tokens that its texts have here."""

    def __init__(self, encode: Callable[[str], Sized]) -> None:
        self._encode, self._requests, self._media = encode, 0, 0
        self._prompts, self._answers = list[tuple[int, int]](), list[tuple[int, int]]()
        self._longer = LeftOutCounts()

    def add(self, request: LoggedRequest, tokens: int) -> None:
        """Add a request of ``tokens`` prompt tokens; the first answers are counted as well."""
        self._requests += 1
        if media(request):
            self._media += 1
            return
        if request.prompt_tokens is not None:
            self._prompts.append((request.prompt_tokens, tokens))
        text = (request.reasoning or "") + (request.output or "")
        if not text or request.tool_calls or self._requests > _LOOK:
            return
        counted = len(self._encode(text))
        if request.output_tokens is not None:
            self._answers.append((request.output_tokens, counted))
        elif request.max_tokens and counted > _OTHER_TOKENIZER * request.max_tokens + _SAME_ANSWER:
            self._longer.add(_LONGER, request.place)

    def doubts(self) -> Iterator[str]:
        """What is odd about the counts, one sentence each with its name."""
        yield from _count_doubt("tokenizer", self._prompts, "prompt", _FRAME_TOKENS)
        if len(self._answers) >= _FEWEST_ANSWERS:
            yield from _count_doubt("counts", self._answers, "answer", _SAME_ANSWER)
        of = f"of {plural(self._requests, 'request')}"
        for each in self._longer.records():
            yield finding("counts", f"{each.count:,} {of} (first {each.first}) {each.reason}")
        if self._media:
            text = f"{self._media:,} {of} hold images or sound: their text alone is counted"
            yield finding("media", text)


def _count_doubt(
    name: FindingName, known: Sequence[tuple[int, int]], what: str, frame: int
) -> Iterator[str]:
    """What is odd about tokens as logged and as counted, by their medians.

    Templates differ by ``frame`` tokens or some percent, which is ordinary.
    """
    if not known:
        return
    ratio = median((logged + 1) / (counted + 1) for logged, counted in known)
    theirs, ours = (median(each) for each in zip(*known, strict=True))
    if 1 / _OTHER_TOKENIZER <= ratio <= _OTHER_TOKENIZER or abs(theirs - ours) <= frame:
        return
    why = _REASONS[what][theirs < ours] if not 1 / _FACTOR <= ratio <= _FACTOR else ""
    yield finding(
        name,
        f"the log says {theirs:,.0f} tokens per {what} and its text has {ours:,.0f} (medians of "
        f"{len(known):,} requests): {why}another tokenizer or template",
    )


class _Repeats:
    """Finds requests that are in a log twice, by their ids or by texts at nearly one time.

    An id of several prompts is that of a session, or a constant.
    """

    def __init__(self) -> None:
        self._times_ns = dict[object, int]()
        self._ids = dict[object, tuple[int, str | None]]()
        self._own_ids = True

    def reason(self, request: LoggedRequest) -> str | None:
        """``_AGAIN``, ``_TWICE`` where it is not certain, or None."""
        prompt, output, at_ns = prompt_number(request), request.output, request.at_ns
        known, answer = self._ids.get(request.request_id, (None, None))
        self._own_ids = self._own_ids and known in (None, prompt)
        before_ns = self._times_ns.get((prompt, output))
        for table in (self._ids, self._times_ns):
            if len(table) > _MOST_KEYS:
                table.clear()
        if request.request_id is not None:
            self._ids[request.request_id] = prompt, answer or output
        if at_ns is not None:
            self._times_ns[prompt, output] = at_ns
        by_id = self._own_ids and known == prompt
        if by_id and output in (answer, None):
            return _AGAIN
        near_ns = NS_PER_S if output else 0
        near = at_ns is not None and before_ns is not None and abs(at_ns - before_ns) <= near_ns
        return _TWICE if near or (by_id and answer is None) else None


def _marks(text: str) -> str:
    """The letters of a text, or its other signs, if hardly any differs; else none."""
    letters = "".join(filter(str.isalpha, text.casefold()))
    marks = letters or re.sub(r"[\s\d]", "", text)
    most = max(map(marks.count, set(marks)), default=0)
    return marks if len(marks) > 2 and most >= _MARKED * len(marks) else ""


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
