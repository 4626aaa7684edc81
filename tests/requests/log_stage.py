"""Small logs, and what the reader makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from whet.requests import LeftOut, LogReader


def line(text: str, **fields: Any) -> bytes:
    return json.dumps({"prompt": text, **fields}).encode() + b"\n"


def write(folder: Path, data: bytes | str, name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def prompts(path: Path, **options: Any) -> list[str | None]:
    return [request.prompt for request in LogReader(path, **options)]


def counts(left_out: tuple[LeftOut, ...]) -> dict[str, tuple[int, str]]:
    return {one.reason: (one.count, one.first) for one in left_out}
