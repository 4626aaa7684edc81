"""The models of a testbed: the small source, its target sizes, and the written result."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from lab.sizes import Sizes
from lab.widen import Widening, source_shapes
from whet.checkpoint import hash_weights, read_headers
from whet.checkpoint.config import read_shape
from whet.checkpoint.files import read_json
from whet.checkpoint.headers import BITS, INDEX
from whet.core.errors import CheckpointError, InfeasibleError
from whet.core.store import translate_disk_errors

Role = Literal["target", "draft", "eagle3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenModel:
    """One model of a testbed, and what it took to write."""

    folder: Path
    role: Role
    sizes: Sizes
    parameters: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceModel:
    """A small model and the sizes to widen it to."""

    folder: Path
    role: Role
    config: Mapping[str, Any]
    widening: Widening
    sha256: str
    element_bytes: int

    @property
    def size_bytes(self) -> int:
        """Size of the large model's tensors on disk."""
        return self.widening.wide.parameters() * self.element_bytes


def read_source(folder: Path, sizes: Sizes, *, role: Role) -> SourceModel:
    """Read the small model in ``folder``, to be widened to ``sizes``.

    Raises ``CheckpointError`` unless it is a Llama without biases whose head is its embedding, and
    ``UsageError`` where it does not fit into the sizes.
    """
    config, shape = read_json(folder / "config.json"), read_shape(folder)
    headers = read_headers(folder)
    narrow = Sizes(
        hidden=shape.hidden_size,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        intermediate=shape.intermediate_size,
        head_dim=shape.head_dim,
        vocabulary=shape.vocab_size,
        tied=bool(shape.tied_embeddings),
    )
    dtypes = {header.dtype for header in headers.values()}
    shapes = {name: header.shape for name, header in headers.items()}
    if not narrow.tied or shapes != source_shapes(narrow) or len(dtypes) != 1:
        raise CheckpointError(
            f"{folder} must be a Llama of one dtype, without biases and with its head tied to its "
            "embedding, as the bundled demo pair is"
        )
    wide = replace(sizes, tied=sizes.vocabulary == narrow.vocabulary)
    widening = Widening(narrow=narrow, wide=wide, epsilon=float(config["rms_norm_eps"]))
    widening.require_possible()
    return SourceModel(
        folder=folder,
        role=role,
        config=config,
        widening=widening,
        sha256=hash_weights(headers),
        element_bytes=BITS[dtypes.pop()] // 8,
    )


@contextmanager
def new_model(folder: Path, role: str, device: torch.device) -> Iterator[None]:
    """Make ``folder`` and write one model into it inside the block.

    ``StorageError`` where the disk fails, ``InfeasibleError`` where a tensor does not fit on the
    GPU.
    """
    with translate_disk_errors(folder):
        folder.mkdir(parents=True)
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise InfeasibleError(
                f"the largest tensor of the {role} does not fit on {device}; free the GPU, or use "
                "--device cpu"
            ) from error


def copy_tokenizer(source: Path, folder: Path) -> None:
    """The tokenizer's files and the generation settings, byte for byte."""
    for path in sorted(source.glob("*.json")):
        if path.name not in ("config.json", INDEX):
            shutil.copyfile(path, folder / path.name)
