"""Read a request log as a stream: memory is bounded, and lines that cannot be read are counted.

A log is JSON lines, a JSON document (an array of requests or an export of spans), either of them
in gzip, or a folder of prompt files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError
from whet.core.names import did_you_mean
from whet.core.units import MIB
from whet.prompts.log_files import (
    CHUNK_BYTES,
    LFS_MAGIC,
    LINES,
    blocks,
    item_chunks,
    line_chunks,
    prompt_files,
    require_prompts,
)
from whet.prompts.openai_log import (
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
from whet.prompts.records import LeftOut, LoggedRequest
from whet.prompts.spans_log import CUT, NO_CONTENT, is_spans, read_spans

OPENAI: Final = "OpenAI request log"
SPANS: Final = "OpenTelemetry GenAI spans"
FOLDER: Final = "folder of prompt files"

_FOREIGN: Final = (
    (LFS_MAGIC, "is a git-LFS pointer, not the log; run: git lfs pull"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd; decompress it with: zstd -d"),
    (b"\xff\xfe", "is in UTF-16; convert it with: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "is in UTF-16; convert it with: iconv -f UTF-16 -t UTF-8"),
)


class LogReader:
    """The requests of a log in the file's order; spans are sorted by start time within a chunk.

    ``form`` names the format. With ``model``, requests of other models are left out; requests
    without a model stay. ``left_out()`` and ``models`` describe what was read so far. Raises
    ``UsageError`` for a file that is missing, empty, foreign or without a request.
    """

    def __init__(self, path: Path, *, model: str | None = None, chunk_bytes: int = CHUNK_BYTES):
        self.path = path
        self.model = model
        self.models: Counter[str] = Counter()
        self._chunk_bytes = chunk_bytes
        self._gathered = Gathered()
        self._chunks: Callable[..., Iterator[tuple[int, bytes]]] = line_chunks
        if path.is_dir():
            self.form = FOLDER
            require_prompts(path)
        else:
            self._chunks = item_chunks if _is_document(path) else line_chunks
            self.form = self._recognise()

    def __iter__(self) -> Iterator[LoggedRequest]:
        """Read from the start; the counts begin again."""
        self.models.clear()
        self._gathered = Gathered()
        empty = True
        for parsed in self._parsed():
            self._gathered.add_left_out(parsed.left_out)
            for request in parsed.requests:
                if request.model is not None:
                    self.models[request.model] += 1
                if self.model is not None and request.model not in (None, self.model):
                    self._gathered.leave_out(f"another model ({request.model})", request.place)
                    continue
                empty = False
                yield request
        if empty:
            raise self.nothing_read()

    def left_out(self) -> tuple[LeftOut, ...]:
        """What was left out so far, one record a reason."""
        return self._gathered.left_out

    def leave_out(self, reason: str, place: str) -> None:
        """Count a request that a later step refused."""
        self._gathered.leave_out(reason, place)

    def _parsed(self) -> Iterator[Gathered]:
        leave_out = self._gathered.leave_out
        if self.form == FOLDER:
            for name, data in prompt_files(self.path, leave_out):
                yield parse_chunk(FOLDER, 0, data, name)
            return
        for line, data in self._chunks(self.path, self._chunk_bytes, leave_out):
            yield parse_chunk(self.form, line, data, self.path.name)

    def nothing_read(self) -> UsageError:
        """The error of a log of which no request could be used."""
        if self.model is not None and self.models:
            return UsageError(
                f"{self.path} has no request for the model {self.model!r}, it has "
                f"{', '.join(sorted(self.models))}{did_you_mean(self.model, self.models)}"
            )
        return _no_request(self.path, self._gathered)

    def _recognise(self) -> str:
        """The format of the first line that is in a known one."""
        gathered = Gathered()
        for first, data in self._chunks(self.path, MIB, gathered.leave_out):
            for number, line in enumerate(whole_lines(data), start=first):
                place = f"{self.path.name}:{number}"
                try:
                    item = load_line(line)
                except Unreadable as error:
                    gathered.leave_out(error.reason, place)
                    continue
                if is_openai(item):
                    return OPENAI
                if is_spans(item):
                    return SPANS
                gathered.leave_out(NO_REQUEST, place)
        raise _no_request(self.path, gathered)


def only_model(path: Path, model: str | None, *, sample: int = 4_000) -> str | None:
    """The one model of a log's first requests; ``UsageError`` for several and no choice."""
    reader = LogReader(path, model=model)
    models = Counter(r.model for r in islice(reader, sample) if r.model is not None)
    if len(models) > 1:
        counts = ", ".join(f"{name} ({count})" for name, count in models.most_common())
        raise UsageError(
            f"{path} holds requests for several models: {counts}; models never share a cache, so "
            f"choose one: --served-model {models.most_common(1)[0][0]}"
        )
    return next(iter(models), model)


def parse_chunk(form: str, first_line: int, data: bytes, name: str) -> Gathered:
    """Whole lines to requests; ``name`` and the line's number are the place. Never raises.

    For a file of a folder, ``data`` is the whole file and ``name`` alone the place.
    """
    gathered = Gathered()
    if form == FOLDER and not name.lower().endswith(".json"):
        read_text_file(data, name, gathered)
        return gathered
    read = _READERS[form]
    if has_surrogates(data):
        read = partial(read_checked, read)
    if form == FOLDER:
        parse_line(read, data.removeprefix(BOM), name, gathered)
    else:
        for number, line in enumerate(whole_lines(data), start=first_line):
            parse_line(read, line, f"{name}:{number}", gathered)
    if form == SPANS:
        _sort_by_start(gathered.requests)
    return gathered


def _sort_by_start(requests: list[LoggedRequest]) -> None:
    """Sort by ``at_ns`` unless a time is missing: an exporter writes a span when it ends."""
    timed = [(one.at_ns, one) for one in requests if one.at_ns is not None]
    if len(timed) == len(requests):
        requests[:] = [one for _, one in sorted(timed, key=itemgetter(0))]


_READERS: Final[Mapping[str, Read]] = {
    OPENAI: read_openai,
    SPANS: read_spans,
    FOLDER: read_chat_file,
}


def _is_document(path: Path) -> bool:
    """Whether the file is one JSON document; ``UsageError`` where it is empty or foreign."""
    gathered = Gathered()
    head = next(blocks(path, MIB, gathered.leave_out), b"").lstrip()
    if not head and gathered.left_out:
        raise _no_request(path, gathered)
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
    # The last piece may be cut, unless it is the only one.
    first, *more = head.split(b"\n", 3)
    return not any(map(_is_record, [first, *more[:-1]]))


def _is_record(line: bytes) -> bool:
    try:
        item = load_line(line)
    except Unreadable:
        return False
    return is_openai(item) or is_spans(item)


def _no_request(path: Path, gathered: Gathered) -> UsageError:
    reasons = {one.reason: one for one in gathered.left_out}
    if NO_CONTENT in reasons:
        fix = "record content: set OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    elif CUT in reasons:
        fix = "record it whole: unset OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"
    else:
        fix = (
            'give one JSON object a line with "messages" or "prompt", '
            "OpenTelemetry GenAI spans, or a folder of prompt files"
        )
    what = ", ".join(f"{one.reason}: {one.count}, first {one.first}" for one in reasons.values())
    return UsageError(f"{path} has no request that can be read ({what or 'nothing'}); {fix}")
