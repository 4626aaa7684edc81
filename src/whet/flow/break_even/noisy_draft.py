"""Drafts of graded quality: one draft's weights mixed with noise, at the same shape and cost.

A CPU has no synthetic acceptance. What a worse draft of the same cost would bring is measured with
one: its linear layers partly replaced by noise, everything else the draft's own.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from whet.checkpoint import read_facts
from whet.core.errors import CheckpointError, UsageError
from whet.core.store import translate_disk_errors

if TYPE_CHECKING:
    import torch

_COPIED: Final = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
_MATRIX: Final = 2


def write_noisy_draft(draft: Path, out: Path, *, noise: float, seed: int = 0) -> Path:
    """Write ``draft`` to ``out`` with every linear weight W as √(1−s²)·W + s·rms(W)·ε.

    ``s`` = ``noise`` from 0 (the draft itself, bit by bit) to 1 (nothing of its linear layers is
    left); ε is standard normal. The two parts add up to the old root mean square, so activations
    keep their scale. ε depends on ``seed`` and the tensor's name alone: levels of one seed go
    along one line. Embeddings, norms and biases stay, and so does a head tied to the embeddings.
    ``out`` appears whole or not at all. Returns ``out``.

    Raises ``UsageError`` for a share outside of 0 to 1 and ``CheckpointError`` for a draft whose
    linear layers are stored quantized: noise in packed integers has no scale.
    """
    if not 0 <= noise <= 1:
        raise UsageError(f"noise {noise:g} is not a share; give one from 0 to 1")
    if read_facts(draft).stored.quantized_modules > 0:
        raise CheckpointError(
            f"{draft} is stored quantized and cannot be mixed with noise; give a draft in 16 bits"
        )
    staging = out.with_name(f".{out.name}.{os.getpid()}.part")
    with translate_disk_errors(out):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        try:
            _write(draft, staging, noise, seed)
            shutil.rmtree(out, ignore_errors=True)
            staging.rename(out)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return out


def _write(draft: Path, folder: Path, noise: float, seed: int) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    for pattern in _COPIED:
        for file in sorted(draft.glob(pattern)):
            shutil.copyfile(file, folder / file.name)
    for file in sorted(draft.glob("*.safetensors")):
        with safe_open(file, framework="pt") as shard:
            metadata = shard.metadata()
            tensors = {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
        mixed = {name: _mix(name, value, noise, seed) for name, value in tensors.items()}
        save_file(mixed, folder / file.name, metadata=metadata)


def _mix(name: str, weight: torch.Tensor, noise: float, seed: int) -> torch.Tensor:
    import torch

    linear = name.endswith(".weight") and weight.dim() >= _MATRIX and "embed" not in name
    if not linear or noise == 0 or not weight.is_floating_point():
        return weight
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    whole = weight.float()
    epsilon = torch.randn(whole.shape, generator=generator)
    scale = noise * whole.square().mean().sqrt()
    return (math.sqrt(1 - noise**2) * whole + scale * epsilon).to(weight.dtype).contiguous()
