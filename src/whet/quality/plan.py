"""What one quality measurement needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.core.records import QualityRecord
from whet.core.spec import QualitySpec
from whet.quality.golden import GoldenSource
from whet.quality.lossless import PlainReference


@dataclass(frozen=True, kw_only=True, slots=True)
class ChecksPlan:
    """What is asked beside likelihoods and tasks, and what earlier variants left to compare with.

    ``arrays`` and ``golden`` are folders of the run, with one file a variant.
    ``same_weights_reference`` is the record of the first variant that served the very same weights,
    None for that one itself.
    ``plain`` are the answers of a server without speculation and with the same weights, for a
    variant that speculates; ``is_plain`` says that such a variant will be held to this one.
    ``other_kernels`` where it may run on other kernels than the reference; ``rounds`` where
    activations are rounded to 8 bits.
    """

    arrays: Path
    golden: Path
    source: GoldenSource
    same_weights_reference: QualityRecord | None
    plain: PlainReference | None
    is_plain: bool
    other_kernels: bool = False
    rounds: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityPlan:
    """One variant's measurement on files that are the same for all variants.

    ``tokenizer`` is the folder whose chat template and vocabulary make every prompt; ``baseline``
    is the finished record to pair with, None where this variant is itself the baseline.
    ``tolerances`` are shares of perplexity regression (0.01 is 1 %). Without ``checks`` nothing
    is asked but likelihoods and tasks. ``scoring_defect`` is what is known to be wrong with this
    server's scores, in words: it is told beside scores that fail and excuses none. ``scheme`` names
    how the weights are stored (``W4A16``, …), where that is known.
    """

    variant: str
    tokenizer: Path
    spec: QualitySpec
    heldout: Path
    tasks: Path
    baseline: QualityRecord | None
    tolerances: Sequence[float]
    checks: ChecksPlan | None = None
    scoring_defect: str | None = None
    scheme: str | None = None
