"""Records to plan with, without files."""

from __future__ import annotations

from typing import Any

from tests import records
from whet.core.provenance import Device
from whet.core.records.engine import Speculation, Variant
from whet.core.units import GIB


def gpu(memory_gib: float = 24, *, name: str = "NVIDIA L4", count: int = 1) -> Device:
    """A GPU."""
    return Device(
        kind="cuda", name=name, memory_bytes=int(memory_gib * GIB), count=count, driver="580"
    )


def cpu(memory_gib: float = 24) -> Device:
    """A machine without one."""
    return Device(kind="cpu", name="EPYC", memory_bytes=int(memory_gib * GIB), count=1, driver=None)


def variant(
    *,
    speculate: bool = False,
    env: dict[str, str] | None = None,
    weights: str = "16bit",
    **args: Any,
) -> Variant:
    """A variant with these engine flags."""
    draft = Speculation(method="draft_model", num_tokens=4, draft_path="/models/draft")
    return records.variant(
        weights=weights,
        model_path="/models/target",
        speculation=draft if speculate else None,
        engine_args=tuple(args.items()),
        env=tuple((env or {}).items()),
    )
