"""What a testbed is made of: a small model on its way to large sizes, and what came of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from whet.checkpoint import hash_weights, read_headers
from whet.checkpoint.config import read_shape
from whet.checkpoint.files import read_json
from whet.checkpoint.headers import BITS, INDEX
from whet.core.errors import CheckpointError, InfeasibleError, StorageError
from whet.core.store import translate_disk_errors
from whet.demo.shapes import Sizes
from whet.demo.widen import Widening, source_shapes


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """One model of a testbed: its folder, its role (target, draft), and what it cost."""

    folder: Path
    role: str
    sizes: Sizes
    parameters: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A small model to be widened, and what it is to become."""

    folder: Path
    role: str
    config: Mapping[str, Any]
    widening: Widening
    sha256: str
    element_bytes: int

    @property
    def size_bytes(self) -> int:
        """What the large model's tensors take on disk."""
        return self.widening.wide.parameters() * self.element_bytes


def read_source(folder: Path, sizes: Sizes, *, role: str) -> Source:
    """The small model of ``folder`` on its way to ``sizes``.

    Raises ``CheckpointError`` where it is no Llama without biases whose head is its embedding, and
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
    found = {name: header.shape for name, header in headers.items()}
    if not narrow.tied or found != source_shapes(narrow) or len(dtypes) != 1:
        raise CheckpointError(
            f"{folder} is no Llama of one dtype, without biases and with its head tied to its "
            "embedding; a testbed is made of the bundled demo pair"
        )
    wide = replace(sizes, tied=sizes.vocabulary == narrow.vocabulary)
    widening = Widening(narrow=narrow, wide=wide, epsilon=float(config["rms_norm_eps"]))
    widening.require_possible()
    return Source(
        folder=folder,
        role=role,
        config=config,
        widening=widening,
        sha256=hash_weights(headers),
        element_bytes=BITS[dtypes.pop()] // 8,
    )


def save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write one safetensors file; ``StorageError`` where the disk has no room."""
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:
        # The library reports a full disk as its own error, so the number is in the words.
        raise StorageError(
            f"cannot write {file.parent} ({error}); free some space on its disk and run again"
        ) from error
    file.chmod(0o644)  # the library leaves 0600, and a container may serve as another user


@contextmanager
def new_model(folder: Path, role: str, device: torch.device) -> Iterator[None]:
    """Make ``folder`` for one model to be written inside.

    ``StorageError`` where the disk refuses, ``InfeasibleError`` where the GPU has no room for a
    tensor.
    """
    with translate_disk_errors(folder):
        folder.mkdir(parents=True)
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise InfeasibleError(
                f"the {role}'s largest tensor has no room on {device}; free the GPU, or make it "
                "with --device cpu"
            ) from error


def copy_tokenizer(source: Path, folder: Path) -> None:
    """The tokenizer's files and the generation settings, byte for byte."""
    for path in sorted(source.glob("*.json")):
        if path.name not in ("config.json", INDEX):
            shutil.copyfile(path, folder / path.name)
