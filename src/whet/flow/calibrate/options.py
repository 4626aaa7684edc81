"""Options of ``whet calibrate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrateOptions:
    """What is measured, and where the result goes."""

    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("calibration.json")
    """File to write, for whet plan --calibration."""
    runs: Annotated[tuple[Path, ...], Parameter(name="--run")] = ()
    """Fit to a stored run instead of measuring. Repeatable."""
    engine_arg: Annotated[tuple[str, ...], Parameter(name="--engine-arg")] = ()
    """Engine flag of the server, such as gpu_memory_utilization=0.5. Repeatable."""
