"""llama.cpp's programs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from whet.core.cache import cache_folder
from whet.core.errors import UsageError

VARIABLE: Final = "WHET_LLAMA_CPP"


def find_program(name: str) -> Path:
    """Return a program of llama.cpp: in ``WHET_LLAMA_CPP``, on PATH, or built by whet.

    ``UsageError`` with what builds it.
    """
    named = os.environ.get(VARIABLE)
    if named:
        program = Path(named).expanduser() / name
        if os.access(program, os.X_OK):
            return program
        raise UsageError(f"{VARIABLE} names {named}, which has no {name}", fix="correct it")
    built = cache_folder() / "llama.cpp" / "bin" / name  # by scripts/build_llamacpp.py
    path = shutil.which(name) or (str(built) if os.access(built, os.X_OK) else None)
    if path is None:
        raise UsageError(
            f"llama.cpp's {name} is not installed",
            fix=f"put it on PATH, name its folder in {VARIABLE}, "
            "or build it from a checkout of whet: python scripts/build_llamacpp.py",
        )
    return Path(path)
