"""What one quality measurement needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.core.records import QualityRecord
from whet.core.spec import QualitySpec


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityPlan:
    """One variant's measurement on files that are the same for all variants.

    ``tokenizer`` is the folder whose chat template and vocabulary make every prompt; ``baseline``
    is the finished record to pair with, None where this variant is itself the baseline.
    ``tolerances`` are shares of perplexity regression (0.01 is 1 %).
    """

    variant: str
    tokenizer: Path
    spec: QualitySpec
    heldout: Path
    tasks: Path
    baseline: QualityRecord | None
    tolerances: Sequence[float]
