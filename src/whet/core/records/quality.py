"""Whether the answers are still right."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.records.summary import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskScore:
    """Share of right answers on one task, and the paired test against the baseline's answers.

    ``p_value`` is McNemar's exact test; None for the baseline itself. ``detectable_drop`` is the
    smallest loss (in share of right answers) that this set sees with 80 % power at 5 %.
    """

    task: str
    n: int
    right: int
    score: Estimate
    baseline_right: int | None
    lost: int | None
    gained: int | None
    p_value: float | None
    detectable_drop: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskExample:
    """An answer that was right on the baseline and is wrong here, side by side."""

    task: str
    id: str
    prompt: str
    expected: str
    baseline: str
    answer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskAnswer:
    """One raw answer, kept so that scores can be paired again."""

    id: str
    task: str
    text: str
    right: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityRecord:
    """One variant's quality on held-out text and tasks.

    ``perplexity`` is token-weighted; ``perplexity_ratio`` is this variant's over the baseline's
    (paired by document), so 1.01 is a 1 % regression. ``nll`` holds one (Σ −log p, tokens) pair a
    document. ``verdict`` is pass, fail or unknown per tolerance, and unknown is not a pass.
    ``data_sha256`` hashes the token ids asked and the expected answers: only records that agree
    in it may be paired, whatever their files were called.
    """

    variant: str
    baseline: str
    perplexity: Estimate | None
    perplexity_ratio: Estimate | None
    nll: tuple[tuple[float, int], ...]
    tasks: tuple[TaskScore, ...]
    answers: tuple[TaskAnswer, ...]
    examples: tuple[TaskExample, ...]
    verdicts: tuple[tuple[float, str], ...]
    reason: str | None
    seconds: float
    data_sha256: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentDistance:
    """Sums over the ``tokens`` predicted positions of one held-out document, in nats.

    ``kl`` is Σ KL(16-bit ‖ candidate) and ``flips`` counts positions whose likeliest token differs.
    """

    tokens: int
    nll: float
    reference_nll: float
    kl: float
    flips: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Distances:
    """How far a checkpoint's predictions are from its 16-bit source's, on the same tokens.

    Both ran in float32 with transformers. ``kl`` is the mean of KL(16-bit ‖ candidate) by position
    and ``kl_p99`` its 99th percentile, in nats; ``flips`` the share of positions whose likeliest
    token differs. Intervals resample documents. ``rounded`` says what the forward rounded as an
    engine would: ``weights``, ``activations``, ``kv_cache``. ``documents`` holds the sums that
    every figure but the percentile is computed from; ``data_sha256`` hashes the token ids.
    """

    perplexity: Estimate
    reference_perplexity: Estimate
    perplexity_ratio: Estimate
    kl: Estimate
    kl_p99: Estimate
    flips: Estimate
    rounded: tuple[str, ...]
    documents: tuple[DocumentDistance, ...]
    data_sha256: str
    device: str
    seconds: float
