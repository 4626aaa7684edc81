"""A sample of a log in bounded memory that leaves every conversation whole.

Conversations are chosen by a hash: those with the smallest ones stay (bottom-k sampling, Cohen and
Kaplan, PODC 2007), so each has the same chance, whatever its place or length. Another part of the
same hash divides them: what calibrates a quantizer is never in the load or the gate.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from whet.core.request_log.records import LoggedRequest

Part = Literal["calibration", "gate", "load", "confirmation"]

PARTS: Final[Mapping[Part, float]] = MappingProxyType(
    {"calibration": 0.2, "gate": 0.15, "load": 0.45, "confirmation": 0.2}
)
"""Share of the conversations that each part gets."""
CAPACITY: Final = 8_000
"""Requests of a sample."""
_LONGEST: Final = 500
"""Requests of one conversation; what repeats more often is a probe, and counts as repeats."""
_BITS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledRequest:
    """One request of a sample. ``place`` is its number in the log, from 0."""

    place: int
    conversation: int
    request: LoggedRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSample:
    """Whole conversations of a log, in the log's order.

    ``log_requests`` counts the whole log, ``log_conversations`` is exact for a sample that has all,
    else an estimate. ``repeats`` is the share of the sample's requests that equal an earlier one.
    """

    requests: tuple[SampledRequest, ...]
    log_requests: int
    log_conversations: int
    repeats: float

    @property
    def whole(self) -> bool:
        """Whether it is the whole log."""
        return len(self.requests) == self.log_requests

    def part(self, part: Part) -> tuple[SampledRequest, ...]:
        """Its requests of one part; no conversation is in two."""
        return tuple(each for each in self.requests if part_of(each.conversation) == part)


def sample_log(
    log: Iterable[LoggedRequest], *, seed: int = 0, capacity: int = CAPACITY
) -> LogSample:
    """At most ``capacity`` requests of the log, conversations chosen by ``seed``."""
    chosen: dict[int, list[SampledRequest]] = {}
    largest: list[int] = []  # negated hashes of the chosen conversations: the largest is first
    size, count, bound = 0, 0, 1 << _BITS
    for place, request in enumerate(log):
        count += 1
        number = conversation_of(request, seed)
        if number >= bound:
            continue
        if number not in chosen:
            chosen[number] = []
            heapq.heappush(largest, -number)
        if len(chosen[number]) == _LONGEST:
            continue
        chosen[number].append(SampledRequest(place=place, conversation=number, request=request))
        size += 1
        while size > capacity and len(chosen) > 1:
            bound = -heapq.heappop(largest)
            size -= len(chosen.pop(bound))
    requests = sorted((each for every in chosen.values() for each in every), key=_place)
    return LogSample(
        requests=tuple(requests),
        log_requests=count,
        log_conversations=round(len(chosen) * (1 << _BITS) / bound),
        repeats=_repeats(requests),
    )


def conversation_of(request: LoggedRequest, seed: int) -> int:
    """A number of 64 bits that all requests of a conversation share.

    Without a session in the log, requests with the same beginning up to the first question are one
    conversation, and so are equal prompts.
    """
    if request.session is not None:
        key: object = request.session
    elif request.messages is not None:
        key = _beginning(request)
    else:
        key = request.prompt or request.prompt_token_ids
    data = json.dumps([seed, key], sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=_BITS // 8).digest(), "big")


def part_of(conversation: int) -> Part:
    """The part that a conversation belongs to, whichever sample it is in."""
    number = hashlib.blake2b(conversation.to_bytes(_BITS // 8, "big"), digest_size=4).digest()
    position, below = int.from_bytes(number, "big") / (1 << 32), 0.0
    for part, share in PARTS.items():
        below += share
        if position < below:
            return part
    return "confirmation"


def _beginning(request: LoggedRequest) -> list[Mapping[str, object]]:
    """The messages up to the first of a user."""
    beginning = []
    for message in request.messages or ():
        beginning.append(message)
        if message.get("role") == "user":
            break
    return beginning


def _repeats(requests: Iterable[SampledRequest]) -> float:
    prompts = [_prompt(each.request) for each in requests]
    return 1 - len(set(prompts)) / len(prompts) if prompts else 0.0


def _prompt(request: LoggedRequest) -> bytes:
    text = json.dumps([request.messages, request.prompt, request.prompt_token_ids, request.tools])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _place(each: SampledRequest) -> int:
    return each.place
