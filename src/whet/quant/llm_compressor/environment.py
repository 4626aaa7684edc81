"""The environment of llm-compressor, which the user makes and names."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from whet.core.errors import UsageError

VARIABLE: Final = "WHET_LLM_COMPRESSOR"
_LEAST: Final = (0, 14)
_MAKE: Final = (
    "python3 -m venv llmc && llmc/bin/pip install llmcompressor==0.14.0 && "
    f"export {VARIABLE}=$PWD/llmc/bin/python"
)
_ASK: Final = "from importlib import metadata; print(metadata.version('llmcompressor'))"
_LIMIT_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmCompressor:
    """A Python that has llm-compressor, and the version."""

    python: Path
    version: str

    @property
    def title(self) -> str:
        """``llm-compressor 0.14.0``."""
        return f"llm-compressor {self.version}"


def find_llm_compressor() -> LlmCompressor:
    """The environment that ``WHET_LLM_COMPRESSOR`` names; ``UsageError`` with what makes one."""
    named = os.environ.get(VARIABLE)
    if not named:
        raise UsageError(
            f"llm-compressor runs in an environment of its own, and {VARIABLE} does not name the "
            f"Python of one: {_MAKE}"
        )
    python = Path(named)
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "it does not answer"
        raise UsageError(
            f"{VARIABLE} names {python}, which cannot be started ({reason})",
            fix=f"name the Python of an environment with llm-compressor: {_MAKE}",
        ) from error
    version = done.stdout.strip()
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise UsageError(f"{python}, which {VARIABLE} names, has no llmcompressor: {_MAKE}")
    if (int(match[1]), int(match[2])) < _LEAST:
        raise UsageError(
            f"{python}, which {VARIABLE} names, has llm-compressor {version}, and 0.14 or later is "
            f"needed: {_MAKE}"
        )
    return LlmCompressor(python=python.absolute(), version=version)
