"""A log as a workload that can be given away: its prefix structure without its text."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import numpy as np

from whet.core.errors import StorageError, UsageError
from whet.core.prefix_trace import (
    PrefixRequest,
    PrefixTrace,
    PrefixTraceFacts,
    TokenArray,
    header_line,
    owners,
    request_line,
)
from whet.core.units import NS_PER_MS

_HEADER_BYTES: Final = 512
"""The first line's room: its sums are known last."""

_READ_TOKENS: Final = 4096
"""Read from disk at once: most requests part within it, and a long prompt is never read whole."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenizedRequest:
    """One request of a log as the engine reads it. ``at_ns`` is the Unix time."""

    ids: TokenArray
    at_ns: int | None = None
    output_tokens: int | None = None
    session: str | None = None


def write_prefix_trace(
    requests: Iterable[TokenizedRequest], path: Path, *, round_to: int = 1
) -> PrefixTraceFacts:
    """Write what the requests have in common, their lengths and times, and none of their tokens.

    Requests are read one by one. Memory grows by about 300 bytes a request; the tokens that are
    new in each lie in a nameless file beside ``path`` until this returns, 4 bytes each. With
    ``round_to`` lengths are less telling: see ``PrefixTraceFacts.granularity``. Requests without a
    token are left out. Raises ``UsageError`` for times that go backwards, or no request at all, and
    ``StorageError`` where the disk refuses.
    """
    if round_to < 1:
        raise UsageError(f"lengths cannot be rounded to a multiple of {round_to}; give 1 or more")
    with _whole(path) as file:
        file.write(b" " * (_HEADER_BYTES - 1) + b"\n")
        # Nameless from the start: what a kill leaves behind holds no text.
        with tempfile.TemporaryFile(dir=path.parent) as spool:
            facts = _write_requests(file, requests, _Beginnings(spool), round_to)
        if not facts.requests:
            raise UsageError("there is no request with a token to write; give a log that has some")
        file.seek(0)
        file.write(header_line(facts).encode())
    return facts


def write_mooncake(trace: PrefixTrace, path: Path, *, block_tokens: int = 512) -> None:
    """Write a trace as other tools read it: JSON lines with a hash id for each block.

    Mooncake's form (times in ms, 512 tokens a block, the last one as long as it is). It is coarser:
    what two prompts share within a block is lost. The ids are numbers in the order of their first
    use. Raises ``UsageError`` for a trace without times or answers' lengths, which the form
    demands.
    """
    if block_tokens < 1:
        raise UsageError(f"a block of {block_tokens} tokens is none; give 1 or more")
    with _whole(path) as file:
        for index, (request, blocks) in enumerate(_blocks(trace, block_tokens)):
            if request.at_ns is None or request.output_tokens is None:
                missing = "time" if request.at_ns is None else "length of the answer"
                raise UsageError(
                    f"request {index} of {trace.path} has no {missing}, which Mooncake's form "
                    "demands; keep to the whet-prefix-trace itself"
                )
            line = {
                "timestamp": request.at_ns // NS_PER_MS,
                "input_length": request.length,
                "output_length": request.output_tokens,
                "hash_ids": blocks,
            }
            file.write(json.dumps(line).encode() + b"\n")


def _write_requests(
    file: IO[bytes],
    requests: Iterable[TokenizedRequest],
    beginnings: _Beginnings,
    round_to: int,
) -> PrefixTraceFacts:
    """One line each; the sums are those of the lines."""
    names, written, left_out, tokens, shared = _Nameless(), 0, 0, 0, 0
    for number, asked in enumerate(requests, start=1):
        if not len(asked.ids):
            left_out += 1
            continue
        parent, common = beginnings.place(asked.ids, round_to)
        output = asked.output_tokens
        request = PrefixRequest(
            length=_up(len(asked.ids), round_to),
            parent=parent,
            shared=common,
            output_tokens=None if output is None else _up(output, round_to),
            at_ns=names.time(asked.at_ns, number),
            session=names.session(asked.session),
        )
        written, tokens, shared = written + 1, tokens + request.length, shared + common
        file.write(request_line(request).encode() + b"\n")
    return PrefixTraceFacts(
        granularity=round_to,
        requests=written,
        prompt_tokens=tokens,
        shared_tokens=shared,
        left_out=left_out,
    )


class _Nameless:
    """Times from the first on, and sessions as numbers."""

    def __init__(self) -> None:
        self._sessions: dict[str, int] = {}
        self._first_ns: int | None = None
        self._last_ns = 0

    def time(self, at_ns: int | None, number: int) -> int | None:
        """Nanoseconds since the first request that has a time."""
        if at_ns is None:
            return None
        if self._first_ns is None:
            self._first_ns = self._last_ns = at_ns
        if at_ns < self._last_ns:
            raise UsageError(
                f"request {number} of the log is older than the one before; sort it by time"
            )
        self._last_ns = at_ns
        return at_ns - self._first_ns

    def session(self, name: str | None) -> int | None:
        """The number that stands for a session, by first use."""
        return None if name is None else self._sessions.setdefault(name, len(self._sessions))


class _Beginnings:
    """Finds how much of a prompt an earlier one begins with, to the token.

    A request owns the tokens from where it parts with all before it; only these are kept, on disk.
    ``_turns`` holds where requests part: (owner, tokens before, next token) to the request that
    goes on so. It is a radix tree whose edges run through as long as one request owns them.
    """

    def __init__(self, file: IO[bytes]) -> None:
        """``file`` is empty, on disk, and this one's alone."""
        self._file = file
        self._parents: list[int | None] = []
        self._shared, self._lengths, self._starts = array("q"), array("q"), array("q")
        self._turns: dict[int, int] = {}
        self._kept = 0

    def place(self, ids: TokenArray, round_to: int) -> tuple[int | None, int]:
        """The owner of the last token that it shares with any before, and how many it shares.

        The latter is rounded down to a multiple of ``round_to``, and the owner is of that.
        """
        ids = np.ascontiguousarray(ids, dtype=np.int32)
        parent, shared = self._find(ids)
        index = len(self._parents)
        if shared < len(ids):
            self._turns[_turn(parent, shared, int(ids[shared]))] = index
            self._file.write(ids[shared:].tobytes())
            self._file.flush()
        self._parents.append(parent)
        self._shared.append(shared)
        self._lengths.append(len(ids))
        self._starts.append(self._kept)
        self._kept += len(ids) - shared
        down = shared // round_to * round_to
        while parent is not None and down <= self._shared[parent] // round_to * round_to:
            parent = self._parents[parent]
        return parent, down

    def _find(self, ids: TokenArray) -> tuple[int | None, int]:
        owner: int | None = None
        shared = 0
        while shared < len(ids):
            turn = self._turns.get(_turn(owner, shared, int(ids[shared])))
            if turn is None:
                break
            owner, shared = turn, self._follow(turn, ids)
        return owner, shared

    def _follow(self, owner: int, ids: TokenArray) -> int:
        """How many tokens ``ids`` has in common with what ``owner`` owns and all before that."""
        at, end = self._shared[owner], min(self._lengths[owner], len(ids))
        while at < end:
            stop = min(end, at + _READ_TOKENS)
            differs = self._read(owner, at, stop) != ids[at:stop]
            first = int(differs.argmax())
            if differs[first]:
                return at + first
            at = stop
        return at

    def _read(self, owner: int, start: int, stop: int) -> TokenArray:
        place = self._starts[owner] + start - self._shared[owner]
        size = np.dtype(np.int32).itemsize
        read = os.pread(self._file.fileno(), (stop - start) * size, place * size)
        return np.frombuffer(read, dtype=np.int32)


def _turn(owner: int | None, shared: int, token: int) -> int:
    """One number for the three: a tuple would take four times the memory."""
    number = 0 if owner is None else owner + 1
    return (number << 64) | (shared << 32) | (token & 0xFFFFFFFF)


def _up(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple


def _blocks(trace: PrefixTrace, size: int) -> Iterator[tuple[PrefixRequest, list[int]]]:
    """Each request with its blocks' ids: those of full blocks that it shares, then new ones.

    A last block that is not full has the id of another only where the whole prompts are equal.
    """
    owner_of = owners(trace)
    to_come = Counter(owner_of)
    held: dict[int | None, list[int]] = {None: []}
    ends: dict[tuple[int | None, int], int] = {}
    new = 0
    for index, (request, owner) in enumerate(zip(trace.requests, owner_of, strict=True)):
        whole, rest = divmod(request.length, size)
        blocks = held[owner][: request.shared // size]
        fresh = whole - len(blocks)
        blocks, new = [*blocks, *range(new, new + fresh)], new + fresh
        if rest:
            end = (owner if request.shared == request.length else index, request.length)
            last = ends.setdefault(end, new)
            blocks.append(last)
            new += last == new
        if to_come[index]:
            held[index] = blocks
        to_come[owner] -= 1
        if not to_come[owner] and owner is not None:
            del held[owner]
        yield request, blocks


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name when it is written to the end, and on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write {path} ({error.strerror or error}); free some space there, or give "
            "another place"
        ) from error
