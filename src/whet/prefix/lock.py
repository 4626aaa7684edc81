"""What of a prompt file stays from request to request, and a lock file that tells when it changed.

A file is a template, whose slots are filled anew for every request, or golden chat requests (JSON),
whose tools and messages before the last one of the user stay.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Final

from whet.core.errors import UsageError

Tokenize = Callable[[str], Sequence[int]]
"""The end of each token of a text, in characters, ascending."""

_VERSION: Final = 1
_PIECE: Final = 64  # characters of a line that have a hash of their own
_SHORT: Final = 12  # hex digits

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_ESCAPE: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\."
)
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")


class NoChatRequest(UsageError):
    """Valid JSON that is something else than chat requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """Where the characters of one text stand in another: runs of ``lengths`` from ``here`` on."""

    here: tuple[int, ...]
    there: tuple[int, ...]
    lengths: tuple[int, ...]

    def at(self, offset: int) -> int:
        """The place there of ``offset`` here; between two runs, the end of the first."""
        run = bisect_right(self.here, offset) - 1
        if run < 0:
            return 0
        return self.there[run] + min(offset - self.here[run], self.lengths[run])


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """The part of a file that is sent with every request of one kind; offsets are characters.

    ``name`` is the path, with ``#2`` for the second request of a file that holds several. ``raw``
    is the whole file's text, of which [start, end) are this prompt's. ``text`` is a template
    without its comments, or the tools (JSON, as in the file) and then the messages that stay;
    ``messages_at`` is where these begin. ``to_raw`` maps ``text`` to ``raw``.
    """

    name: str
    path: str
    raw: str
    start: int
    end: int
    text: str
    messages_at: int
    to_raw: Runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A piece of a text, [start, end), that is filled anew for every request.

    ``name`` is the variable's expression, or the words before one that has no name; None of a
    condition or loop.
    """

    start: int
    end: int
    name: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What is sent, and its slots in order; ``literal`` is its text without slots and statements.

    ``to_literal`` maps the text to it.
    """

    sent: Sent
    slots: tuple[Slot, ...]
    literal: str
    to_literal: Runs

    @property
    def stable_end(self) -> int:
        """Where the text's first slot begins, or its end."""
        return self.slots[0].start if self.slots else len(self.sent.text)


def estimate_tokens(text: str) -> Sequence[int]:
    """Tokens of four characters each, for want of a tokenizer."""
    return range(4, len(text) + 1, 4)


def between(holes: Iterable[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """What of [start, end) lies outside of ``holes``, which are in order and apart."""
    for hole_start, hole_end in holes:
        yield start, hole_start
        start = hole_end
    yield start, end


def read_template(raw: str, path: str) -> Sent:
    """A template file's text."""
    start = 1 if raw.startswith("\ufeff") else 0
    comments, last = [], start
    while (begin := raw.find("{#", last)) >= 0 and (end := raw.find("#}", begin + 2)) >= 0:
        # A dash takes the white space on its side with it, as Jinja does.
        before, after = begin, end + 2
        if raw.startswith("-", begin + 2):
            before = last + len(raw[last:begin].rstrip())
        if raw[end - 1] == "-":
            after = _skip(raw, after)
        comments.append((before, after))
        last = after
    kept = list(between(comments, start, len(raw)))
    return Sent(
        name=path,
        path=path,
        raw=raw,
        start=0,
        end=len(raw),
        text="".join(raw[at:end] for at, end in kept),
        messages_at=0,
        to_raw=_runs((at, end - at) for at, end in kept),
    )


def read_golden(raw: str, path: str) -> tuple[Sent, ...]:
    """The chat requests of a JSON or JSONL file; ``UsageError`` where it is not valid."""
    base = 1 if raw.startswith("\ufeff") else 0
    if path.lower().endswith(".jsonl"):
        lines = [match.span() for match in _LINE.finditer(raw, base) if match.group().strip()]
        found = [_load(raw, start, end, path) for start, end in lines]
    else:
        start, end, value = _load(raw, base, len(raw), path)
        found = [(start, end, value)]
        if isinstance(value, list):
            found = [(at, stop, each) for _key, at, stop, each in _children(raw, start)]
    if not found:
        raise NoChatRequest(f'{path} holds no chat request; write {{"messages": […]}} into it')
    return tuple(
        _read_request(raw, (start, end), value, (path, f"#{i}" if len(found) > 1 else ""))
        for i, (start, end, value) in enumerate(found, 1)
    )


def _load(raw: str, start: int, end: int, path: str) -> tuple[int, int, Any]:
    try:
        value = json.loads(raw[start:end])
    except json.JSONDecodeError as error:
        line = raw.count("\n", 0, start + error.pos) + 1
        raise UsageError(f"{path}:{line} is not valid JSON ({error.msg}); mend it") from error
    except RecursionError as error:
        raise UsageError(f"{path} nests JSON too deeply for a chat request") from error
    return _skip(raw, start), start + len(raw[start:end].rstrip()), value


def _skip(raw: str, at: int) -> int:
    match = _SPACE.match(raw, at)
    return at if match is None else match.end()


def _children(raw: str, at: int) -> Iterator[tuple[str | None, int, int, Any]]:
    """Key, start, end and value of each part of the JSON object or array that opens at ``at``."""
    opener, at = raw[at], _skip(raw, at + 1)
    while raw[at] not in "]}":
        key = None
        if opener == "{":
            key, at = _DECODER.raw_decode(raw, at)
            at = _skip(raw, _skip(raw, at) + 1)
        value, end = _DECODER.raw_decode(raw, at)
        yield key, at, end, value
        at = _skip(raw, end)
        if raw[at] == ",":
            at = _skip(raw, at + 1)


def _read_request(raw: str, span: tuple[int, int], value: Any, name: tuple[str, str]) -> Sent:
    start = span[0]
    body = value.get("body") if isinstance(value, dict) else None
    if isinstance(body, dict) and "messages" in body:  # a line of a batch file
        start = next(at for key, at, _end, _each in _children(raw, start) if key == "body")
        value = body
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise NoChatRequest(f'{"".join(name)} is no chat request; "messages" has to be a list')
    parts = {key: (at, end) for key, at, end, _each in _children(raw, start)}
    pieces, runs = [], [(start, 0)]
    if value.get("tools"):
        at, end = parts["tools"]
        pieces.append(raw[at:end] + "\n")
        runs += [(at, end - at), (end, 1)]
    messages_at = len(pieces[0]) if pieces else 0
    for quote, content in _stable_contents(raw, parts["messages"][0]):
        pieces.append(_HALF_PAIR.sub("\ufffd", content))
        runs += _string_runs(raw, quote)
        if not content.endswith("\n"):
            pieces.append("\n")
            runs.append((runs[-1][0], 1))
    return Sent(
        name="".join(name),
        path=name[0],
        raw=raw,
        start=span[0],
        end=span[1],
        text="".join(pieces),
        messages_at=messages_at,
        to_raw=_runs(runs),
    )


def _stable_contents(raw: str, at: int) -> Iterator[tuple[int, str]]:
    """The texts before the user's last message, each with the place of its first quote."""
    messages = [(start, each) for _key, start, _end, each in _children(raw, at)]
    roles = [each.get("role") if isinstance(each, dict) else None for _start, each in messages]
    last = len(roles) - 1 - roles[::-1].index("user") if "user" in roles else len(roles)
    for start, message in messages[:last]:
        if not isinstance(message, dict):
            continue
        for key, value_at, _end, value in _children(raw, start):
            if key == "content" and isinstance(value, str):
                yield value_at, value
            elif key == "content" and isinstance(value, list):
                yield from _part_texts(raw, value_at)


def _part_texts(raw: str, at: int) -> Iterator[tuple[int, str]]:
    for _key, start, _end, part in _children(raw, at):
        if isinstance(part, dict):
            for key, value_at, _stop, value in _children(raw, start):
                if key == "text" and isinstance(value, str):
                    yield value_at, value


def _string_runs(raw: str, quote: int) -> list[tuple[int, int]]:
    """Place and length of the runs of the JSON string at ``quote``; an escape is a run of one."""
    runs, at = [], quote + 1
    end = _DECODER.raw_decode(raw, quote)[1] - 1
    for match in _ESCAPE.finditer(raw, at, end):
        runs += [(at, match.start() - at), (match.start(), 1)]
        at = match.end()
    return [*runs, (at, end - at), (end, 0)]


def _runs(pieces: Iterable[tuple[int, int]]) -> Runs:
    """Runs one after another from 0 on, at the given places and of the given lengths."""
    there, lengths = zip(*pieces, strict=True)
    return Runs(here=tuple(accumulate(lengths[:-1], initial=0)), there=there, lengths=lengths)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What a lock holds of one prompt: counts, sha256 in hex, and short ones of 12 digits.

    ``prefix_*`` are of the text before the first slot; ``first_block`` and ``last_block`` chain the
    hashes of its full blocks, None where it has none. ``lines`` has a hash for each 64 characters
    of each line of what is sent, slots as written.
    """

    characters: int
    tokens: int
    prefix_characters: int
    prefix_tokens: int
    prefix_sha256: str
    sha256: str
    first_block: str | None
    last_block: str | None
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """The prompts of a lock file by name, and how their tokens and blocks were counted."""

    block_size: int
    tokens_by: str
    prompts: Mapping[str, Entry]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """How a prompt differs from its entry; tokens are those of the new text, in full blocks.

    ``at`` is the first changed place in the text, to 64 characters, None where only what is not
    sent to every request changed. The old version's requests share ``kept_tokens`` at least and
    ``shared_tokens`` at most with the new one's; ``anew_tokens`` of the new prefix are computed
    anew, 0 where the change stands behind it.
    """

    at: int | None
    kept_tokens: int
    shared_tokens: int
    anew_tokens: int


def make_entry(prompt: Prompt, tokenize: Tokenize, block_size: int) -> Entry:
    """What a lock holds of ``prompt``."""
    sent = prompt.sent
    ends = tokenize(prompt.literal)
    stable = prompt.literal[: prompt.to_literal.at(prompt.stable_end)]
    prefix_tokens = bisect_right(ends, len(stable))
    chain, hashes = b"", []
    for block in range(prefix_tokens // block_size):
        start = ends[block * block_size - 1] if block else 0
        text = prompt.literal[start : ends[(block + 1) * block_size - 1]]
        chain = hashlib.sha256(chain + _bytes(text)).digest()
        hashes.append(chain.hex()[:_SHORT])
    return Entry(
        characters=len(sent.text),
        tokens=len(ends),
        prefix_characters=prompt.stable_end,
        prefix_tokens=prefix_tokens,
        prefix_sha256=_sha256(sent.text[: prompt.stable_end]),
        sha256=_sha256(sent.raw[sent.start : sent.end]),
        first_block=hashes[0] if hashes else None,
        last_block=hashes[-1] if hashes else None,
        lines=tuple(
            " ".join(_sha256(piece)[:_SHORT] for piece in _pieces(line))
            for line in _LINE.findall(sent.text)
        ),
    )


def compare(old: Entry, prompt: Prompt, tokenize: Tokenize, block_size: int) -> Change | None:
    """How ``prompt`` differs from ``old``; None where no byte does."""
    new = make_entry(prompt, tokenize, block_size)
    if new.sha256 == old.sha256:
        return None
    ends, at = tokenize(prompt.literal), _first_change(old.lines, prompt.sent.text)
    full = new.prefix_tokens // block_size * block_size
    if at is None or new.prefix_sha256 == old.prefix_sha256:
        start = None if at is None else at[0]
        return Change(at=start, kept_tokens=full, shared_tokens=full, anew_tokens=0)
    kept, most = (
        bisect_right(ends, prompt.to_literal.at(place)) // block_size * block_size for place in at
    )
    kept = min(kept, full)
    return Change(
        at=at[0], kept_tokens=kept, shared_tokens=min(most, full), anew_tokens=full - kept
    )


def _first_change(old: Sequence[str], text: str) -> tuple[int, int] | None:
    """Start and end of the first 64 characters of ``text`` whose hash is not the old one's."""
    at = 0
    lines = _LINE.findall(text)
    for line, known in zip(lines, old, strict=False):
        hashes = known.split()
        for number, piece in enumerate(_pieces(line)):
            if number >= len(hashes) or _sha256(piece)[:_SHORT] != hashes[number]:
                return at, at + len(piece)
            at += len(piece)
        if len(hashes) > len(_pieces(line)):
            return at, at
    if len(lines) == len(old):
        return None
    return at, at + (len(lines[len(old)][:_PIECE]) if len(lines) > len(old) else 0)


def _pieces(line: str) -> list[str]:
    return [line[at : at + _PIECE] for at in range(0, len(line), _PIECE)]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _sha256(text: str) -> str:
    return hashlib.sha256(_bytes(text)).hexdigest()


def dump_lock(lock: Lock) -> bytes:
    """The lock file: JSON, sorted, a line for each hashed line."""
    data = {"version": _VERSION, "block_size": lock.block_size, "tokens_by": lock.tokens_by}
    prompts = {name: asdict(entry) for name, entry in lock.prompts.items()}
    text = json.dumps(data | {"prompts": prompts}, indent=1, sort_keys=True, ensure_ascii=False)
    return _bytes(text + "\n")


def load_lock(data: bytes, path: str) -> Lock:
    """Read a lock file; ``UsageError`` where it is none or another version's."""
    mend = "write it again with --write-lock"
    try:
        found = json.loads(data.decode("utf-8"))
        if found["version"] != _VERSION:
            raise UsageError(f"{path} is of lock version {found['version']!r}; {mend}")
        entries = {
            str(name): Entry(**entry | {"lines": tuple(map(str, entry["lines"]))})
            for name, entry in found["prompts"].items()
        }
        return Lock(
            block_size=int(found["block_size"]), tokens_by=found["tokens_by"], prompts=entries
        )
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}:{error.lineno} is not valid JSON ({error.msg}); {mend}"
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no lock file of whet prompts lint; {mend}") from error
