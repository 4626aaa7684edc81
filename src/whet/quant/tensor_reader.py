"""Read single tensors of a checkpoint."""

from __future__ import annotations

from pathlib import Path

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

    def read(self, name: str, device: torch.device = _HOST) -> Tensor:
        """One tensor on ``device``."""
        file = self.headers[name].file
        try:
            with safe_open(file, framework="pt", device=str(device)) as shard:
                tensor: Tensor = shard.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"the tensor {name!r} of {file} cannot be read ({error}); download the checkpoint "
                "again"
            ) from error
        return tensor

    def read_below(self, prefix: str, device: torch.device = _HOST) -> dict[str, Tensor]:
        """Every tensor whose name starts with ``prefix``, by the rest of its name."""
        names = [name for name in self.headers if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.read(name, device) for name in names}
