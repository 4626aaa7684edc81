"""Where the bundled model pair is stored, and the recorded run on a GPU."""

from __future__ import annotations

import functools
import hashlib
import lzma
import os
from pathlib import Path
from typing import Final

from whet.core.errors import StorageError
from whet.core.store import write_atomic

PAIR: Final = Path(__file__).parent / "pair"
"""The pair with its weights packed, its SHA-256 sums and its adapters; read by ``pair_paths``."""

RECORDED: Final = Path(__file__).parent / "recorded" / "h200-7b-testbed.tar.xz"
"""Every event of a run on an H200, below ``run/``."""

CHAT_LOG: Final = Path(__file__).parent / "chat-log.jsonl.xz"
"""The demo's traffic: a support desk's requests, made by ``lab.chat_log``."""


@functools.cache
def pair_paths() -> tuple[Path, Path]:
    """Return the checkpoint folders of the target and the draft, in whet's cache folder.

    What is missing or differs from the pair's SHA-256 sums is written, each file atomically.
    Raises ``StorageError`` where that fails.
    """
    sums = (PAIR / "SHA256SUMS").read_text(encoding="utf-8")
    pair = _cache_folder() / "demo-pair" / hashlib.sha256(sums.encode()).hexdigest()[:16]
    for line in sums.splitlines():
        digest, name = line.split()
        if _digest(pair / name) != digest:
            data = _unpack(PAIR / name, digest)
            try:
                write_atomic(pair / name, data)
            except StorageError as error:
                raise StorageError(
                    f"cannot unpack the demo pair: {error}",
                    fix="XDG_CACHE_HOME names another folder",
                ) from error
    return pair / "target", pair / "draft"


def _cache_folder() -> Path:
    """Return ``~/.cache/whet``, or ``whet`` in an absolute ``XDG_CACHE_HOME``."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path("~/.cache").expanduser()) / "whet"


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _unpack(path: Path, digest: str) -> bytes:
    """Return a file of the package, which may be packed; ``StorageError`` where it is damaged."""
    packed = path.with_name(f"{path.name}.xz")
    try:
        data = lzma.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    except (OSError, EOFError, lzma.LZMAError):
        data = b""
    if hashlib.sha256(data).hexdigest() != digest:
        raise StorageError(f"{path} of the installed package is damaged", fix="install whet again")
    return data
