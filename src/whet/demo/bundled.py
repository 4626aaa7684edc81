"""Where the bundled model pair is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PAIR: Final = Path(__file__).parent / "pair"


def pair_paths() -> tuple[Path, Path]:
    """The checkpoint folders of the target and the draft."""
    return PAIR / "target", PAIR / "draft"
