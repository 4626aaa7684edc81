"""A hub checkpoint with its safetensors headers only.

Each weight file is as long as the real one and sparse: the header is there, the data are not
fetched and read as zeros. So everything that reads shapes and sizes works as on the whole folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Final

from whet.checkpoint.hub import HubCheckpoint, stream
from whet.checkpoint.hub_errors import hub_errors
from whet.core.hub import Snapshot
from whet.core.units import KIB, MIB

_MARK: Final = ".headers-only"
_FIRST_BYTES: Final = 100_000
"""97% of the hub's safetensors headers are shorter, by huggingface_hub's count."""
_MAX_HEADER_BYTES: Final = 100 * MIB
_SMALL_TENSORS: Final = (".weight_shape", ".k_scale", ".v_scale")
"""Tensors of a few bytes whose values the checks read."""
_GAP_BYTES: Final = 64 * KIB
_AT_ONCE: Final = 8
_PREFIX_BYTES: Final = 8


def write_hollow(checkpoint: HubCheckpoint, folder: Path) -> None:
    """Write the checkpoint to ``folder``; its small files are links into the hub's cache."""
    folder.mkdir(parents=True)
    for file in checkpoint.folder.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    for name in checkpoint.others:  # pickles and GGUF: a refusal names them
        (folder / name).touch()
    (folder / _MARK).touch()

    def fetch(name: str) -> None:
        _write_file(checkpoint.snapshot, name, checkpoint.missing[name], folder / name)

    with (
        hub_errors(checkpoint.snapshot.hub_id, checkpoint.snapshot.commit),
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        list(pool.map(fetch, checkpoint.missing))


def is_hollow(folder: Path) -> bool:
    """Whether a folder has headers without weights."""
    return (folder / _MARK).exists()


def _write_file(snapshot: Snapshot, name: str, size: int, path: Path) -> None:
    begin = _read_range(snapshot, name, 0, min(size, _FIRST_BYTES))
    end = _PREFIX_BYTES + int.from_bytes(begin[:_PREFIX_BYTES], "little")
    if len(begin) < end <= min(size, _MAX_HEADER_BYTES):
        begin += _read_range(snapshot, name, len(begin), end)
    with path.open("wb") as file:
        file.write(begin[:end])
        for start, stop in _merged(_small_spans(begin[_PREFIX_BYTES:end], end)):
            file.seek(start)
            file.write(_read_range(snapshot, name, start, stop))
        file.truncate(size)


def _small_spans(header: bytes, data_start: int) -> Iterator[tuple[int, int]]:
    """Where the small tensors are in the file; nothing for a header that is not valid."""
    try:
        tensors = json.loads(header)
        for name, entry in tensors.items():
            if name.endswith(_SMALL_TENSORS):
                start, stop = entry["data_offsets"]
                yield data_start + start, data_start + stop
    except (ValueError, TypeError, KeyError, AttributeError):
        return  # reading the folder says what is wrong with it


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring spans in one, so that each takes one request."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start - merged[-1][1] <= _GAP_BYTES:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _read_range(snapshot: Snapshot, name: str, start: int, stop: int) -> bytes:
    """Bytes of a file on the hub, ``stop`` not included."""
    if start >= stop:
        return b""
    with stream(snapshot, name, start, stop) as response:
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:  # it would be the whole file
            raise OSError(f"it does not serve a part of {name}")
        data: bytes = response.read()
    return data
