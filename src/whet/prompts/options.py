"""Options of ``whet prompts`` and ``whet prompts lint``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt

Level = Literal["error", "warning", "note", "never"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class PromptsOptions:
    """Options of ``whet prompts`` next to log and model."""

    model: Annotated[str | None, Parameter(name="--served-model")] = None
    """Model to analyse in a log of several models."""
    chat_template: Path | None = None
    """Chat template file. Default: the model's own."""
    max_requests: PositiveInt | None = None
    """Maximum number of requests to read."""
    block_size: PositiveInt = 16
    """Tokens per KV block."""
    redact: bool = False
    """Leave all text of prompts out of the output."""
    output_dir: Annotated[Path, Parameter(name=["--output-dir", "-o"])] = Path("prompts")
    """Folder of the report."""
    fixed_log: Path | None = None
    """Write the log with the fixes to this file."""
    workload: Path | None = None
    """Write its times, lengths and shared blocks, without text, for whet bench --trace."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class LintOptions:
    """Rules and report of ``whet prompts lint``."""

    ignore: Annotated[tuple[str, ...], Parameter(name="--ignore")] = ()
    """Rule to ignore, such as WHET006. Repeatable."""
    block_size: PositiveInt = 16
    """Tokens per KV block."""
    fail_on: Level = "warning"
    """Lowest level that fails."""
    redact: bool = False
    """Leave excerpts of prompts out."""
    json: bool = False
    """Report as JSON."""
