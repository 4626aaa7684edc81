"""Perplexity, its ratio to the baseline's, and other means per token, from sums per document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whet.core.records import Estimate
from whet.metrics import certified
from whet.metrics.estimates import Floats
from whet.quality.likelihood import Nll

_RESAMPLES: Final = 4000
_CONFIDENCE: Final = 0.95


def perplexity(nll: Sequence[Nll]) -> Estimate:
    """Return exp(Σ −log p ÷ Σ tokens) over at least one document.

    The interval is the percentile bootstrap over documents: tokens of one document are not
    independent, documents are.
    """
    sums, tokens = _columns(nll)
    return _bootstrap(sums, tokens, np.exp)


def perplexity_ratio(nll: Sequence[Nll], baseline: Sequence[Nll]) -> Estimate:
    """Return this variant's perplexity over the baseline's, with the same documents resampled.

    Pairing removes the spread between easy and hard documents. Raises
    ``ValueError`` unless the documents have the same token counts in the same order.
    """
    here, tokens = _columns(nll)
    there, tokens_there = _columns(baseline)
    if not np.array_equal(tokens, tokens_there):
        raise ValueError("the two were measured on different tokens")
    return _bootstrap(here - there, tokens, np.exp)


def document_mean(sums: Sequence[tuple[float, int]]) -> Estimate:
    """Return Σ value ÷ Σ tokens of (Σ value, tokens) per document, as ``perplexity`` resamples."""
    values, tokens = _columns(sums)
    return _bootstrap(values, tokens, np.asarray)


def _columns(nll: Sequence[Nll]) -> tuple[Floats, Floats]:
    table = np.asarray(nll, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _bootstrap(sums: Floats, tokens: Floats, shape: Callable[[Any], Any]) -> Estimate:
    """Return shape(Σ sums ÷ Σ tokens) with its interval, which one document does not have.

    Resampling n documents with replacement draws how often each occurs (multinomial).
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


def percentile_99(positions: NDArray[np.floating[Any]]) -> Estimate:
    """Return the 99th percentile over positions, without an interval: positions of one document
    are not independent."""
    count = len(positions)
    value = float(np.quantile(positions, 0.99))
    return Estimate(
        value=value, low=None, high=None, samples=count, certified=certified(0.99, count)
    )
