"""A hub checkpoint with its safetensors headers only.

Each weight file is as long as the real one and sparse: the header is there, the data are not
fetched and read as zeros. So everything that reads shapes and sizes works as on the whole folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from whet.checkpoint.hub import HubCheckpoint, hub_errors
from whet.core.units import MIB

_MARK: Final = ".headers-only"
_BLOCK_BYTES: Final = 100_000
"""97% of the hub's safetensors headers are shorter, by huggingface_hub's count."""
_MAX_HEADER_BYTES: Final = 100 * MIB
_SMALL_TENSORS: Final = (".weight_shape", ".k_scale", ".v_scale")
"""Tensors of a few bytes whose values the checks read."""
_AT_ONCE: Final = 8
_PREFIX_BYTES: Final = 8


def write_hollow(checkpoint: HubCheckpoint, folder: Path) -> None:
    """Write the checkpoint to ``folder``; its small files are links into the hub's cache."""
    from huggingface_hub import HfFileSystem

    folder.mkdir(parents=True)
    for file in checkpoint.folder.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    for name in checkpoint.others:  # pickles and GGUF: a refusal names them
        (folder / name).touch()
    (folder / _MARK).touch()
    snapshot, hub = checkpoint.snapshot, HfFileSystem(skip_instance_cache=True)

    def fetch(name: str) -> None:
        size = checkpoint.missing[name]
        path = f"{snapshot.hub_id}@{snapshot.commit}/{name}"
        with (
            hub.open(path, size=size, block_size=_BLOCK_BYTES) as remote,
            (folder / name).open("wb") as local,
        ):
            prefix = remote.read(_PREFIX_BYTES)
            header = remote.read(min(int.from_bytes(prefix, "little"), _MAX_HEADER_BYTES))
            local.write(prefix + header)
            for start, stop in sorted(_small_spans(header)):
                remote.seek(start)
                local.seek(start)
                local.write(remote.read(stop - start))
            local.truncate(size)

    with hub_errors(snapshot.hub_id, snapshot.commit), ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(fetch, checkpoint.missing))


def is_hollow(folder: Path) -> bool:
    """Return whether a folder has headers without weights."""
    return (folder / _MARK).exists()


def _small_spans(header: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the small tensors are in the file; nothing for a header that is not valid."""
    data_start = _PREFIX_BYTES + len(header)
    try:
        for name, entry in json.loads(header).items():
            if name.endswith(_SMALL_TENSORS):
                start, stop = entry["data_offsets"]
                yield data_start + start, data_start + stop
    except (ValueError, TypeError, KeyError, AttributeError):
        return  # reading the folder says what is wrong with it
