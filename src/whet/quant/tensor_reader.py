"""Read single tensors of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whet.checkpoint import read_headers
from whet.core.errors import CheckpointError

_HOST = torch.device("cpu")


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
        try:
            tensor: Tensor = self._opened(file, str(device)).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"the tensor {name!r} of {file} cannot be read ({error})",
                fix="download the checkpoint again",
            ) from error
        return tensor

    def _opened(self, file: Path, device: str) -> Any:
        """A file, opened once: a shard's header names ten thousand tensors of experts."""
        if (file, device) not in self._files:
            self._files[file, device] = safe_open(file, framework="pt", device=device)
        return self._files[file, device]

    def read_below(self, prefix: str, device: torch.device = _HOST) -> dict[str, Tensor]:
        """Every tensor whose name starts with ``prefix``, by the rest of its name."""
        names = [name for name in self.headers if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.read(name, device) for name in names}
