"""The PyTorch device of a command's ``--device``, and its memory."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from whet.core.errors import UsageError

if TYPE_CHECKING:
    import torch


def pick_device(wanted: str | None) -> torch.device:
    """The device ``wanted``, or the first GPU, or the CPU; ``UsageError`` where it is missing."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        device = torch.device(wanted or ("cuda" if gpus else "cpu"))
    except RuntimeError as error:
        raise UsageError(f"unknown device {wanted!r}", fix="use cpu or cuda") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not gpus):
        raise UsageError(f"the device {wanted!r} is not available here", fix="use cpu")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UsageError(f"{wanted} does not exist ({gpus} GPUs here)", fix="use cuda")
    return device


def release_memory() -> None:
    """Free what PyTorch holds of deleted tensors; a server may need it next."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
