"""Safetensors headers: which tensors a checkpoint holds and where, without loading one.

A file is 8 bytes of header length (little endian), the header as JSON, then the data without gaps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from whet.checkpoint.files import LFS_MARK, lfs_error, read_json
from whet.core.errors import CheckpointError

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


def refuse_gguf(file: Path) -> None:
    """Raise ``CheckpointError`` for a GGUF file."""
    if file.suffix == ".gguf":
        raise CheckpointError(
            f"{file} holds GGUF weights", fix="give the safetensors checkpoint they were made of"
        )


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
    if any(file.name.startswith("adapter_") for file in weights):
        raise CheckpointError(
            f"{path} holds an adapter, not a model", fix="merge it into its base model first"
        )
    if any(file.suffix in _PICKLES for file in files):
        raise CheckpointError(
            f"{path} holds pickled weights only, which run code when they are loaded",
            fix="convert them "
            "with save_pretrained(…, safe_serialization=True) in a sandbox, or choose a "
            "safetensors checkpoint",
        )
    for file in files:
        refuse_gguf(file)
    raise CheckpointError(f"{path} holds no *.safetensors file", fix=_AGAIN)
