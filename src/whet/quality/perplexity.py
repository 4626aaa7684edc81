"""Perplexity, its ratio to the baseline's, and other means by token, from sums a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from whet.core.records import Estimate
from whet.quality.likelihood import Nll

_RESAMPLES: Final = 4000
_CONFIDENCE: Final = 0.95


def perplexity(nll: Sequence[Nll]) -> Estimate:
    """exp(Σ −log p ÷ Σ tokens), weighted by token, over at least one document.

    The interval is the percentile bootstrap over documents: tokens of one document are not
    independent, documents are.
    """
    sums, tokens = _columns(nll)
    return _bootstrap(sums, tokens, np.exp)


def perplexity_ratio(nll: Sequence[Nll], baseline: Sequence[Nll]) -> Estimate:
    """This variant's perplexity over the baseline's, both resampled by the same documents.

    Pairing takes the spread between documents out: both see the same easy and hard ones. Raises
    ``ValueError`` unless the documents have the same token counts in the same order.
    """
    here, tokens = _columns(nll)
    there, tokens_there = _columns(baseline)
    if not np.array_equal(tokens, tokens_there):
        raise ValueError("the two were measured on different tokens")
    return _bootstrap(here - there, tokens, np.exp)


def document_mean(sums: Sequence[tuple[float, int]]) -> Estimate:
    """Σ value ÷ Σ tokens of (Σ value, tokens) a document, resampled like ``perplexity``."""
    values, tokens = _columns(sums)
    return _bootstrap(values, tokens, np.asarray)


def _columns(nll: Sequence[Nll]) -> tuple[Any, Any]:
    table = np.asarray(nll, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _bootstrap(sums: Any, tokens: Any, shape: Callable[[Any], Any]) -> Estimate:
    """shape(Σ sums ÷ Σ tokens) with its interval; None for the interval of a single document.

    Resampling n documents with replacement is drawing how often each occurs (multinomial).
    """
    count = len(sums)
    value = float(shape(sums.sum() / tokens.sum()))
    if count == 1:
        return Estimate(value=value, low=None, high=None, samples=1)
    times = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    drawn = shape((times @ sums) / (times @ tokens))
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(value=value, low=float(low), high=float(high), samples=count)
