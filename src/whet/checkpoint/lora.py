"""LoRA adapters in PEFT's format: their rank, and whether they can belong to a model."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, Final

from whet.checkpoint.files import read_json, require_regular
from whet.checkpoint.headers import read_file_headers
from whet.core.errors import CheckpointError

_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_LARGEST: Final = 512
"""vLLM's largest --max-lora-rank."""
_SHOWN: Final = 40
_A: Final = ".lora_A.weight"


def lora_rank(folder: Path) -> int:
    """The largest of ``r`` and of ``rank_pattern``.

    PEFT's ``rank_pattern`` gives single modules ranks of their own.
    ``CheckpointError`` where the folder holds no adapter or its configuration has no rank.
    """
    require_regular(folder)
    file = folder / _CONFIG
    if not file.exists():
        raise CheckpointError(
            f"{folder} has no {_CONFIG}", fix="give the folder that PEFT's save_pretrained wrote"
        )
    config = read_json(file)
    _require_weights(folder, config)
    pattern = config.get("rank_pattern") or {}
    others = pattern.values() if isinstance(pattern, dict) else [pattern]
    return max(_rank(value, file) for value in (config.get("r"), *others))


def _rank(value: object, file: Path) -> int:
    if type(value) is not int or not 1 <= value <= _LARGEST:
        raise CheckpointError(
            f"{file} has no valid rank (got {str(value)[:_SHOWN]}, possible is 1 to {_LARGEST:,})",
            fix="save the adapter again",
        )
    return value


def _require_weights(folder: Path, config: Mapping[str, Any]) -> None:
    """``CheckpointError`` unless the folder has the adapter's tensors, as safetensors."""
    file = folder / _WEIGHTS
    if not file.exists():
        pickled = any(folder.glob("adapter_model.*"))
        raise CheckpointError(
            f"{folder} has its weights as a pickle only, which runs code when it is loaded; save "
            f"them as {_WEIGHTS}"
            if pickled
            else f"{folder} has no {_WEIGHTS}; copy the whole folder that PEFT wrote"
        )
    named = config.get("target_modules")
    modules = {str(each).rpartition(".")[2] for each in named} if isinstance(named, list) else set()
    tensors = [name for name in read_file_headers(file) if ".lora_" in name]
    stored = {name.partition(".lora_")[0].rpartition(".")[2] for name in tensors}
    if not stored or (modules and not stored <= modules):
        raise CheckpointError(
            f"{file} holds LoRA weights of {', '.join(sorted(stored)) or 'nothing'}, and {_CONFIG} "
            f"names {', '.join(sorted(modules)) or 'none'}",
            fix="save the adapter again",
        )


def foreign_width(folder: Path, widths: Set[int]) -> tuple[str, int] | None:
    """Return the first module whose input width is not in ``widths``, with that width.

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
