"""JSON values or table rows of a log on disk: plain, gzip, xz or zstd, read as a stream."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from whet.core.errors import UsageError
from whet.core.units import MIB, human_bytes

MAX_LINE_BYTES: Final = 32 * MIB
BLANK: Final = "blank"
INVALID: Final = "not valid JSON"
INCOMPLETE: Final = "an incomplete last line"
NOT_UTF8: Final = "not UTF-8"
TOO_LONG: Final = f"longer than {human_bytes(MAX_LINE_BYTES)}"
DAMAGED: Final = "a file that is not UTF-8, is damaged or ends early"
OTHER_FILE: Final = "not a log"
UNEVEN: Final = "a row that has not the cells of the header"

_BOM: Final = b"\xef\xbb\xbf"
_GZIP: Final = b"\x1f\x8b"
_XZ: Final = b"\xfd7zX"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_LFS: Final = (b"version https://git-lfs", "is a git-LFS pointer, not the log; run: git lfs pull")
_UTF16: Final = "is in UTF-16; convert it with: iconv -f UTF-16 -t UTF-8"
_PARQUET: Final = "is Parquet; write it as JSON lines, such as with pandas.DataFrame.to_json"
_FOREIGN: Final = (
    _LFS, (b"\xff\xfe", _UTF16), (b"\xfe\xff", _UTF16), (b"PAR1", _PARQUET),
    (b"PK\x03\x04", "is a zip archive; unpack it and give the folder"),
)  # fmt: skip
_VLLM_LOG: Final = re.compile(rb"Received request \S+: (prompt|params): ")
_LINES: Final = frozenset({".jsonl", ".ndjson"})
_LOGS: Final = _LINES | {".json", ".csv", ".tsv"}
_CELL: Final = r'"?[\w .#@()/-]+"?'
_HEADER: Final = re.compile(rf"{_CELL}(?:[,;\t]{_CELL})+")
csv.field_size_limit(MAX_LINE_BYTES)
_JSON: Final = re.compile(rb"(\[\s*)?\{\s*[\"}]")
_SEPARATOR: Final = re.compile(r"[\s,\]]*")

LeaveOut = Callable[[str, str], None]
"""Called with the reason and the place of what is left out."""
Item = tuple[str, Any, bool]
"""A place, a JSON value, and whether its text escapes a surrogate (``\\ud83d``)."""


def check_file(path: Path) -> None:
    """Raise ``UsageError`` for a log that is missing, empty, or in a foreign encoding."""
    head = _head(path)
    if head == b"":
        raise UsageError(f"the log {path} is empty", fix="give a file with at least one request")
    for magic, problem in _FOREIGN:
        if head is not None and head.startswith(magic):
            raise UsageError(f"{path} {problem}")
    if head is not None and not head.startswith((b"{", b"[")) and _VLLM_LOG.search(head):
        raise UsageError(
            f"{path} is the text log of vLLM, which has no answers and often no prompts",
            fix="log requests and responses as JSON lines in the gateway or the client",
        )


def folder_logs(folder: Path, leave_out: LeaveOut) -> Iterator[Path]:
    """The logs at any depth by their first bytes, sorted, without hidden ones."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):
            continue
        if _LOGS.intersection(path.suffixes) or _is_log(path):
            yield path
        else:
            leave_out(OTHER_FILE, name.as_posix())


def _is_log(path: Path) -> bool:
    """Whether a file of any name begins as JSON or as a table, or cannot be unpacked."""
    head = _head(path)
    cells = [re.split(rb"[,;\t]", line) for line in (head or b"").split(b"\n", 2)[:2]]
    rows = len(cells[0]) == len(cells[-1]) and is_table(path)
    return head is None or rows or _JSON.match(head) is not None


def is_table(path: Path) -> bool:
    """Whether a file begins with the header of a table."""
    first = (_head(path) or b"").split(b"\n", 1)[0].decode("utf-8", "replace")
    return _HEADER.fullmatch(first.strip()) is not None


def read_items(path: Path, name: str, leave_out: LeaveOut) -> Iterator[Item]:
    """The JSON value of each line, item of an array or table row; bad ones are left out."""
    read = _reader_of(path)
    with open_log(path) as file:
        try:
            yield from read(file, name, leave_out)
        except (EOFError, lzma.LZMAError, zlib.error, OSError, csv.Error, UnicodeDecodeError):
            leave_out(DAMAGED, name)


def _lines(file: IO[bytes], name: str, leave_out: LeaveOut) -> Iterator[Item]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        place = f"{name}:{number}"
        if number == 1:
            line = line.removeprefix(_BOM)
        if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            size = len(line) + _skip_line(file)
            leave_out(TOO_LONG, f"{place} ({human_bytes(size)})")
            continue
        try:
            yield place, json.loads(line.decode()), _escapes_surrogate(line)
        except (ValueError, RecursionError) as error:
            leave_out(_line_problem(line, error), place)


def _line_problem(line: bytes, error: Exception) -> str:
    if not line.strip():
        return BLANK
    if not line.endswith(b"\n"):
        return INCOMPLETE
    return NOT_UTF8 if isinstance(error, UnicodeDecodeError) else INVALID


def _skip_line(file: IO[bytes]) -> int:
    """Read to the line's end; returns the bytes before it."""
    size = 0
    while piece := file.readline(MIB):
        size += len(piece)
        if piece.endswith(b"\n"):
            return size - 1
    return size


def _document(file: IO[bytes], name: str, leave_out: LeaveOut) -> Iterator[Item]:
    """The items of one JSON array, or JSON values one after another."""
    stream = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    decoder, number = json.JSONDecoder(), 1
    text = stream.read(MIB).lstrip().removeprefix("[")
    start = 0
    while True:
        separator = _SEPARATOR.match(text, start)
        start = start if separator is None else separator.end()
        place = f"{name}:{number}"
        try:
            item, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            rest = len(text) - start
            if rest > MAX_LINE_BYTES:
                raise UsageError(
                    f"{place} is not valid JSON, or larger than {human_bytes(MAX_LINE_BYTES)}",
                    fix="write one request per line with: jq -c '.[]'",
                ) from None
            more = stream.read(max(MIB, rest))
            if not more:
                if rest:
                    leave_out(INVALID if number == 1 else DAMAGED, place)
                return
            text, start = text[start:] + more, 0
            continue
        yield place, item, _escapes_surrogate(text[start:end].encode("utf-8", "replace"))
        number, start = number + 1, end


def _escapes_surrogate(data: bytes) -> bool:
    return b"\\ud" in data or b"\\uD" in data


def _table(file: IO[bytes], name: str, leave_out: LeaveOut) -> Iterator[Item]:
    """The rows of a CSV file, each an object of the cells that are not empty."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    before, header = next((n, line) for n, line in enumerate(text, 1) if line.strip())
    delimiter = max(",;\t", key=header.count)
    names = [cell.strip() for cell in next(csv.reader([header], delimiter=delimiter))]
    reader = csv.reader(text, delimiter=delimiter)
    for cells in reader:
        place = f"{name}:{before + reader.line_num}"
        if not any(map(str.strip, cells)):
            continue
        if len(cells) != len(names):
            leave_out(UNEVEN, place)
            continue
        row = zip(names, map(str.strip, cells), strict=True)
        yield place, {key: cell for key, cell in row if cell}, False


def _reader_of(path: Path) -> Callable[[IO[bytes], str, LeaveOut], Iterator[Item]]:
    """Which way to read a file: lines, one JSON value over several lines, or a table."""
    head = _head(path) or b""
    first = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    if is_table(path):
        return _table
    if _LINES.intersection(path.suffixes):
        return _document if first == "[" else _lines
    if head.startswith(b"["):
        return _document
    objects = any(map(_is_object, head.split(b"\n", 20)[:20]))
    begins = head.startswith(b"{") and not (objects or first.endswith("}"))
    return _document if begins else _lines


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _head(path: Path) -> bytes | None:
    """The first MiB without leading white space; None for a damaged file."""
    with open_log(path) as file:
        try:
            return file.read(MIB).removeprefix(_BOM).lstrip()
        except (EOFError, lzma.LZMAError, zlib.error, OSError):
            return None


@contextmanager
def open_log(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked."""
    if path.exists() and not path.is_file():
        raise UsageError(
            f"{path} is neither a file nor a folder", fix="write the log to a file first"
        )
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no log {path}", fix="give a file or folder that exists"
        ) from error
    except OSError as error:
        raise UsageError(
            f"the log {path} cannot be read ({error})", fix="give a file that you may read"
        ) from error
    with file:
        magic = file.peek(4)[:4]
        if magic.startswith(_GZIP):
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield io.BufferedReader(unpacked, MIB)
        elif magic == _XZ:
            with lzma.open(file) as unpacked:
                yield unpacked
        elif magic == _ZSTD:
            import pyarrow

            yield io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"), MIB)
        else:
            yield file
