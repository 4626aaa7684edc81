"""The files of a checkpoint beside its weights."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from whet.core.store import translate_disk_errors, write_json
from whet.quant.checkpoint_record import RECORD

_BESIDE: Final = re.compile(r"(?i)[^.].*\.(json|jinja|txt|model|tiktoken)|(license|notice)[^/]*")
_REPLACED: Final = {"config.json", RECORD}


def copy_beside(source: Path, folder: Path) -> None:
    """Copy the tokenizer, generation config and licence byte for byte.

    Weights, code and the model card are not copied: the card describes the 16-bit model.
    """
    with translate_disk_errors(folder):
        for path in source.iterdir():
            replaced = path.name in _REPLACED or path.name.endswith(".index.json")
            if path.is_file() and _BESIDE.fullmatch(path.name) and not replaced:
                shutil.copyfile(path, folder / path.name)


def write_config(source: Path, folder: Path, quantization: Mapping[str, Any]) -> None:
    """config.json of the source with ``quantization_config`` added, nothing else changed."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = dict(quantization)
    write_json(folder / "config.json", config)
