"""Perplexity, its ratio to the baseline's, and other means per token, from sums per document."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from whet.core.records.summary import Estimate
from whet.metrics.estimates import Floats

Nll = tuple[float, int]
"""Σ −log p and the tokens of one document."""

_RESAMPLES: Final = 4000
_TAILS: Final = (0.025, 0.975)
_STUDENTIZED_TAILS: Final = (0.0175, 0.9825)
"""Tails of t* for a 95 % interval. At 60 documents the tails of 0.025 cover 92 % with skewed losses
and 94 % with normal ones, these 95 and 96 % (``benchmarks/gate_coverage.py``)."""
_NO_SPREAD_NATS: Final = 1e-4
"""A resample whose standard error and shift are smaller moved by rounding or batching: this is a
hundredth of the smallest default tolerance. Without it, a variant in which 58 of 60
documents are identical, as with a prefix cache, would have no upper end."""
BROKEN_NATS: Final = 0.405
"""ln 1.5: the perplexity of one document changes by half. Between W4A16 weights and their 16-bit
source the worst of 40 documents moved by 0.007, and a text that a server scored as noise by 6.6."""
_FEWEST_TOKENS: Final = 16
"""In a shorter document a single token can move the mean by ``BROKEN_NATS``."""


def perplexity(nll: Sequence[Nll]) -> Estimate:
    """Return exp(Σ −log p ÷ Σ tokens) over at least one document, the units of the interval."""
    return _exp_of_mean(*_columns(nll))


def perplexity_ratio(nll: Sequence[Nll], baseline: Sequence[Nll]) -> Estimate:
    """Return this variant's perplexity over the baseline's, with the same documents resampled.

    Pairing removes the spread between easy and hard documents. Raises ``ValueError`` unless the
    documents have the same token counts in the same order.
    """
    here, tokens = _columns(nll)
    there, tokens_there = _columns(baseline)
    if not np.array_equal(tokens, tokens_there):
        raise ValueError("the two were measured on different tokens")
    return _exp_of_mean(here - there, tokens)


def broken_documents(nll: Sequence[Nll], baseline: Sequence[Nll]) -> list[float]:
    """Return the loss changes, in nats per token, that are far from the median document's.

    A mean over 60 documents hardly shows that one of them is scored as noise. Farther than
    ``BROKEN_NATS`` in either direction counts; documents of fewer than 16 tokens do not.
    """
    here, tokens = _columns(nll)
    there, _ = _columns(baseline)
    long = tokens >= _FEWEST_TOKENS
    if not long.any():
        return []
    changes = (here - there)[long] / tokens[long]
    far = np.abs(changes - np.median(changes)) > BROKEN_NATS
    return [float(change) for change in changes[far]]


def document_mean(sums: Sequence[tuple[float, int]]) -> Estimate:
    """Return Σ value ÷ Σ tokens of (Σ value, tokens) per document.

    The interval is the percentile bootstrap over documents. It is not studentized: values such as
    KL are often 0 in nearly all documents, and such resamples have no standard error.
    """
    values, tokens = _columns(sums)
    count = len(values)
    value = float(values.sum() / tokens.sum())
    if count == 1:
        return Estimate(value=value, low=None, high=None, samples=1)
    times = _draws(count)
    low, high = np.quantile((times @ values) / (times @ tokens), _TAILS)
    return Estimate(value=value, low=float(low), high=float(high), samples=count)


def _columns(nll: Sequence[Nll]) -> tuple[Floats, Floats]:
    table = np.asarray(nll, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@lru_cache(maxsize=2)
def _draws(count: int) -> Floats:
    """Return how often each of ``count`` units occurs in each resample [resamples, count]."""
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    return drawn.astype(np.float64)


def _exp_of_mean(sums: Floats, tokens: Floats) -> Estimate:
    """Return exp(Σ sums ÷ Σ tokens) with the studentized bootstrap interval over documents.

    The bootstrap distribution of t* = (m* − m) ÷ se*, with the standard error of the ratio
    estimator, replaces Student's (Efron and Tibshirani 1993, section 12.5): the ends then follow
    the skew of the losses. An end is None if too many resamples have no spread; one document has
    no interval.
    """
    count, total = len(sums), tokens.sum()
    mean = float(sums.sum() / total)
    if count == 1:
        return Estimate(value=float(np.exp(mean)), low=None, high=None, samples=1)
    left = sums - mean * tokens
    times = _draws(count)
    terms = np.stack([tokens, left, left**2, left * tokens, tokens**2], axis=1)
    weight, moved, squares, products, weights = (times @ terms).T
    shift = moved / weight
    squares = squares - 2 * shift * products + shift**2 * weights
    factor = count / (count - 1)
    error = float(np.sqrt(factor * (left**2).sum()) / total)
    errors = np.sqrt(factor * np.maximum(squares, 0)) / weight
    still = np.maximum(errors, np.abs(shift)) <= _NO_SPREAD_NATS
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(still, 0.0, shift / errors)
    least = float(np.quantile(ratios, _STUDENTIZED_TAILS[0], method="lower"))
    most = float(np.quantile(ratios, _STUDENTIZED_TAILS[1], method="higher"))
    return Estimate(
        value=float(np.exp(mean)),
        low=_end(mean, most, error),
        high=_end(mean, least, error),
        samples=count,
    )


def _end(mean: float, t: float, error: float) -> float | None:
    """Return exp(mean − t · error); None if it is not a positive number."""
    end = float(np.exp(mean - t * error)) if error > 0 else float(np.exp(mean))
    return end if 0 < end < np.inf else None
