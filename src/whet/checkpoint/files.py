"""The JSON files and the chat template of a checkpoint, and git-LFS pointers found instead."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any, Final

from whet.core.errors import CheckpointError
from whet.core.outside import json_value, read_bytes, read_text

_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
LFS_MARK: Final = b"version https://git-lfs.github.com/spec/"
_SHOWN: Final = 96


def require_regular(folder: Path) -> None:
    """``CheckpointError`` for a pipe, a socket or a device (it would not end), and GGUF alone."""
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    for entry in entries:
        if entry.exists() and not (entry.is_file() or entry.is_dir()):
            raise CheckpointError(
                f"{entry} is a pipe, a socket or a device, not a file",
                fix="put the file in its place",
            )
        if not (folder / "config.json").exists():
            refuse_gguf(str(entry))


def refuse_gguf(ref: str, begin: bytes = b"") -> None:
    """Raise ``CheckpointError`` for GGUF: the name or begin of a file, or a hub repository's."""
    name = ref.lower().partition(":")[0]  # a hub id may name one of its files
    if name.endswith((".gguf", "-gguf")) or begin.startswith(b"GGUF"):
        raise CheckpointError(
            f"{ref} holds GGUF weights",
            fix="give the safetensors checkpoint they were made of, or write one with "
            "from_pretrained(…, gguf_file=…).save_pretrained(…) of transformers",
        )


def refuse_adapter(folder: Path) -> None:
    """Raise ``CheckpointError`` for a folder with the files of an adapter."""
    if any(folder.glob("adapter_[cm]o*")):  # adapter_config.json, adapter_model.*
        config = read_json_if_any(folder / "adapter_config.json")
        base = str(config.get("base_model_name_or_path") or "its base model")[:_SHOWN]
        raise CheckpointError(
            f"{folder} holds an adapter of {base!r}, not a model",
            fix="merge it into that model first (merge_and_unload of peft)",
        )


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in ``file``; ``CheckpointError`` where it is missing or not one."""
    try:
        raw = read_bytes(file, regular=True)
    except FileNotFoundError as error:
        refuse_adapter(file.parent)
        raise CheckpointError(
            f"{file.parent} has no {file.name}",
            fix="give the folder of a whole Hugging Face checkpoint",
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise CheckpointError(
            f"cannot read {file}: {reason or error}", fix="check the path"
        ) from error
    if raw.startswith(LFS_MARK):
        raise lfs_error(file)
    try:
        if raw.startswith(_MARKS):  # transformers refuses it too
            raise ValueError("a byte-order mark")
        data = json_value(raw)
    except ValueError as error:
        mark = "it begins with a byte-order mark; save it as UTF-8 without one, or "
        raise CheckpointError(
            f"{file} is not valid JSON",
            fix=f"{mark if raw.startswith(_MARKS) else ''}download the checkpoint again",
        ) from error
    if not isinstance(data, dict):
        raise CheckpointError(
            f"{file} does not hold a JSON object", fix="download the checkpoint again"
        )
    return data


def read_json_if_any(file: Path) -> dict[str, Any]:
    """As ``read_json``, and an empty object where there is no such file."""
    return read_json(file) if file.exists() else {}


def read_chat_template(path: Path) -> str | None:
    """Return the chat template of a checkpoint, or None; several are given as JSON."""
    file = path / "chat_template.jinja"
    if file.exists():
        return read_text(file, regular=True, errors="replace")
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = read_json_if_any(path / name).get("chat_template")
        if template:
            return template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return None


def lfs_error(file: Path) -> CheckpointError:
    """The error for a git-LFS pointer in place of a file."""
    return CheckpointError(
        f"{file} is a git-LFS pointer, not the file itself",
        fix=f"fetch it with: git -C {file.parent} lfs pull",
    )
