"""LoRA adapters in PEFT's format: what an engine has to be told of one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from whet.checkpoint.files import read_json
from whet.core.errors import CheckpointError

_CONFIG: Final = "adapter_config.json"


def lora_rank(folder: Path) -> int:
    """The rank that an engine must have room for: the largest of ``r`` and of ``rank_pattern``.

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
    own = pattern.values() if isinstance(pattern, dict) else [pattern]
    return max(_rank(found, file) for found in (config.get("r"), *own))


def _rank(found: object, file: Path) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise CheckpointError(f"{file} has no rank: it says {found!r}; save the adapter again")
    return found
