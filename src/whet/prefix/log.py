"""Read a log of requests: in pieces of whole lines that any process can parse, memory bounded.

A log is JSON lines, a JSON document (``.json``: an array of requests, or one export of spans),
either of them in gzip, or a folder of prompt files. ``LogReader`` tells which by its beginning and
yields the requests in the file's order. For a large log, hand its ``chunks`` to worker processes::

    reader = LogReader(path, model=model)
    for parsed in pool.imap(parse, reader.chunks()):   # parse: of_model(parse_chunk(*chunk), model)
        reader.count(parsed)

What cannot be read is left out and counted, with its reason and the first place; it ends nothing.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.records import LeftOut, LoggedRequest
from whet.core.units import MIB, human_bytes
from whet.prefix.log_formats import (
    BOM,
    NO_REQUEST,
    Gathered,
    Read,
    Unreadable,
    has_media,
    has_surrogates,
    is_openai,
    load_line,
    parse_line,
    prompt_folder_names,
    read_chat_file,
    read_checked,
    read_openai,
    read_text_file,
    whole_lines,
)
from whet.prefix.log_spans import CUT, NO_CONTENT, is_spans, read_spans

__all__ = [
    "FOLDER",
    "MAX_LINE_BYTES",
    "OPENAI",
    "SPANS",
    "LogBatch",
    "LogReader",
    "ParsedChunk",
    "has_media",
    "item_chunks",
    "line_chunks",
    "of_model",
    "parse_chunk",
    "read_log",
]

OPENAI: Final = "OpenAI request log"
SPANS: Final = "OpenTelemetry GenAI spans"
FOLDER: Final = "folder of prompt files"

MAX_LINE_BYTES: Final = 32 * MIB
CHUNK_BYTES: Final = MIB
TOO_LONG: Final = f"longer than {human_bytes(MAX_LINE_BYTES)}"
TORN_GZIP: Final = "a gzip file that is damaged or ends early"
NO_PROMPT_FILE: Final = "no prompt file"
LFS_POINTER: Final = "a git-LFS pointer"

_MAX_EXPORT_BYTES: Final = 128 * MIB
_PROMPTS: Final = frozenset({".txt", ".md", ".jinja", ".prompt", ".json"})
_LINES: Final = frozenset({".jsonl", ".ndjson"})
_LFS: Final = b"version https://git-lfs"
_FOREIGN: Final = (
    (_LFS, "is a git-LFS pointer, not the log; run: git lfs pull"),
    (b"\x28\xb5\x2f\xfd", "is in zstd, which is not read here; unpack it with: zstd -d"),
    (b"\xff\xfe", "is in UTF-16; convert it with: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "is in UTF-16; convert it with: iconv -f UTF-16 -t UTF-8"),
)
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]"]', re.DOTALL)
"""A bracket, a whole string, or the quote that begins a string without an end."""

LogChunk = tuple[str, int, bytes, str]
"""The arguments of ``parse_chunk``: form, number of the first line, whole lines, name."""
_LeaveOut = Callable[[str, str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogBatch:
    """The requests of a log that fits in memory, and what was left out of it."""

    requests: tuple[LoggedRequest, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedChunk:
    """What one piece of a log holds; ``models`` counts the requests of each, left out or not."""

    requests: tuple[LoggedRequest, ...]
    left_out: tuple[LeftOut, ...]
    models: Mapping[str, int] = field(default_factory=dict)


class LogReader:
    """The requests of a log in the file's order, each chunk forgotten when it was yielded.

    ``form`` is the name of the format. With ``model``, requests of other models are left out;
    those of a log that names none stay. While or after iterating, ``left_out()`` and ``models``
    tell what was seen. Raises ``UsageError`` for a file that is missing, empty, foreign or without
    a request, and at the end if none could be kept.
    """

    def __init__(self, path: Path, *, model: str | None = None) -> None:
        self.path = path
        self.model = model
        self.models: Counter[str] = Counter()
        self._found = Gathered()
        self._kept = 0
        self._chunks: Callable[..., Iterator[tuple[int, bytes]]] = line_chunks
        if path.is_dir():
            self.form = FOLDER
            _require_prompts(path)
        else:
            self._chunks = item_chunks if _is_document(path) else line_chunks
            self.form = self._recognise()

    def __iter__(self) -> Iterator[LoggedRequest]:
        for chunk in self.chunks():
            parsed = of_model(parse_chunk(*chunk), self.model)
            self.count(parsed)
            yield from parsed.requests
        if not self._kept:
            raise self.nothing_read()

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[LogChunk]:
        """Arguments of ``parse_chunk``, in order; starts the counts anew."""
        self.models.clear()
        self._found, self._kept = Gathered(), 0
        leave_out = self._found.leave_out
        if self.form == FOLDER:
            for name, data in _prompt_files(self.path, leave_out):
                yield FOLDER, 0, data, name
            return
        for line, data in self._chunks(self.path, chunk_bytes, leave_out):
            yield self.form, line, data, self.path.name

    def count(self, parsed: ParsedChunk) -> None:
        """Add what a worker parsed to the counts."""
        self.models.update(parsed.models)
        self._found.add_left_out(parsed.left_out)
        self._kept += len(parsed.requests)

    def left_out(self) -> tuple[LeftOut, ...]:
        """What was left out so far, one record a reason."""
        return self._found.left_out

    def nothing_read(self) -> UsageError:
        """The error of a log of which no request could be kept; a caller of ``chunks`` raises it
        itself."""
        if self.model is not None and self.models:
            return UsageError(
                f"{self.path} has no request for the model {self.model!r}, it has "
                f"{', '.join(sorted(self.models))}{did_you_mean(self.model, self.models)}"
            )
        return _nothing(self.path, self._found)

    def _recognise(self) -> str:
        """The format of the first line that is in one."""
        seen = Gathered()
        for first, data in self._chunks(self.path, MIB, seen.leave_out):
            for number, line in enumerate(whole_lines(data), start=first):
                place = f"{self.path.name}:{number}"
                try:
                    item = load_line(line)
                except Unreadable as error:
                    seen.leave_out(error.reason, place)
                    continue
                if is_openai(item):
                    return OPENAI
                if is_spans(item):
                    return SPANS
                seen.leave_out(NO_REQUEST, place)
        raise _nothing(self.path, seen)


def read_log(path: Path, *, model: str | None = None, max_requests: int | None = None) -> LogBatch:
    """The first ``max_requests`` requests of a log at once; errors as ``LogReader``."""
    if max_requests is not None and max_requests < 1:
        raise UsageError(f"a log of {max_requests} requests is none; read at least 1")
    reader = LogReader(path, model=model)
    requests = tuple(islice(reader, max_requests))
    return LogBatch(requests=requests, left_out=reader.left_out())


def parse_chunk(form: str, first_line: int, data: bytes, name: str) -> ParsedChunk:
    """Whole lines to requests; ``name`` and the line's number are the place. Never raises.

    Of a folder's file, ``data`` is the whole and ``name`` alone the place.
    """
    found = Gathered()
    if form == FOLDER and not name.lower().endswith(".json"):
        read_text_file(data, name, found)
    else:
        read = _READERS[form]
        if has_surrogates(data):
            read = partial(read_checked, read)
        if form == FOLDER:
            parse_line(read, data.removeprefix(BOM), name, found)
        else:
            for number, line in enumerate(whole_lines(data), start=first_line):
                parse_line(read, line, f"{name}:{number}", found)
    models = Counter(request.model for request in found.requests if request.model is not None)
    return ParsedChunk(requests=tuple(found.requests), left_out=found.left_out, models=dict(models))


_READERS: Final[Mapping[str, Read]] = {
    OPENAI: read_openai,
    SPANS: read_spans,
    FOLDER: read_chat_file,
}


def of_model(parsed: ParsedChunk, model: str | None) -> ParsedChunk:
    """``parsed`` with requests of other models left out; None keeps every model."""
    if model is None or set(parsed.models) <= {model}:
        return parsed
    found = Gathered()
    found.add_left_out(parsed.left_out)
    for request in parsed.requests:
        if request.model in (None, model):
            found.requests.append(request)
        else:
            found.leave_out(f"another model ({request.model})", request.place)
    return ParsedChunk(
        requests=tuple(found.requests), left_out=found.left_out, models=parsed.models
    )


def _ignore(reason: str, place: str) -> None:
    """What is left out is of no interest to a caller who does not ask."""


def line_chunks(
    path: Path, chunk_bytes: int = CHUNK_BYTES, leave_out: _LeaveOut = _ignore
) -> Iterator[tuple[int, bytes]]:
    """The number of the first line, from 1, and whole lines of about ``chunk_bytes`` together.

    A line of over ``MAX_LINE_BYTES`` is skipped as it is read and told to ``leave_out`` with its
    reason, its place and size; so is gzip that is damaged, which ends the file.
    """
    line, tail, length = 1, list[bytes](), 0  # of the line that has not ended yet
    for block in _blocks(path, min(chunk_bytes, MAX_LINE_BYTES), leave_out):
        start, end = 0, block.rfind(b"\n") + 1
        if end:
            start = block.find(b"\n") + 1
            if length + start - 1 > MAX_LINE_BYTES:
                size = human_bytes(length + start - 1)
                leave_out(TOO_LONG, f"{path.name}:{line} ({size})")
                line, tail = line + 1, []
            else:
                start = 0
            if data := b"".join([*tail, block[start:end]]):
                yield line, data
                line += data.count(b"\n")
            tail, length = [], 0
        tail.append(block[end:])
        length += len(block) - end
        if length > MAX_LINE_BYTES:
            tail = []
    if length > MAX_LINE_BYTES:
        leave_out(TOO_LONG, f"{path.name}:{line} ({human_bytes(length)})")
    elif data := b"".join(tail):
        yield line, data


def item_chunks(
    path: Path, chunk_bytes: int = CHUNK_BYTES, leave_out: _LeaveOut = _ignore
) -> Iterator[tuple[int, bytes]]:
    """The same of a JSON document: each object of its array, or each object at its top, a line.

    The numbers count objects. ``UsageError`` for an object too large to be held.
    """
    number, lines, held = 1, list[bytes](), 0
    for item in _items(path, min(chunk_bytes, MIB), leave_out):
        lines.append(item.replace(b"\n", b" "))  # between tokens: no JSON string holds a raw one
        held += len(item)
        if held >= chunk_bytes:
            yield number, b"\n".join(lines)
            number, lines, held = number + len(lines), [], 0
    if lines:
        yield number, b"\n".join(lines)


def _items(path: Path, block_bytes: int, leave_out: _LeaveOut) -> Iterator[bytes]:
    """Each outermost object, of an array or not; the last as far as it goes if it is torn."""
    rest, scanned, start, depth, most = b"", 0, 0, 0, 0
    for block in _blocks(path, block_bytes, leave_out):
        rest += block
        if not most:
            array = rest.lstrip()[:1] == b"["
            most, scanned = (
                (MAX_LINE_BYTES, rest.find(b"[") + 1) if array else (_MAX_EXPORT_BYTES, 0)
            )
        upto = len(rest)
        for match in _TOKEN.finditer(rest, scanned):
            token = match[0]
            if token == b'"':
                upto = match.start()
                break
            if token in b"{[":
                start = match.start() if depth == 0 else start
                depth += 1
            elif token in b"}]" and depth:
                depth -= 1
                if depth == 0:
                    yield rest[start : match.end()]
        kept = start if depth else upto
        rest, scanned, start = rest[kept:], upto - kept, 0
        if len(rest) > most:
            raise UsageError(
                f"{path} holds one JSON object of over {human_bytes(most)}; write one request a "
                "line, of an export with: jq -c '.resourceSpans[]', of an array with: jq -c '.[]'"
            )
    if depth:
        yield rest


def _blocks(path: Path, size: int, leave_out: _LeaveOut) -> Iterator[bytes]:
    """The file's bytes, unpacked, ``size`` at a time, without a byte order mark."""
    pieces, held, first = list[bytes](), 0, True
    with _opened(path) as file:
        while True:
            try:
                piece = file.read1(size - held)  # type: ignore[attr-defined]
            except (EOFError, zlib.error, gzip.BadGzipFile):
                leave_out(TORN_GZIP, path.name)
                piece = b""
            if piece:
                pieces.append(piece)
                held += len(piece)
            if held and (held >= size or not piece):
                block = b"".join(pieces)
                yield block.removeprefix(BOM) if first else block
                pieces, held, first = [], 0, False
            if not piece:
                return


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is neither a file nor a folder; write the log to a file first")
    try:
        with path.open("rb") as file:
            magic = file.read(2)
            file.seek(0)
            if magic != b"\x1f\x8b":
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked  # type: ignore[misc]
    except FileNotFoundError as error:
        raise UsageError(f"there is no log {path}; give a file or folder that exists") from error
    except OSError as error:
        raise UsageError(
            f"the log {path} cannot be read ({error}); give a file that you may read"
        ) from error


def _is_document(path: Path) -> bool:
    """Whether the file is one JSON document; ``UsageError`` where it is empty or foreign."""
    seen = Gathered()
    head = next(_blocks(path, MIB, seen.leave_out), b"").lstrip()
    if not head and seen.left_out:
        raise _nothing(path, seen)
    if not head:
        raise UsageError(f"the log {path} is empty; give a file with at least one request")
    for magic, problem in _FOREIGN:
        if head.startswith(magic):
            raise UsageError(f"{path} {problem}")
    if _LINES.intersection(path.suffixes):
        return False
    if head.startswith(b"["):
        return True
    if ".json" not in path.suffixes:
        return False
    # The last piece is no whole line, unless it is the only one.
    first, *more = head.split(b"\n", 3)
    return not any(map(_is_record, [first, *more[:-1]]))


def _is_record(line: bytes) -> bool:
    try:
        item = load_line(line)
    except Unreadable:
        return False
    return is_openai(item) or is_spans(item)


def _nothing(path: Path, found: Gathered) -> UsageError:
    """The error of a log without a request: what stands in it, and the nearest mend."""
    reasons = {one.reason: one for one in found.left_out}
    if NO_CONTENT in reasons:
        mend = "record content: set OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    elif CUT in reasons:
        mend = "record it whole: unset OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"
    else:
        mend = (
            'give one JSON object a line with "messages" or "prompt", '
            "OpenTelemetry GenAI spans, or a folder of prompt files"
        )
    told = ", ".join(f"{one.reason}: {one.count}, first {one.first}" for one in reasons.values())
    return UsageError(f"{path} has no request that can be read ({told or 'nothing'}); {mend}")


def _prompt_files(folder: Path, leave_out: _LeaveOut) -> Iterator[tuple[str, bytes]]:
    for name in prompt_folder_names(folder):
        file = folder / name
        if file.suffix.lower() not in _PROMPTS:
            leave_out(NO_PROMPT_FILE, name)
        elif (size := file.stat().st_size) > MAX_LINE_BYTES:
            leave_out(TOO_LONG, f"{name} ({human_bytes(size)})")
        else:
            with _opened(file) as opened:
                data = opened.read()
            if data.startswith(_LFS):
                leave_out(LFS_POINTER, name)
            else:
                yield name, data


def _require_prompts(folder: Path) -> None:
    names = prompt_folder_names(folder)
    if any(Path(name).suffix.lower() in _PROMPTS for name in names):
        return
    log = next((name for name in names if _LINES.intersection(Path(name).suffixes)), None)
    mend = "give a folder of such files" if log is None else f"give its log: {folder / log}"
    raise UsageError(f"the folder {folder} has no prompt ({', '.join(sorted(_PROMPTS))}); {mend}")
