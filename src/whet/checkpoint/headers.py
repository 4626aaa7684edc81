"""Safetensors headers: which tensors a checkpoint holds and where, without loading one.

A file is 8 bytes of header length (little endian), the header as JSON, then the data; offsets in
the header count from the start of the data (safetensors format specification).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import LFS_MARK, lfs_error, read_json
from whet.core.errors import CheckpointError

INDEX: Final = "model.safetensors.index.json"
BITS: Final[Mapping[str, int]] = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
_PREFIX_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_AGAIN: Final = "download the checkpoint again"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorHeader:
    """One stored tensor. ``dtype`` is safetensors' word (``BF16``); offsets are the file's."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def elements(self) -> int:
        """Stored elements: for a packed tensor the words, not the weights in them."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.start


def read_headers(path: Path) -> Mapping[str, TensorHeader]:
    """Every tensor of the checkpoint folder ``path`` by name, every file checked to be whole.

    Raises ``CheckpointError`` for a missing, truncated or foreign file, a git-LFS pointer and a
    checkpoint that only has pickles.
    """
    if not path.is_dir():
        raise CheckpointError(
            f"no checkpoint folder at {path}; give a folder or a hub id (owner/name)"
        )
    index = path / INDEX
    if index.exists():
        return _read_indexed(path, read_json(index))
    tensors: dict[str, TensorHeader] = {}
    for file in _weight_files(path):
        for name, header in read_file_headers(file).items():
            if name in tensors:
                raise CheckpointError(
                    f"the tensor {name!r} is in both {tensors[name].file.name} and {file.name}; "
                    f"remove the file that is left over, or {_AGAIN}"
                )
            tensors[name] = header
    return tensors


def read_file_headers(file: Path) -> dict[str, TensorHeader]:
    """The tensors of one safetensors file; ``CheckpointError`` where it is not whole."""
    try:
        with file.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            prefix = handle.read(_PREFIX_BYTES)
            length = int.from_bytes(prefix, "little")
            if prefix + handle.read(len(LFS_MARK) - _PREFIX_BYTES) == LFS_MARK:
                raise lfs_error(file)
            if len(prefix) < _PREFIX_BYTES or _PREFIX_BYTES + length > size:
                raise CheckpointError(
                    f"{file} is truncated inside its header ({size} bytes); {_AGAIN}"
                )
            if length > _MAX_HEADER_BYTES:
                raise _foreign(file, f"a header of {length} bytes")
            handle.seek(_PREFIX_BYTES)
            raw = handle.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}; {_AGAIN}") from error
    tensors = _parse(file, raw)
    _check_size(file, tensors, size=size, data_start=_PREFIX_BYTES + length)
    return tensors


def _read_indexed(path: Path, index: dict[str, Any]) -> dict[str, TensorHeader]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path / INDEX} has no weight_map; {_AGAIN}")
    files = sorted({str(name) for name in weight_map.values()})
    for name in files:
        if Path(name).name != name:
            raise CheckpointError(f"{path / INDEX} names {name!r}, outside its folder; {_AGAIN}")
    missing = [name for name in files if not (path / name).exists()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(files)} weight files are missing from {path}, "
            f"{missing[0]} first; {_AGAIN}"
        )
    shards = {name: read_file_headers(path / name) for name in files}
    tensors: dict[str, TensorHeader] = {}
    for name, file in weight_map.items():
        if name not in shards[str(file)]:
            raise CheckpointError(
                f"{path / file} lacks the tensor {name!r} that the index names; {_AGAIN}"
            )
        tensors[name] = shards[str(file)][name]
    return tensors


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files to read where there is no index; engines prefer the same ones."""
    try:
        files = sorted(path.iterdir())
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror or error}; check its owner and permissions"
        ) from error
    found = [file for file in files if file.suffix == ".safetensors"]
    single = path / "model.safetensors"
    if single in found:
        return [single]
    # Mistral ships the same weights twice, in its own layout as consolidated*.
    ordinary = [file for file in found if not file.name.startswith(("consolidated", "adapter_"))]
    if ordinary:
        return ordinary
    if any(file.name.startswith("adapter_") for file in found):
        raise CheckpointError(
            f"{path} holds an adapter, not a model; merge it into its base model first"
        )
    if any(file.suffix in _PICKLES for file in files):
        raise CheckpointError(
            f"{path} holds pickled weights only, which run code when they are loaded; convert them "
            "with save_pretrained(…, safe_serialization=True) on a machine you can lose, or choose "
            "a safetensors checkpoint"
        )
    if any(file.suffix == ".gguf" for file in files):
        raise CheckpointError(
            f"{path} holds GGUF weights; give the safetensors checkpoint they were made of"
        )
    raise CheckpointError(f"{path} holds no *.safetensors file; {_AGAIN}")


def _parse(file: Path, raw: bytes) -> dict[str, TensorHeader]:
    start = _PREFIX_BYTES + len(raw)
    try:
        entries = json.loads(raw)
        entries.pop("__metadata__", None)
        return {name: _tensor(name, entry, file, start) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _foreign(file, "its header cannot be parsed") from error


def _tensor(name: str, entry: dict[str, Any], file: Path, data_start: int) -> TensorHeader:
    shape = tuple(int(side) for side in entry["shape"])
    first, last = (int(offset) for offset in entry["data_offsets"])
    dtype = str(entry["dtype"])
    if dtype not in BITS:
        raise _foreign(file, f"the tensor {name!r} has the unknown dtype {dtype}")
    if last - first != math.ceil(math.prod(shape) * BITS[dtype] / 8) or first < 0:
        raise _foreign(file, f"the tensor {name!r} does not fill its bytes")
    return TensorHeader(
        name=name,
        dtype=dtype,
        shape=shape,
        file=file,
        start=data_start + first,
        end=data_start + last,
    )


def _check_size(
    file: Path, tensors: Mapping[str, TensorHeader], *, size: int, data_start: int
) -> None:
    expected = max((tensor.end for tensor in tensors.values()), default=data_start)
    if size < expected:
        raise CheckpointError(
            f"{file} is truncated: {size} of {expected} bytes are there; {_AGAIN}"
        )
    if sum(tensor.size_bytes for tensor in tensors.values()) != expected - data_start:
        raise _foreign(file, "its tensors overlap or leave gaps")
    if size > expected:
        raise _foreign(file, f"{size - expected} bytes follow the last tensor")


def _foreign(file: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{file} is not a whole safetensors file: {what}; {_AGAIN}")
