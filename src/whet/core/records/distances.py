"""How far a checkpoint's predictions are from its source's."""

from __future__ import annotations

from dataclasses import dataclass

from whet.core.records.summary import Estimate


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

    Both ran in float32 with transformers. Where ``top_k`` is a number, both ran on servers that
    named so many likeliest tokens, and ``kl`` and ``covered`` are as in ``ServerDistances``.
    ``kl`` is the mean of KL(16-bit ‖ candidate) by position and ``kl_p99`` its 99th percentile, in
    nats; ``flips`` the share of positions whose likeliest token differs. Intervals resample
    documents. ``rounded`` says what the forward rounded as an engine would: ``weights``,
    ``activations``, ``kv_cache``. ``documents`` holds the sums that every figure but the percentile
    is computed from; ``data_sha256`` hashes the token ids.
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
    top_k: int | None = None
    covered: float | None = None
