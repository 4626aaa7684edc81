"""Writing a checkpoint shard by shard, and the files beside the weights."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from whet.core.errors import StorageError
from whet.core.store import translate_disk_errors, write_json
from whet.core.units import GB
from whet.quant.finished import RECORD

SHARD_BYTES: Final = 4 * GB

_INDEX: Final = "model.safetensors.index.json"
_BESIDE: Final = re.compile(r"(?i)[^.].*\.(json|jinja|txt|model|tiktoken)|(license|notice)[^/]*")
_REPLACED: Final = {"config.json", RECORD}


class ShardWriter:
    """Collects tensors and writes a shard whenever the next tensor would overfill it."""

    def __init__(self, folder: Path, *, shard_bytes: int = SHARD_BYTES) -> None:
        """Write into ``folder``, at most ``shard_bytes`` a file unless one tensor is larger."""
        self._folder = folder
        self._limit = shard_bytes
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = 0
        self._shards: list[list[str]] = []
        self._total_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Take one tensor on the host."""
        size = tensor.numel() * tensor.element_size()
        if self._pending and self._pending_bytes + size > self._limit:
            self._flush()
        self._pending[name] = tensor.contiguous()
        self._pending_bytes += size
        self._total_bytes += size

    def finish(self) -> None:
        """Write what is left, name the shards, and add the index if there are many."""
        if self._pending:
            self._flush()
        count = len(self._shards)
        if count == 1:
            self._part(1).rename(self._folder / "model.safetensors")
            return
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._shards, start=1):
            final = f"model-{number:05d}-of-{count:05d}.safetensors"
            self._part(number).rename(self._folder / final)
            weight_map |= dict.fromkeys(names, final)
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        write_json(self._folder / _INDEX, index)

    def _part(self, number: int) -> Path:
        return self._folder / f"shard-{number:05d}.safetensors"

    def _flush(self) -> None:
        part = self._part(len(self._shards) + 1)
        try:
            with translate_disk_errors(self._folder):
                save_file(self._pending, part, metadata={"format": "pt"})
                part.chmod(
                    0o644
                )  # the library leaves 0600, and a container may serve as another user
        except SafetensorError as error:
            # The library reports a full disk as its own error, so the number is in the words.
            raise StorageError(
                f"cannot write {part.parent} ({error}); free some space on its disk and run again"
            ) from error
        self._shards.append(list(self._pending))
        self._pending, self._pending_bytes = {}, 0


def copy_beside(source: Path, folder: Path) -> list[str]:
    """Copy the tokenizer, generation config and licence byte for byte; returns their names.

    Weights, code and the model card stay behind: the card describes the 16-bit model.
    """
    names = sorted(
        path.name
        for path in source.iterdir()
        if path.is_file() and _BESIDE.fullmatch(path.name) and not _foreign(path.name)
    )
    with translate_disk_errors(folder):
        for name in names:
            shutil.copyfile(source / name, folder / name)
    return names


def _foreign(name: str) -> bool:
    return name in _REPLACED or name.endswith(".index.json")


def write_config(source: Path, folder: Path, quantization: dict[str, Any]) -> None:
    """config.json of the source with ``quantization_config`` added, nothing else changed."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", {**config, "quantization_config": quantization})
