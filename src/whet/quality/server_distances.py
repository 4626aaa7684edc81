"""How far a variant's predictions are from the baseline's, from what both servers returned.

The tokens that both returned, and one bucket for all others, partition the vocabulary, so
the KL divergence over it is never more than the whole one (data-processing inequality; Cover and
Thomas, *Elements of Information Theory*, section 2.8).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from whet.core.records.quality_checks import DocumentDistance, ServerDistances
from whet.core.records.summary import Estimate
from whet.metrics import certified
from whet.quality.perplexity import document_mean
from whet.quality.top_logprobs import TopDocument, TopLogprobs

_RESOLUTION: Final = 1e-6
"""How well a mass of about 1 is known from float32 log-probabilities. The variant's rest is raised
by it: more rest can only lower the divergence, so that rounding never adds to it."""


_Positions = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]
"""Figures of each position of one document: KL in nats, flipped, the mass compared."""


def server_distances(variant: TopLogprobs, baseline: TopLogprobs) -> ServerDistances:
    """KL(baseline ‖ variant) and top-1 flips, position by position, on the same tokens.

    The percentile is over positions and has no interval, as those of one document depend on each
    other. Both are of the same data, so of the same documents at the same lengths.
    """
    top_k = min(variant.top_k, baseline.top_k)
    pairs = list(zip(variant.documents, baseline.documents, strict=True))
    compared = [_compare(here, there) for here, there in pairs]
    documents = [
        DocumentDistance(
            tokens=len(kl),
            kl=float(kl.sum()),
            flips=int(flipped.sum()),
        )
        for kl, flipped, _ in compared
    ]
    every_kl = np.concatenate([kl for kl, _, _ in compared])
    return ServerDistances(
        kl=document_mean([(one.kl, one.tokens) for one in documents]),
        kl_p99=Estimate(
            value=float(np.quantile(every_kl, 0.99)),
            low=None,
            high=None,
            samples=len(every_kl),
            certified=certified(0.99, len(every_kl)),
        ),
        flips=document_mean([(one.flips, one.tokens) for one in documents]),
        top_k=top_k,
        covered=float(np.concatenate([covered for _, _, covered in compared]).mean()),
        documents=tuple(documents),
    )


def _compare(variant: TopDocument, baseline: TopDocument) -> _Positions:
    """One document's positions; the arrays of tokens are [N, K + 1], a match of them [N, K + 1, …].

    Where several tokens are likeliest alike, as 16-bit logits often have it, a position counts as
    flipped only if the two sides share none of them.
    """
    from scipy.special import rel_entr  # takes 0.2 s to import

    match = baseline.ids[:, :, None] == variant.ids[:, None, :]
    match &= baseline.ids[:, :, None] >= 0
    common = match.any(axis=2)
    ours = np.where(match, variant.logprobs.astype(np.float64)[:, None, :], 0.0).sum(axis=2)
    p = np.where(common, np.exp(baseline.logprobs.astype(np.float64)), 0.0)
    log_ratio = np.where(common, baseline.logprobs - ours, 0.0)
    covered = np.minimum(p.sum(axis=1), 1.0)
    rest = 1.0 - covered
    rest_variant = 1.0 - np.where(common, np.exp(ours), 0.0).sum(axis=1)
    bucket = rel_entr(rest, np.maximum(rest_variant, 0.0) + _RESOLUTION)
    # Of nearly equal rows a sum a little below zero is left.
    kl = np.maximum((p * log_ratio).sum(axis=1) + bucket, 0.0)
    likeliest = baseline.logprobs == baseline.logprobs[:, :1]
    likeliest_variant = variant.logprobs == variant.logprobs[:, :1]
    shared = match & likeliest[:, :, None] & likeliest_variant[:, None, :]
    return kl, ~shared.any(axis=(1, 2)), covered
