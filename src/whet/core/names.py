"""Names given by people that become file names or keys."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from whet.core.errors import UsageError

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")


def require_name(name: str, what: str) -> str:
    """Return ``name`` if it is safe as a file name, else raise ``UsageError``."""
    if _SAFE.fullmatch(name) is None or ".." in name:
        raise UsageError(
            f"{what} {name!r} cannot be used as a folder name",
            fix="use letters, digits, '.', '_', '+' "
            "or '-', at most 80, starting with a letter or digit",
        )
    return name


def name_from(text: str, otherwise: str) -> str:
    """Return ``text`` as a safe name, or ``otherwise`` where nothing of it is left."""
    return re.sub(r"[^A-Za-z0-9._+-]|\.{2,}", "-", text)[:80].strip("-._+") or otherwise


def inside(folder: Path, *parts: str) -> Path:
    """Join ``parts`` below ``folder`` and refuse a result that leaves it."""
    path = folder.joinpath(*parts)
    # realpath lets a loop of links pass, which pathlib's resolve() ends with a RuntimeError.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise UsageError(f"the path {'/'.join(parts)!r} leaves its folder", fix="use a plain name")
    return path


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest known word, else an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
