"""LoRA adapters in PEFT's format: the rank, which an engine needs as an option."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from whet.checkpoint.files import read_json
from whet.core.errors import CheckpointError

_CONFIG: Final = "adapter_config.json"


def lora_rank(folder: Path) -> int:
    """The largest of ``r`` and of ``rank_pattern``.

    PEFT's ``rank_pattern`` gives single modules ranks of their own.
    ``CheckpointError`` where the folder holds no adapter or its configuration has no rank.
    """
    file = folder / _CONFIG
    if not file.exists():
        raise CheckpointError(
            f"{folder} has no {_CONFIG}; give the folder that PEFT's save_pretrained wrote"
        )
    config = read_json(file)
    pattern = config.get("rank_pattern") or {}
    others = pattern.values() if isinstance(pattern, dict) else [pattern]
    return max(_rank(value, file) for value in (config.get("r"), *others))


def _rank(value: object, file: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{file} has no valid rank (got {value!r}); save the adapter again")
    return value
