"""The bytes of a log as whole lines, plain or in gzip, and the files of a folder of prompts.

Each object of a JSON document becomes a line. A line that is too long is skipped while it is read.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from whet.core.errors import UsageError
from whet.core.units import MIB, human_bytes
from whet.prompts.openai_log import BOM, prompt_folder_names

GZIP_MAGIC: Final = b"\x1f\x8b"
MAX_LINE_BYTES: Final = 32 * MIB
CHUNK_BYTES: Final = MIB
TOO_LONG: Final = f"longer than {human_bytes(MAX_LINE_BYTES)}"
TORN_GZIP: Final = "a gzip file that is damaged or ends early"
NO_PROMPT_FILE: Final = "no prompt file"
LFS_POINTER: Final = "a git-LFS pointer"

LFS_MAGIC: Final = b"version https://git-lfs"
LINES: Final = frozenset({".jsonl", ".ndjson"})
"""How a file of JSON lines is named."""

_MAX_EXPORT_BYTES: Final = 128 * MIB
_PROMPTS: Final = frozenset({".txt", ".md", ".jinja", ".prompt", ".json"})
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]"]', re.DOTALL)
"""A bracket, a whole string, or the quote that begins a string without an end."""

LeaveOut = Callable[[str, str], None]
"""Called with the reason and the place of what is left out."""


def _ignore(reason: str, place: str) -> None:
    """Count nothing."""


def line_chunks(
    path: Path, chunk_bytes: int = CHUNK_BYTES, leave_out: LeaveOut = _ignore
) -> Iterator[tuple[int, bytes]]:
    """The number of the first line, from 1, and whole lines of about ``chunk_bytes`` together.

    A line above ``MAX_LINE_BYTES`` is skipped and reported to ``leave_out``; so is damaged gzip,
    which ends the file.
    """
    line, tail, length = 1, list[bytes](), 0  # of the line that has not ended yet
    for block in blocks(path, min(chunk_bytes, MAX_LINE_BYTES), leave_out):
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
    path: Path, chunk_bytes: int = CHUNK_BYTES, leave_out: LeaveOut = _ignore
) -> Iterator[tuple[int, bytes]]:
    """As ``line_chunks`` for a JSON document: each object of its array or top level is a line.

    The numbers count objects. ``UsageError`` for an object that is too large.
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


def _items(path: Path, block_bytes: int, leave_out: LeaveOut) -> Iterator[bytes]:
    """Each outermost object; the last may be incomplete."""
    rest, scanned, start, depth, most = b"", 0, 0, 0, 0
    for block in blocks(path, block_bytes, leave_out):
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
        done = start if depth else upto
        rest, scanned, start = rest[done:], upto - done, 0
        if len(rest) > most:
            raise UsageError(
                f"{path} holds one JSON object of over {human_bytes(most)}; write one request a "
                "line, of an export with: jq -c '.resourceSpans[]', of an array with: jq -c '.[]'"
            )
    if depth:
        yield rest


def blocks(path: Path, size: int, leave_out: LeaveOut) -> Iterator[bytes]:
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
            magic = file.read(len(GZIP_MAGIC))
            file.seek(0)
            if magic != GZIP_MAGIC:
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


def prompt_files(folder: Path, leave_out: LeaveOut) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each prompt file at any depth, sorted by name; others are left out."""
    for name in prompt_folder_names(folder):
        file = folder / name
        if file.suffix.lower() not in _PROMPTS:
            leave_out(NO_PROMPT_FILE, name)
        elif (size := file.stat().st_size) > MAX_LINE_BYTES:
            leave_out(TOO_LONG, f"{name} ({human_bytes(size)})")
        else:
            with _opened(file) as opened:
                data = opened.read()
            if data.startswith(LFS_MAGIC):
                leave_out(LFS_POINTER, name)
            else:
                yield name, data


def require_prompts(folder: Path) -> None:
    """``UsageError`` for a folder without a prompt file."""
    names = prompt_folder_names(folder)
    if any(Path(name).suffix.lower() in _PROMPTS for name in names):
        return
    log = next((name for name in names if LINES.intersection(Path(name).suffixes)), None)
    fix = "give a folder of such files" if log is None else f"give its log: {folder / log}"
    raise UsageError(f"the folder {folder} has no prompt ({', '.join(sorted(_PROMPTS))}); {fix}")
