"""What the quality gate looked at beside perplexity and task scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.core.records.summary import Estimate

GateVerdict = Literal["pass", "fail", "unknown"]
"""``unknown`` counts as not passed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentDistance:
    """Sums over the ``tokens`` predicted positions of one held-out document, in nats.

    ``kl`` is Σ KL(16-bit ‖ candidate) and ``flips`` counts positions whose likeliest token differs.
    """

    tokens: int
    kl: float
    flips: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerDistances:
    """How far a variant's predictions are from the baseline's, from what both servers returned.

    Servers hand out the ``top_k`` likeliest tokens a position, not all: ``kl`` and ``kl_p99`` are
    KL(baseline ‖ variant) in nats over those tokens that both named and one bucket for the rest,
    which is never more than the KL over the vocabulary (data-processing inequality; Cover and
    Thomas, section 2.8). ``flips`` is the share of positions whose likeliest token differs.
    Intervals resample documents.
    """

    kl: Estimate
    kl_p99: Estimate
    flips: Estimate
    top_k: int
    documents: tuple[DocumentDistance, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """Where one greedy continuation left the baseline's; ``at`` is None where it never did.

    ``margin`` is the baseline's log-probability of its own token less that of its runner-up at the
    first differing position, in nats: near 0 is a tie that rounding decides.
    """

    id: str
    tokens: int
    at: int | None
    margin: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GreedyParity:
    """Greedy continuations of the same prompts against the plain server's.

    ``same`` of ``prompts`` are equal to the end; ``aa_same`` is the same count for the plain server
    against itself, None where it was not asked twice. ``p_value`` is McNemar's exact test of the
    one against the other.
    """

    prompts: int
    same: int
    aa_same: int | None
    p_value: float | None
    divergences: tuple[Divergence, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoSample:
    """Whether sampled continuations come from one distribution (MMD, arXiv 2410.20247).

    ``statistic`` is the unbiased squared MMD with the Hamming kernel over token positions, averaged
    over prompts; ``p_value`` by permutation within prompts. ``samples`` is a side and prompt.
    """

    prompts: int
    samples: int
    temperature: float
    statistic: float
    p_value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LosslessCheck:
    """Whether speculation changes no answer. ``verdict`` is pass, fail or unknown.

    ``acceptance_rate`` is accepted ÷ drafted tokens while the check asked, from the engine's
    counters; None where the server exports none.
    """

    parity: GreedyParity | None = None
    sampling: TwoSample | None = None
    acceptance_rate: float | None = None
    drafted: int | None = None
    verdict: GateVerdict
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DegenerateTraffic:
    """Degenerate text among a variant's timed answers, by kind, and against the baseline's.

    ``found`` maps a kind (``empty``, ``one mark``, ``loop``, ``unreadable``) to how many of
    ``answers`` show it. ``baseline_share``
    is the mean over prompts of the baseline's share of degenerate answers; ``p_value`` is one-sided
    (more than the baseline), over prompts and corrected for the run's variants. ``examples`` are
    answers cut to a few hundred characters. ``reason`` explains the verdict in a sentence.
    """

    variant: str
    answers: int
    found: tuple[tuple[str, int], ...]
    baseline_share: float | None
    p_value: float | None
    examples: tuple[str, ...]
    verdict: GateVerdict
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenToken:
    """One of a probe's likeliest next tokens: its log-probability over the repetitions, in nats."""

    token_id: int
    mean: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenProbe:
    """A prompt as token ids and what the server said of the one token that follows it."""

    id: str
    prompt: tuple[int, ...]
    tokens: tuple[GoldenToken, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenProbes:
    """The reference of a later monitor: one output token per probe (arXiv 2512.03816).

    ``draws`` holds, per repetition, each probe's log-probability of its own likeliest token.
    Without probes, ``missing`` says why none could be sent and ``broken`` why the answers are not
    probabilities.
    """

    variant: str
    probes: tuple[GoldenProbe, ...]
    draws: tuple[tuple[float, ...], ...]
    missing: str | None = None
    broken: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenIdentity:
    """Whether the server reads and writes tokens as the baseline's tokenizer does.

    ``checked`` texts were read as ids and these written as text; ``problems`` says what differs;
    ``missing`` what the server did not answer.
    """

    checked: int
    problems: tuple[str, ...]
    missing: str | None = None
