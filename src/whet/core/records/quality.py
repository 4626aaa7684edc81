"""Whether the answers are still right."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.records.quality_checks import (
    GateVerdict,
    LosslessCheck,
    ServerDistances,
    TokenIdentity,
)
from whet.core.records.summary import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskScore:
    """How right the answers of one task are, and the paired test against the baseline's answers.

    ``score`` is the share of right answers, or the mean grade where the task is ``graded`` from 0
    to 1; ``right`` then counts grades of 0.5 and above, and ``lost`` and ``gained`` the answers
    that got worse and better. ``p_value`` is McNemar's exact test, for grades a sign-flip
    permutation test; None for the baseline itself. ``difference`` is this variant's score less
    the baseline's, over the questions that both answered.
    """

    task: str
    n: int
    right: int
    score: Estimate
    baseline_right: int | None
    lost: int | None
    gained: int | None
    p_value: float | None
    difference: Estimate | None = None
    graded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskExample:
    """An answer that was right on the baseline and is wrong or graded worse here, side by side."""

    task: str
    id: str
    prompt: str
    expected: str
    baseline: str
    answer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskAnswer:
    """One raw answer, kept so that scores can be paired again.

    ``grade`` is from 0 to 1, None where the scorer says only right or wrong. ``finish_reason`` is
    the server's word (``stop``, ``length``), ``tokens`` its count of output tokens. ``text`` is
    what follows the model's reasoning. An ``unfinished`` answer is all reasoning, and is wrong.
    """

    id: str
    task: str
    text: str
    right: bool
    grade: float | None = None
    finish_reason: str | None = None
    tokens: int | None = None
    unfinished: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityRecord:
    """One variant's quality on held-out text and tasks.

    ``perplexity`` is token-weighted; ``perplexity_ratio`` is this variant's over the baseline's
    (paired by document), so 1.01 is a 1 % regression. ``nll`` holds one (Σ −log p, tokens) pair a
    document. ``verdict`` is pass, fail or unknown per tolerance, and unknown is not a pass.
    ``data_sha256`` hashes the token ids asked and the expected answers: only records that agree
    in it may be paired, whatever their files were called.

    ``distances`` are from the baseline. ``twin`` is the first variant that serves the very same
    weights, and ``twin_distances`` those from it: where it is this one, from itself asked again.
    ``identity`` is of the server's tokens, ``lossless`` of speculation; None where not asked.
    ``parts`` are seconds by question. ``built_in_text`` says that the held-out text is whet's own,
    which a model may have been trained on.
    """

    variant: str
    baseline: str
    perplexity: Estimate | None
    perplexity_ratio: Estimate | None
    nll: tuple[tuple[float, int], ...]
    tasks: tuple[TaskScore, ...]
    answers: tuple[TaskAnswer, ...]
    examples: tuple[TaskExample, ...]
    verdicts: tuple[tuple[float, GateVerdict], ...]
    reason: str | None
    seconds: float
    data_sha256: str | None = None
    distances: ServerDistances | None = None
    twin: str | None = None
    twin_distances: ServerDistances | None = None
    identity: TokenIdentity | None = None
    lossless: LosslessCheck | None = None
    parts: tuple[tuple[str, float], ...] = ()
    built_in_text: bool = False
