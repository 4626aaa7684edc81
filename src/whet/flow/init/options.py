"""Options of ``whet init``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class InitOptions:
    """What the spec is written for."""

    model: str | None = None
    """16-bit checkpoint: folder or hub id. Default: the model of --current, else ./model."""
    traffic: Path | None = None
    """Request log of your service, from which the values are taken. Default: a generated load."""
    device: str | None = None
    """GPU to write it for, such as L4 or "2x H100 SXM". Default: this machine."""
    current: str | None = None
    """Your present command, "vllm serve …", or a script, compose file or manifest with it."""
    time: str = "30m"
    """Time of the search, quantizing and confirmation included, such as 30m or 2h."""
    head: Annotated[tuple[str, ...], Parameter(name="--head")] = ()
    """Head or draft for the model, in addition to published ones: folder or hub id."""
    checkpoint: Annotated[tuple[str, ...], Parameter(name="--checkpoint")] = ()
    """Quantized weights of the model: folder or hub id."""
    draft: str | None = None
    """Draft model with the same tokenizer. Default: none."""

    def require_models(self) -> None:
        """Raise ``CheckpointError`` for GGUF, and for a folder that is there and cannot be read."""
        from whet.checkpoint import read_facts
        from whet.checkpoint.files import refuse_gguf

        for ref in filter(None, (self.model, self.draft)):
            refuse_gguf(ref)
            if (folder := Path(ref).expanduser()).is_dir():
                read_facts(folder, tokenizer=False)
