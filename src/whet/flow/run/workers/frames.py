"""Pickled messages on a pipe, each with its length before it. Imports nothing of whet."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Final

_LENGTH: Final = struct.Struct(">Q")


def write_message(stream: IO[bytes], message: object) -> None:
    """Write one message and flush."""
    write_frame(stream, pickle.dumps(message))


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write one message that is pickled already."""
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """One pickled message; None at the end of the stream, also in the middle of one."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    data = stream.read(size)
    return data if len(data) == size else None
