"""Options of ``whet break-even``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.core.errors import UsageError


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEvenOptions:
    """Which drafts are measured, and where the map is stored."""

    output_dir: Annotated[Path, Parameter(name=["--output-dir", "-o"])] = Path("break-even")
    """Directory of this map."""
    k: str = "2,4,6"
    """Draft tokens per step, a map for each."""
    weights: str | None = None
    """Variant to speculate on, such as awq. Default: the baseline."""
    levels: str | None = None
    """Measure degraded drafts too: 0 (none) to 1. Default: 0.3,0.5,1 on a CPU, 0,0.5,1 on a GPU."""
    together: int = 1
    """Servers that start at the same time, as many as memory holds."""
    resume: bool = False
    """Continue an interrupted map, or add K to one."""

    def numbers_of_drafts(self) -> tuple[int, ...]:
        """The values of ``k``. ``UsageError`` for anything but whole numbers."""
        try:
            return tuple(int(part) for part in self.k.split(","))
        except ValueError as error:
            raise UsageError(f"--k {self.k!r}: whole numbers are needed, such as 2,4,6") from error

    def shares(self) -> tuple[float, ...] | None:
        """The values of ``levels``. ``UsageError`` for anything but numbers."""
        if self.levels is None:
            return None
        try:
            return tuple(float(part) for part in self.levels.split(","))
        except ValueError as error:
            raise UsageError(
                f"--levels {self.levels!r}: shares are needed, such as 0.3,0.5,1"
            ) from error
