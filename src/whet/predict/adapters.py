"""Whether a LoRA adapter can belong to a model, by the shapes of its matrices."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Final

from whet.checkpoint.headers import read_file_headers

_WEIGHTS: Final = "adapter_model.safetensors"
_A: Final = ".lora_A.weight"


def foreign_width(folder: Path, widths: Set[int]) -> tuple[str, int] | None:
    """The first module of an adapter whose input width is not in ``widths``, with that width.

    ``A`` of PEFT's format has the shape (rank, input width). None if all fit, or if the
    adapter is not stored as safetensors. ``CheckpointError`` for a file that is not whole.
    """
    file = folder / _WEIGHTS
    if not file.exists() or not widths:
        return None
    for name, header in sorted(read_file_headers(file).items()):
        if name.endswith(_A) and len(header.shape) == 2 and header.shape[1] not in widths:
            return name.removesuffix(_A).removeprefix("base_model.model."), header.shape[1]
    return None
