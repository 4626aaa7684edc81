"""Which engine serves a variant."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.records.engine import Variant
from whet.levers.base import Lever


class EngineChoice(Lever):
    """``engine``: another engine than the run's own. What it runs is the other claims' business."""

    name = "engine"

    def labels(self, variant: Variant) -> Iterator[str]:
        """``engine=llamacpp``."""
        if variant.engine is not None:
            yield f"engine={variant.engine}"
