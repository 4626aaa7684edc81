"""A sample of a log in bounded memory that leaves conversations and shared texts whole.

Groups of requests are chosen by a hash: those with the smallest ones stay (bottom-k sampling,
Cohen and Kaplan, PODC 2007), so each has the same chance, whatever its place or size. A group is a
conversation, or every conversation with the same beginning where few have it, such as questions
about one document. Another part of the same hash divides them: what calibrates a quantizer is
never in the load or the gate.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Final, Literal

from whet.requests.records import LoggedRequest

Part = Literal["calibration", "gate", "load", "confirmation"]

PARTS: Final[Mapping[Part, float]] = MappingProxyType(
    {"calibration": 0.2, "gate": 0.15, "load": 0.45, "confirmation": 0.2}
)
"""Share of the groups that each part gets."""
CAPACITY: Final = 8_000
"""Requests of a sample."""
_LONGEST: Final = 500
"""Requests of one group; what repeats more often is a probe, and counts as repeats."""
_BITS: Final = 64
_LOOK: Final = 20_000
"""Requests at the log's start that common beginnings are counted in."""
_COMMON: Final = 0.005
_FEWEST: Final = 20
"""A beginning that more requests have is common: a group would be too large for one part."""
_LENGTHS: Final = (256, 1024, 4096)
"""Characters of the first question that a beginning has, after the system prompt and the tools."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledRequest:
    """One request of a sample. ``place`` is its number in the log, from 0; ``group`` a hash."""

    place: int
    group: int
    request: LoggedRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSample:
    """Whole groups of a log, in the log's order.

    ``log_requests`` counts the whole log. ``repeats`` is the share of the sample's requests that
    equal an earlier one. ``times_ns`` are the arrivals of the whole log, sorted, of the requests
    that have a time.
    """

    requests: tuple[SampledRequest, ...]
    log_requests: int
    repeats: float
    times_ns: array[int] = field(default_factory=lambda: array("q"))

    @property
    def whole(self) -> bool:
        """Whether it is the whole log."""
        return len(self.requests) == self.log_requests

    def part(self, part: Part) -> tuple[SampledRequest, ...]:
        """Its requests of one part; no group is in two."""
        return tuple(each for each in self.requests if part_of(each.group) == part)


def sample_log(
    log: Iterable[LoggedRequest], *, seed: int = 0, capacity: int = CAPACITY
) -> LogSample:
    """At most ``capacity`` requests of the log, groups chosen by ``seed``.

    The log's start is read twice, so ``log`` must be more than an iterator.
    """
    common = _common(islice(log, _LOOK))
    chosen: dict[int, list[SampledRequest]] = {}
    largest: list[int] = []  # negated hashes of the chosen groups: the largest is first
    times = array("q")
    size, count, bound = 0, 0, 1 << _BITS
    for place, request in enumerate(log):
        count += 1
        if request.at_ns is not None:
            times.append(request.at_ns)
        group = _group_of(request, seed, common)
        if group >= bound:
            continue
        if group not in chosen:
            chosen[group] = []
            heapq.heappush(largest, -group)
        if len(chosen[group]) == _LONGEST:
            continue
        chosen[group].append(SampledRequest(place=place, group=group, request=request))
        size += 1
        while size > capacity and len(chosen) > 1:
            bound = -heapq.heappop(largest)
            size -= len(chosen.pop(bound))
    every = (each for group_requests in chosen.values() for each in group_requests)
    requests = sorted(every, key=lambda each: each.place)
    return LogSample(
        requests=tuple(requests),
        log_requests=count,
        repeats=_repeats(requests),
        times_ns=array("q", sorted(times)),
    )


def read_sample(lines: Iterable[LoggedRequest]) -> LogSample:
    """A sample as a run stored it: every line's session is its group, in hexadecimal."""
    requests = tuple(
        SampledRequest(place=place, group=int(request.session or "0", 16), request=request)
        for place, request in enumerate(lines)
    )
    return LogSample(requests=requests, log_requests=len(requests), repeats=_repeats(requests))


def part_of(group: int) -> Part:
    """The part that a group belongs to, whichever sample it is in."""
    number = hashlib.blake2b(group.to_bytes(_BITS // 8, "big"), digest_size=4).digest()
    position, below = int.from_bytes(number, "big") / (1 << 32), 0.0
    for part, share in PARTS.items():
        below += share
        if position < below:
            return part
    return "confirmation"


def conversation_of(request: LoggedRequest) -> str | bytes:
    """What all requests of a conversation share: its session, else the whole first question."""
    return request.session or list(_beginnings(request))[-1]


def beginning(request: LoggedRequest) -> str:
    """The messages before the first one of a user, and the tools: what conversations share."""
    before = []
    for message in request.messages or ():
        if message.get("role") == "user":
            break
        before.append(message)
    return json.dumps([before, request.tools]) if before or request.tools else ""


def _common(start: Iterable[LoggedRequest]) -> frozenset[bytes]:
    """Beginnings that many requests have."""
    count, uses = 0, Counter[bytes]()
    for request in start:
        count += 1
        uses.update(_beginnings(request))
    most = max(_FEWEST, _COMMON * count)
    return frozenset(key for key, number in uses.items() if number > most)


def _group_of(request: LoggedRequest, seed: int, common: frozenset[bytes]) -> int:
    """A number of 64 bits that all requests of a group share.

    Without a session in the log, requests with the same first question are one conversation, and
    so are equal prompts.
    """
    if request.session is not None:
        key = request.session.encode()
    else:
        key = b""
        for key in _beginnings(request):
            if key not in common:
                break
    return int.from_bytes(_hash(str(seed).encode(), key, size=_BITS // 8), "big")


def _beginnings(request: LoggedRequest) -> Iterator[bytes]:
    """Hashes of ever longer beginnings, up to the whole first question."""
    before = beginning(request).encode()
    question = _first_question(request)
    for length in _LENGTHS:
        if length >= len(question):
            break
        yield _hash(before, question[:length].encode("utf-8", "replace"))
    yield _hash(before, question.encode("utf-8", "replace"))


def _first_question(request: LoggedRequest) -> str:
    if request.messages is None:
        return request.prompt or json.dumps(request.prompt_token_ids)
    users = (each.get("content") for each in request.messages if each.get("role") == "user")
    content = next(users, "")
    return content if isinstance(content, str) else json.dumps(content)


def _hash(*parts: bytes, size: int = 16) -> bytes:
    return hashlib.blake2b(b"\x00".join(parts), digest_size=size).digest()


def _repeats(requests: Iterable[SampledRequest]) -> float:
    prompts = [prompt_number(each.request) for each in requests]
    return 1 - len(set(prompts)) / len(prompts) if prompts else 0.0


def prompt_number(request: LoggedRequest) -> int:
    """Return a number that requests with equal prompts share, of 64 bits."""
    parts = [request.messages, request.prompt, request.prompt_token_ids, request.tools]
    return int.from_bytes(_hash(json.dumps(parts).encode(), size=8), "big")
