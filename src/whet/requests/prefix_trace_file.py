"""``whet-prefix-trace``: the prefix structure of traffic, without its text.

JSON lines. The first has the form, its version and the sums; each further line is one request:
    {"length": 700, "parent": 12, "shared": 512, "output": 30, "at_ns": 81000000, "session": 3}
The prompt has ``length`` tokens. Its first ``shared`` are those of request ``parent``, counted from
0, and no earlier request shares more. Fields that are not known are left out. No token and no hash
of any is in the file: there is nothing to guess a text from but the lengths.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
from numpy.typing import NDArray

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.records.hits import HitTokens

FORM: Final = "whet-prefix-trace"
VERSION: Final = 1
_KEYS: Final = {
    "length": "length",
    "parent": "parent",
    "shared": "shared",
    "output": "output_tokens",
    "at_ns": "at_ns",
    "session": "session",
}
"""Keys of a line, and the fields of a ``PrefixRequest`` that they hold."""

_NAMES: Final = {name: key for key, name in _KEYS.items()}

TokenArray = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixRequest:
    """One request without its text.

    Its first ``shared`` of ``length`` tokens are those of the earlier request ``parent``, and it
    has no longer beginning in common with any earlier one. ``at_ns`` counts from the first
    request. ``session`` numbers the conversations.
    """

    length: int
    parent: int | None = None
    shared: int = 0
    output_tokens: int | None = None
    at_ns: int | None = None
    session: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixTraceFacts:
    """The first line of a file.

    ``granularity`` is 1 where the lengths are exact. Else prompts and answers are rounded up to a
    multiple of it and ``shared`` down, which leaves the hits as they were at every block size that
    it divides. ``left_out`` counts requests without a token; the file does not hold them.
    """

    granularity: int
    requests: int
    prompt_tokens: int
    shared_tokens: int
    left_out: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixTrace:
    """Requests in the order in which they came."""

    path: str
    facts: PrefixTraceFacts
    requests: tuple[PrefixRequest, ...] = field(repr=False)

    def hits(self, block_size: int) -> HitTokens:
        """What a cache that never evicts holds of each prompt before it comes, one by one.

        In full blocks of ``block_size`` tokens, and never a prompt's last token.
        """
        hit_blocks = (min(r.shared, r.length - 1) // block_size for r in self.requests)
        return HitTokens(
            prompt_tokens=sum(request.length for request in self.requests),
            hit_tokens=sum(hit_blocks) * block_size,
        )


def is_prefix_trace(path: Path) -> bool:
    """Whether the first line of a file says so; False for one that cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            header = json.loads(file.readline(4096))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(header, dict) and header.get("form") == FORM


def header_line(facts: PrefixTraceFacts) -> str:
    """The first line, without its end."""
    return json.dumps(
        {
            "form": FORM,
            "version": VERSION,
            **{f.name: getattr(facts, f.name) for f in fields(facts)},
        }
    )


def request_line(request: PrefixRequest) -> str:
    """One request, without the line's end; what is not known or 0 is left out."""
    known = {_NAMES[f.name]: getattr(request, f.name) for f in fields(request)}
    if request.parent is None:
        del known["shared"]
    return json.dumps({key: value for key, value in known.items() if value is not None})


def read_prefix_trace(path: Path, *, max_requests: int | None = None) -> PrefixTrace:
    """Read the file, or its first ``max_requests`` requests.

    Raises ``UsageError``, with file and line, for another form or version, a broken line, a
    parent that is not earlier or not as long as what is shared, a time that goes backwards, and a
    file that was cut.
    """
    try:
        with path.open(encoding="utf-8") as file:
            facts = _header(path, file.readline())
            requests = tuple(_requests(path, file, max_requests))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the prefix trace {path} cannot be read ({error})",
            fix="give a file that whet prompts wrote",
        ) from error
    wanted = facts.requests if max_requests is None else min(facts.requests, max_requests)
    if len(requests) != wanted or not requests:
        raise UsageError(
            f"{path} holds {len(requests)} of the {wanted} requests that its first line says",
            fix="copy it anew",
        )
    return PrefixTrace(path=str(path), facts=facts, requests=requests)


def owners(trace: PrefixTrace) -> list[int | None]:
    """For each request, the one that brought the last token that it shares; None for no token.

    A parent may itself have taken that token from its parent. With the owner, (owner, shared) is
    one name for each place at which requests part.
    """
    requests = trace.requests
    owner_of: list[int | None] = []
    for request in requests:
        owner = request.parent if request.shared else None
        while owner is not None and request.shared <= requests[owner].shared:
            owner = owner_of[owner]
        owner_of.append(owner)
    return owner_of


def regenerate(trace: PrefixTrace, vocabulary: Sequence[int], seed: int) -> Iterator[TokenArray]:
    """Prompts of random ids that have in common exactly what the trace says, in its order.

    ``vocabulary`` are the ids to draw from: leave special and added tokens out (``load``'s
    ``ordinary_ids``). Request i's own tokens depend on the seed, i and the requests that part at
    the same place: its first token there is unique. A prompt stays in memory until the last
    request that shares with it. The arrays are read-only, int32. Raises ``UsageError`` for a
    negative seed, and where more requests part at one place than there are ids.
    """
    words = np.array(list(dict.fromkeys(vocabulary)), dtype=np.int32)
    if seed < 0 or not len(words):
        raise UsageError("regenerating needs a seed of 0 or more and at least one token id")
    return _regenerate(trace, words, seed)


def _regenerate(trace: PrefixTrace, words: TokenArray, seed: int) -> Iterator[TokenArray]:
    owner_of = owners(trace)
    to_come = Counter(owner_of)
    held: dict[int | None, TokenArray] = {None: words[:0]}
    parted: dict[int | None, dict[int, set[int]]] = {None: {}}
    for index, (request, owner) in enumerate(zip(trace.requests, owner_of, strict=True)):
        before, shared = held[owner], request.shared
        rng = np.random.default_rng((seed, index))
        drawn = rng.integers(len(words), size=request.length - shared)
        if len(drawn):
            taken = parted[owner].setdefault(shared, set(before[shared : shared + 1].tolist()))
            drawn[0] = _free(int(drawn[0]), taken, words, index)
            taken.add(int(words[drawn[0]]))
        prompt = np.concatenate((before[:shared], words[drawn]))
        prompt.flags.writeable = False
        if to_come[index]:
            held[index], parted[index] = prompt, {}
        to_come[owner] -= 1
        if not to_come[owner] and owner is not None:
            del held[owner], parted[owner]
        yield prompt


def _free(place: int, taken: set[int], words: TokenArray, index: int) -> int:
    """``place`` in ``words``, or the next of a token that no other request goes on with here."""
    if len(taken) == len(words):
        raise UsageError(
            f"request {index} goes on differently than {len(taken)} others in the same place, and "
            "there are no more token ids",
            fix="give a larger vocabulary",
        )
    while int(words[place]) in taken:
        place = (place + 1) % len(words)
    return place


def _header(path: Path, line: str) -> PrefixTraceFacts:
    header = _object(path, 1, line)
    if header.get("form") != FORM:
        raise UsageError(f"{path} is not a {FORM} file", fix="make one with whet prompts")
    if header.get("version") != VERSION:
        raise UsageError(
            f"{path} is a {FORM} of version {header.get('version')}, and {VERSION} is read here",
            fix="use the whet that wrote it",
        )
    names = [f.name for f in fields(PrefixTraceFacts)]
    return PrefixTraceFacts(**{name: _count(path, 1, header, name) for name in names})


def _requests(path: Path, file: TextIO, max_requests: int | None) -> Iterator[PrefixRequest]:
    lengths: list[int] = []
    last_ns = 0
    for number, line in enumerate(file, start=2):
        if len(lengths) == max_requests:
            return
        request = _request(path, number, _object(path, number, line))
        at_ns = last_ns if request.at_ns is None else request.at_ns
        _check(path, number, request, lengths)
        if at_ns < last_ns:
            raise _broken(path, number, "time goes back")
        last_ns = at_ns
        lengths.append(request.length)
        yield request


def _request(path: Path, number: int, item: Mapping[str, Any]) -> PrefixRequest:
    unknown = next((key for key in item if key not in _KEYS), None)
    if unknown is not None:
        raise _broken(path, number, f"unknown key {unknown!r}{did_you_mean(unknown, _KEYS)}")
    values = {name: _count(path, number, item, key) for key, name in _KEYS.items() if key in item}
    length = values.pop("length", 0)
    if not length:
        raise _broken(path, number, "it has no length of at least 1")
    return PrefixRequest(length=length, shared=values.pop("shared", 0), **values)


def _check(path: Path, number: int, request: PrefixRequest, lengths: Sequence[int]) -> None:
    """Refuse a beginning that no earlier request has."""
    parent, shared = request.parent, request.shared
    if parent is None:
        if shared:
            raise _broken(path, number, f"it shares {shared} tokens with no parent")
        return
    if parent >= len(lengths):
        raise _broken(path, number, f"its parent {parent} is not an earlier request")
    if shared > min(request.length, lengths[parent]):
        raise _broken(path, number, f"it shares {shared} tokens, more than there are")


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _broken(path, number, f"not JSON ({error})") from error
    if not isinstance(item, dict):
        raise _broken(path, number, "not a JSON object")
    return item


def _count(path: Path, number: int, item: Mapping[str, Any], key: str) -> int:
    value = item.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _broken(path, number, f"{key} is {value!r}, not a whole number of 0 or more")
    return value


def _broken(path: Path, number: int, problem: str) -> UsageError:
    return UsageError(f"{path}, line {number}: {problem}", fix="write it anew with whet prompts")
