"""Safetensors files: which tensors a checkpoint holds and where, and a hash of their bytes.

A file is 8 bytes of header length (little endian), the header as JSON, then the data without gaps.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from whet.checkpoint.files import LFS_MARK, lfs_error, read_json, refuse_adapter, refuse_gguf
from whet.core.errors import CheckpointError
from whet.core.units import GIB, KIB, MIB

INDEX: Final = "model.safetensors.index.json"
BITS: Final[Mapping[str, int]] = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I8": 8, "U8": 8, "BOOL": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
_PREFIX_BYTES: Final = 8
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_AGAIN: Final = "download the checkpoint again"
_CONVERT: Final = (
    "convert them with save_pretrained(…, safe_serialization=True) in a sandbox, or choose a "
    "safetensors checkpoint"
)
WHOLE_UP_TO_BYTES: Final = 1 * GIB
SAMPLE_BYTES: Final = 16 * KIB
SAMPLES: Final = 16
MAX_READS: Final = 64 * KIB
_CHUNK_BYTES: Final = 4 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorHeader:
    """One stored tensor. ``dtype`` is safetensors' name (``BF16``); offsets are the file's."""

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

    def read(self, most: int = MIB) -> bytes:
        """Return the first bytes of its data, at most ``most``."""
        with self.file.open("rb") as file:
            file.seek(self.start)
            return file.read(min(most, self.size_bytes))


def read_headers(path: Path) -> Mapping[str, TensorHeader]:
    """Every tensor of the checkpoint folder ``path`` by name, every file checked to be whole.

    Raises ``CheckpointError`` for a missing, truncated or foreign file, a git-LFS pointer and a
    checkpoint that only has pickles.
    """
    if not path.is_dir():
        raise CheckpointError(
            f"no checkpoint folder at {path}", fix="give a folder or a hub id (owner/name)"
        )
    index = path / INDEX
    if index.exists():
        return _read_indexed(path, read_json(index))
    tensors: dict[str, TensorHeader] = {}
    for file in _weight_files(path):
        for name, header in read_file_headers(file).items():
            if name in tensors:
                raise CheckpointError(
                    f"the tensor {name!r} is in both {tensors[name].file.name} and {file.name}",
                    fix=f"remove the file that is left over, or {_AGAIN}",
                )
            tensors[name] = header
    return tensors


def read_file_headers(file: Path) -> dict[str, TensorHeader]:
    """The tensors of one safetensors file; ``CheckpointError`` where it is not whole."""
    try:
        with file.open("rb") as handle:
            begin = handle.read(len(LFS_MARK))
        if begin == LFS_MARK:
            raise lfs_error(file)
        refuse_gguf(str(file), begin)
        with safe_open(file, framework="numpy") as opened:
            entries = [(name, opened.get_slice(name)) for name in opened.offset_keys()]
            forms = [(name, each.get_dtype(), tuple(each.get_shape())) for name, each in entries]
    except OSError as error:
        raise CheckpointError(
            f"cannot read {file}: {error.strerror or error}", fix=_AGAIN
        ) from error
    except SafetensorError as error:
        raise CheckpointError(
            f"{file} is not a whole safetensors file ({error})", fix=_AGAIN
        ) from error
    tensors: dict[str, TensorHeader] = {}
    end = _PREFIX_BYTES + int.from_bytes(begin[:_PREFIX_BYTES], "little")
    for name, dtype, shape in forms:  # the library refuses files with gaps between tensors
        start, end = end, end + math.prod(shape) * BITS[dtype] // 8
        tensors[name] = TensorHeader(
            name=name, dtype=dtype, shape=shape, file=file, start=start, end=end
        )
    return tensors


def _read_indexed(path: Path, index: dict[str, Any]) -> dict[str, TensorHeader]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path / INDEX} has no weight_map", fix=_AGAIN)
    files = sorted({str(name) for name in weight_map.values()})
    for name in files:
        if Path(name).name != name:
            raise CheckpointError(f"{path / INDEX} names {name!r}, outside its folder", fix=_AGAIN)
    missing = [name for name in files if not (path / name).exists()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(files)} weight files are missing from {path}, "
            f"{missing[0]} first",
            fix=_AGAIN,
        )
    shards = {name: read_file_headers(path / name) for name in files}
    tensors: dict[str, TensorHeader] = {}
    for name, file in weight_map.items():
        if name not in shards[str(file)]:
            raise CheckpointError(
                f"{path / file} lacks the tensor {name!r} that the index names", fix=_AGAIN
            )
        tensors[name] = shards[str(file)][name]
    return tensors


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files to read where there is no index; engines prefer the same ones."""
    try:
        files = sorted(path.iterdir())
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror or error}", fix="check its owner and permissions"
        ) from error
    weights = [file for file in files if file.suffix == ".safetensors"]
    single = path / "model.safetensors"
    if single in weights:
        return [single]
    # Mistral ships the same weights twice, in its own layout as consolidated*.
    ordinary = [file for file in weights if not file.name.startswith(("consolidated", "adapter_"))]
    if ordinary:
        return ordinary
    refuse_adapter(path)
    if any(file.suffix in _PICKLES for file in files):
        raise CheckpointError(
            f"{path} holds pickled weights only, which run code when they are loaded", fix=_CONVERT
        )
    for file in files:
        refuse_gguf(str(file))
    raise CheckpointError(f"{path} holds no *.safetensors file", fix=_AGAIN)


def hash_weights(
    headers: Mapping[str, TensorHeader], *, whole_up_to_bytes: int = WHOLE_UP_TO_BYTES
) -> str:
    """SHA-256 over every tensor's name, dtype, shape and bytes, in the order of the names.

    How the tensors are spread over files does not matter. Above ``whole_up_to_bytes`` in all, 16
    pages of 16 KiB are read per tensor, first and last included, fewer where there are over 4,096
    large tensors (``MAX_READS``): training, quantizing and merging change nearly every element and
    so every page; a single flipped bit may go undetected.
    """
    samples = _samples(headers, whole_up_to_bytes)
    names = sorted(headers)
    try:
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            digests = list(pool.map(lambda name: _digest(headers[name], samples), names))
    except OSError as error:
        raise CheckpointError(
            f"the weights cannot be read ({error.strerror or error})",
            fix="check the disk and the path",
        ) from error
    total = hashlib.sha256(
        {None: b"whole", SAMPLES: b"sampled"}.get(samples, b"sampled %d" % (samples or 0))
    )
    for name, digest in zip(names, digests, strict=True):
        header = headers[name]
        total.update(f"{name}\0{header.dtype}\0{header.shape}\0".encode() + digest)
    return total.hexdigest()


def _samples(headers: Mapping[str, TensorHeader], whole_up_to_bytes: int) -> int | None:
    """Pages to read of each large tensor; None where all of everything is read."""
    sizes = [header.size_bytes for header in headers.values()]
    if sum(sizes) <= whole_up_to_bytes:
        return None
    large = sum(size > SAMPLES * SAMPLE_BYTES for size in sizes)
    return min(SAMPLES, max(1, MAX_READS // max(large, 1)))


def _digest(header: TensorHeader, samples: int | None) -> bytes:
    """The hash of one tensor's bytes, or of pages spread evenly over them."""
    state = hashlib.sha256()
    with header.file.open("rb", buffering=0) as file:
        for start, size in _spans(header, samples):
            file.seek(start)
            state.update(file.read(size))
    return state.digest()


def _spans(header: TensorHeader, samples: int | None) -> Iterator[tuple[int, int]]:
    if samples is None or header.size_bytes <= SAMPLES * SAMPLE_BYTES:
        for start in range(header.start, header.end, _CHUNK_BYTES):
            yield start, min(_CHUNK_BYTES, header.end - start)
        return
    stride = (header.size_bytes - SAMPLE_BYTES) / max(samples - 1, 1)
    for index in range(samples):
        yield header.start + round(index * stride), SAMPLE_BYTES
