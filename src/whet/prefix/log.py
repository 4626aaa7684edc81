"""Read a log of requests, piece by piece: any process can parse a piece, and memory is bounded.

A log is JSON lines, a JSON document (``.json``: an array of requests, or one export of spans),
either of them in gzip, or a folder of prompt files. ``LogReader`` tells which by its beginning and
yields the requests in the file's order, spans in that of their times (``parse_chunk``). For a large
log, hand its ``chunks`` to worker processes::

    reader = LogReader(path, model=model)
    for parsed in pool.imap(parse, reader.chunks()):   # parse: of_model(parse_chunk(*chunk), model)
        reader.count(parsed)

What cannot be read is left out and counted, with its reason and the first place; it ends nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.records import LeftOut, LoggedRequest
from whet.core.units import MIB
from whet.prefix.log_files import (
    CHUNK_BYTES,
    GZIP_MAGIC,
    LFS_MAGIC,
    LINES,
    MAX_LINE_BYTES,
    blocks,
    item_chunks,
    line_chunks,
    prompt_files,
    require_prompts,
)
from whet.prefix.log_formats import (
    BOM,
    NO_REQUEST,
    Gathered,
    Read,
    Unreadable,
    has_surrogates,
    is_openai,
    load_line,
    parse_line,
    read_chat_file,
    read_checked,
    read_openai,
    read_text_file,
    whole_lines,
)
from whet.prefix.log_spans import CUT, NO_CONTENT, is_spans, read_spans

OPENAI: Final = "OpenAI request log"
SPANS: Final = "OpenTelemetry GenAI spans"
FOLDER: Final = "folder of prompt files"

_FOREIGN: Final = (
    (LFS_MAGIC, "is a git-LFS pointer, not the log; run: git lfs pull"),
    (b"\x28\xb5\x2f\xfd", "is in zstd, which is not read here; unpack it with: zstd -d"),
    (b"\xff\xfe", "is in UTF-16; convert it with: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "is in UTF-16; convert it with: iconv -f UTF-16 -t UTF-8"),
)

LogChunk = tuple[str, int, bytes, str]
"""The arguments of ``parse_chunk``: form, number of the first line, whole lines, name."""


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

    Spans come in the order of their times within a chunk, for a span is written when it ends.

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
            require_prompts(path)
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
            for name, data in prompt_files(self.path, leave_out):
                yield FOLDER, 0, data, name
            return
        for line, data in self._chunks(self.path, chunk_bytes, leave_out):
            yield self.form, line, data, self.path.name

    def spread(self, places: int, size: int = MIB) -> Iterator[LoggedRequest]:
        """Some requests from each of ``places`` places of a plain file of lines, ``size`` bytes
        each, from the second place on; none of a folder, a document or a packed file."""
        if self.form == FOLDER or self._chunks is not line_chunks:
            return
        with self.path.open("rb") as file:
            if file.read(len(GZIP_MAGIC)) == GZIP_MAGIC:
                return
            total = file.seek(0, os.SEEK_END)
            for at in range(1, places):
                file.seek(total * at // places)
                file.readline(MAX_LINE_BYTES)  # the rest of a line
                data = file.read(size)
                chunk = parse_chunk(self.form, 0, data[: data.rfind(b"\n") + 1], self.path.name)
                yield from of_model(chunk, self.model).requests

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

    Of a folder's file, ``data`` is the whole and ``name`` alone the place. An exporter writes a
    span when it ends: where all spans of a chunk have times, the requests are in the order in which
    they began. Calls that overlap across the border of two chunks stay in the file's order.
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
    requests = _by_start(found.requests) if form == SPANS else found.requests
    models = Counter(request.model for request in requests if request.model is not None)
    return ParsedChunk(requests=tuple(requests), left_out=found.left_out, models=dict(models))


def _by_start(requests: list[LoggedRequest]) -> list[LoggedRequest]:
    """In the order of ``at_ns``, equal times as they were; as they were where one is missing."""
    timed = [(one.at_ns, one) for one in requests if one.at_ns is not None]
    if len(timed) < len(requests):
        return requests
    return [one for _, one in sorted(timed, key=itemgetter(0))]


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


def _is_document(path: Path) -> bool:
    """Whether the file is one JSON document; ``UsageError`` where it is empty or foreign."""
    seen = Gathered()
    head = next(blocks(path, MIB, seen.leave_out), b"").lstrip()
    if not head and seen.left_out:
        raise _nothing(path, seen)
    if not head:
        raise UsageError(f"the log {path} is empty; give a file with at least one request")
    for magic, problem in _FOREIGN:
        if head.startswith(magic):
            raise UsageError(f"{path} {problem}")
    if LINES.intersection(path.suffixes):
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
