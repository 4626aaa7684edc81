"""Read the tensors of a checkpoint one by one, and write them shard by shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from whet.checkpoint.headers import INDEX, read_headers
from whet.core.errors import CheckpointError, StorageError
from whet.core.store import translate_disk_errors, write_json
from whet.core.units import GB

SHARD_BYTES: Final = 4 * GB
_HOST: Final = torch.device("cpu")


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
        """Write the last shard, name the shards, and add the index if there are several."""
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
        write_json(self._folder / INDEX, index)

    def _part(self, number: int) -> Path:
        return self._folder / f"shard-{number:05d}.safetensors"

    def _flush(self) -> None:
        part = self._part(len(self._shards) + 1)
        try:
            with translate_disk_errors(self._folder):
                save_file(self._pending, part, metadata={"format": "pt"})
                part.chmod(0o644)  # the library sets 0600; a container may run as another user
        except SafetensorError as error:
            # The library reports a full disk as an error of its own, not as an OSError.
            raise StorageError(
                f"cannot write {part.parent} ({error})",
                fix="free some space on its disk and run again",
            ) from error
        self._shards.append(list(self._pending))
        self._pending, self._pending_bytes = {}, 0


class TensorReader:
    """A checkpoint folder whose tensors are read one by one."""

    def __init__(self, folder: Path) -> None:
        """Read the headers; ``CheckpointError`` where a file is missing or not whole."""
        self.folder = folder
        self.headers = read_headers(folder)
        self._files: dict[tuple[Path, str], Any] = {}

    def read(self, name: str, device: torch.device = _HOST) -> Tensor:
        """One tensor on ``device``."""
        file = self.headers[name].file
        key = (file, str(device))
        try:
            if key not in self._files:  # a shard's header names ten thousand tensors of experts
                self._files[key] = safe_open(file, framework="pt", device=key[1])
            tensor: Tensor = self._files[key].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"the tensor {name!r} of {file} cannot be read ({error})",
                fix="download the checkpoint again",
            ) from error
        return tensor

    def read_below(self, prefix: str, device: torch.device = _HOST) -> dict[str, Tensor]:
        """Every tensor whose name starts with ``prefix``, by the rest of its name."""
        names = [name for name in self.headers if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.read(name, device) for name in names}
