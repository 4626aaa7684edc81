"""The plan of one quality measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.core.protocols import Dialect
from whet.core.records.quality import QualityRecord
from whet.core.spec import QualitySpec
from whet.quality.lossless import PlainReference


@dataclass(frozen=True, kw_only=True, slots=True)
class ChecksPlan:
    """The checks beside likelihoods and tasks, and the earlier results to compare with.

    ``golden`` is a folder of the run, with one file per variant; None asks no golden probes.
    ``same_weights_reference`` is the record of the first variant with the same weights, None for
    that one itself. ``plain`` are the answers of a server without speculation and with the same
    weights, for a speculating variant; ``is_plain`` asks this variant for them. ``other_kernels``
    says that it may run on other kernels than the reference; ``rounds`` that activations are
    rounded to 8 bits.
    """

    golden: Path | None
    same_weights_reference: QualityRecord | None
    plain: PlainReference | None
    is_plain: bool
    other_kernels: bool = False
    rounds: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityPlan:
    """One variant's measurement on files that are the same for all variants.

    ``tokenizer`` is the folder whose chat template and vocabulary make every prompt; ``baseline``
    is the record to pair with, None if this variant is the baseline. ``tolerances`` are shares of
    perplexity regression (0.01 is 1 %). ``arrays`` is the folder of the likeliest tokens, one file
    per variant; without it no distances are measured, without ``checks`` only likelihoods and
    tasks beside them.
    ``scoring_defect`` describes a known defect of this server's scores; it is named beside scores
    that fail and excuses none. ``scheme`` is the weights' stored scheme (``W4A16``, …), if known.
    ``counter_names`` are the engine's own and those of ``core.counters``; ``dialect`` is the
    engine's too.
    """

    variant: str
    tokenizer: Path
    spec: QualitySpec
    heldout: Path
    tasks: Path
    baseline: QualityRecord | None
    tolerances: Sequence[float]
    arrays: Path | None = None
    checks: ChecksPlan | None = None
    scoring_defect: str | None = None
    scheme: str | None = None
    counter_names: tuple[tuple[str, str], ...] = ()
    dialect: Dialect | None = None
