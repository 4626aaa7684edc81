"""The acceptance length at which speculation breaks even, from a few measured levels.

A step of drafting and verifying costs the same whatever is accepted, so a token costs
``fixed + step / L`` seconds at the acceptance length L: ``step`` is what steps cost, ``fixed`` what
no acceptance shortens (above all the prompts). Where ``fixed`` is 0 this is Leviathan et al. 2023,
section 3.3: rate = L × steps a second. Setting it equal to a plain token's seconds gives

    L* = step / (plain − fixed).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whet.core.records import Estimate
from whet.core.records.speculation_map import Pays

Floats = NDArray[np.float64]

DRAWS: Final = 4000
_SEED: Final = 20_261
_LEVER: Final = 1.15
"""Lengths closer than this (largest ÷ smallest) cannot separate fixed from step cost."""
_ARM: Final = 1.96
_TAIL: Final = 0.025


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A level as measured: tokens a step, and output tokens a second."""

    length: Estimate
    tps: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The result for one batch size and K; the fields are ``SpeculationPoint``'s."""

    l_star: Estimate | None
    reachable: Pays
    fixed_share: float
    spread: float | None
    headroom: Estimate | None


def fit_speculation(
    plain: Estimate,
    levels: Sequence[Measured],
    *,
    k: int,
    real: Estimate | None,
) -> Fit:
    """L* with its 95 % interval from at least one level.

    ``plain`` is the rate without speculation, ``real`` the draft's own acceptance length. The line
    is fitted by least squares of the relative residuals, ``fixed`` at or above 0; levels whose
    lengths are too close together leave it at 0, and the line goes through the origin. The interval
    comes from draws of every rate and length within its own interval, the servers moved apart by
    the line's own residual. Where a rate has no interval (one start), or the lengths cannot
    separate ``fixed`` from ``step`` (largest ÷ smallest below 1.15), nothing has one, and whether
    the break-even is reachable is undecided.
    """
    lengths = np.array([[item.length.value] for item in levels])
    rates = np.array([[item.tps.value] for item in levels])
    fixed, step = _line(1 / lengths, 1 / rates)
    rng = np.random.default_rng(_SEED)
    apart = _misfit(1 / lengths, 1 / rates, fixed, step)
    plain_draws = _rates(plain, rng, apart)
    drawn_lengths = np.stack([_lengths(item.length, rng, k) for item in levels])
    drawn_rates = np.stack([_rates(item.tps, rng, apart) for item in levels])
    fixed_draws, step_draws = _line(1 / drawn_lengths, 1 / drawn_rates)
    draws = _solve(1 / plain_draws, fixed_draws, step_draws)
    samples = min(plain.samples, *(item.tps.samples for item in levels))
    at = float(_solve(np.array([1 / plain.value]), fixed, step)[0])
    own = lengths * plain.value / rates
    bounded = all(item.low is not None for item in (plain, *(level.tps for level in levels)))
    bounded &= bool(lengths.max() / lengths.min() >= _LEVER)
    headroom = None
    if real is not None:
        line, lines = (fixed, step), (fixed_draws, step_draws)
        headroom = _headroom(line, lines, real, k=k, rng=rng)
    l_star = _estimate(at, draws, samples) if math.isfinite(at) else None
    return Fit(
        l_star=l_star if bounded else _unbounded(l_star),
        reachable=_reachable(draws, k) if bounded else "undecided",
        fixed_share=float(fixed[0] * plain.value),
        spread=float(own.max() / own.min() - 1) if len(levels) > 1 else None,
        headroom=headroom if bounded else _unbounded(headroom),
    )


def _line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """(fixed, step) of y = fixed + step·x for each column of (levels, draws), both at least 0."""
    through = x / y
    origin = through.sum(axis=0) / (through**2).sum(axis=0)
    nothing = np.zeros_like(origin)
    if len(x) == 1:
        return nothing, origin
    weight = 1 / y**2
    total, mean_x = weight.sum(axis=0), (weight * x).sum(axis=0)
    mean_x, mean_y = mean_x / total, (weight * y).sum(axis=0) / total
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = weight * (x - mean_x)
        step = (moved * (y - mean_y)).sum(axis=0) / (moved * (x - mean_x)).sum(axis=0)
    fixed = mean_y - step * mean_x
    separable = (x.max(axis=0) / x.min(axis=0) >= _LEVER) & (step > 0) & (fixed > 0)
    return np.where(separable, fixed, nothing), np.where(separable, step, origin)


def _misfit(x: Floats, y: Floats, fixed: Floats, step: Floats) -> float:
    """The line's relative residual, for its degrees of freedom; 0.0 without any left."""
    free = len(x) - (2 if fixed[0] > 0 else 1)
    if free < 1:
        return 0.0
    residuals = (fixed + step * x) / y - 1
    return float(np.sqrt((residuals**2).sum() / free))


def _solve(plain: Floats, fixed: Floats, step: Floats) -> Floats:
    """L*; infinite if even a free token is not faster than a plain one."""
    with np.errstate(divide="ignore"):
        length: Floats = np.where(plain > fixed, step / np.maximum(plain - fixed, 0), np.inf)
    return length


def _rates(figure: Estimate, rng: np.random.Generator, apart: float) -> Floats:
    """Draws of a rate: normal on the log scale on either side, and its server off by ``apart``."""
    normal = rng.standard_normal(DRAWS)
    server = apart * rng.standard_normal(DRAWS)
    if figure.low is None or figure.high is None or figure.low <= 0:
        return np.asarray(figure.value * np.exp(server))
    down = math.log(figure.value / figure.low) / _ARM
    up = math.log(figure.high / figure.value) / _ARM
    return np.asarray(figure.value * np.exp(server + normal * np.where(normal < 0, down, up)))


def _lengths(figure: Estimate, rng: np.random.Generator, k: int) -> Floats:
    normal = rng.standard_normal(DRAWS)
    spread = 0.0
    if figure.low is not None and figure.high is not None:
        spread = (figure.high - figure.low) / (2 * _ARM)
    return np.clip(figure.value + spread * normal, 1.0, k + 1.0)


def _reachable(draws: Floats, k: int) -> Pays:
    share = float((draws <= k + 1).mean())
    return "yes" if share >= 1 - _TAIL else "no" if share <= _TAIL else "undecided"


def _headroom(
    line: tuple[Floats, Floats],
    draws: tuple[Floats, Floats],
    real: Estimate,
    *,
    k: int,
    rng: np.random.Generator,
) -> Estimate:
    """A token's seconds with the real draft over those with every draft token accepted."""

    def over(fixed: Floats, step: Floats, length: Any) -> Floats:
        return np.asarray((fixed + step / length) / (fixed + step / (k + 1)))

    at = float(over(*line, real.value)[0])
    return _estimate(at, over(*draws, _lengths(real, rng, k)), real.samples)


def _unbounded(figure: Estimate | None) -> Estimate | None:
    return None if figure is None else replace(figure, low=None, high=None)


def _estimate(value: float, draws: Floats, samples: int) -> Estimate:
    low, high = (float(q) for q in np.quantile(draws, [_TAIL, 1 - _TAIL], method="nearest"))
    return Estimate(
        value=value,
        low=low if math.isfinite(low) else None,
        high=high if math.isfinite(high) else None,
        samples=samples,
    )
