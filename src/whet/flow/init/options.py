"""Options of ``whet init``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class InitOptions:
    """What the spec is written for."""

    model: str = "./model"
    """Checkpoint: folder or hub id. One that is quantized already is measured as stored."""
    traffic: Path | None = None
    """Request log of your service, from which the values are taken. Default: a generated load."""
    device: str | None = None
    """GPU to write it for, such as L4 or "2x H100 SXM". Default: this machine. Needs --traffic."""
    draft: str | None = None
    """Draft model with the same tokenizer. Default: none, or n-grams where they can draft."""
