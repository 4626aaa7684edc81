"""Detect drift of golden probes between starts of a server.

A restart may choose other kernels, so a start is the unit: repetitions within one start say nothing
about the next. The limit of the distance is a fixed number of nats, and higher where three or more
reference starts are farther apart. Simulated in ``benchmarks/gate_coverage.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from whet.core.errors import UsageError
from whet.core.records.quality_checks import GateVerdict, GoldenProbes, GoldenToken

LEVEL: Final = 0.01
LEAST_NATS: Final = 0.02
"""A smaller distance is rounding. Two starts of one FP8 server on an H100 were 4.1e-5 nats of KL
apart, which moves log-probabilities by about 0.005, and FP8 itself (1.3e-4) by 0.01. The limit does
not fall with more starts: three starts with the same kernels do not show that there are others."""
FEWEST_STARTS: Final = 3
_QUANTILE: Final = 0.99
_PERMUTATIONS: Final = 9999
_MOVED: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedProbe:
    """A probe's mean log-probability then and now, in nats."""

    id: str
    token_id: int
    before: float
    now: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldenDrift:
    """Whether a deployment's golden probes changed.

    ``distance`` is the mean over probes of |mean log-probability then − now|, in nats, and
    ``limit`` the distance above which it is drift. ``starts`` counts the reference's. ``noise`` is
    the mean distance between them; with fewer than three, over random assignments of repetitions,
    whose permutation test gives ``p_value``. ``outside`` counts probes whose mean is now
    outside the earlier interval; ``moved`` names those that moved most. ``changed`` lists known
    changes of variant, engine and weights.
    """

    probes: int
    repetitions: tuple[int, int]
    starts: int
    changed: tuple[str, ...]
    limit: float | None = None
    distance: float | None = None
    noise: float | None = None
    p_value: float | None = None
    outside: int | None = None
    moved: tuple[MovedProbe, ...] = ()
    verdict: GateVerdict = "unknown"
    reason: str | None = None


def compare_golden(probes: GoldenProbes, now: GoldenProbes) -> GoldenDrift:
    """Test whether ``now`` (from ``retake_golden``) answers as ``probes`` did.

    With three reference starts or more, a distance above both ``LEAST_NATS`` and the 99 %
    prediction bound of their own distances fails. With fewer it must exceed ``LEAST_NATS`` and the
    spread of repetitions, by a permutation test of the distance (arXiv 2512.03816): whole
    repetitions are assigned to the two sides in all C(R + S, R) ways if these are fewer than
    10,000, otherwise in so many random ones. Between sides of equal size each assignment has a
    mirror image, so five against five give at least p = 2 ÷ 252 = 0.0079; if the smallest p exceeds
    0.01, the verdict is unknown. Raises ``UsageError`` if the two asked different prompts or
    followed different tokens.
    """
    blank = GoldenDrift(
        probes=len(probes.probes),
        repetitions=(probes.repetitions, now.repetitions),
        starts=len(starts_of(probes)),
        changed=_changed(probes, now),
    )
    if probes.probes and now.broken is not None:
        return replace(blank, verdict="fail", reason=now.broken)
    for side, when in ((probes, "then"), (now, "now")):
        if not side.probes:
            gap = side.broken or side.missing or "nothing was asked"
            return replace(blank, reason=f"no golden probes {when}: {gap}")
    _refuse_other(probes, now)
    described = _describe(blank, probes, now)
    if described.starts >= FEWEST_STARTS:
        return _judge_by_starts(described, probes)
    return _judge_by_repetitions(described, probes, now)


def starts_of(probes: GoldenProbes) -> Sequence[Sequence[float]]:
    """Return each probe's mean log-probability, one row per start; empty without probes."""
    if probes.starts or not probes.draws:
        return probes.starts
    return [[math.fsum(values) / len(values) for values in zip(*probes.draws, strict=True)]]


def add_start(probes: GoldenProbes, now: GoldenProbes) -> GoldenProbes:
    """Return ``probes`` with one more start of the same deployment (from ``retake_golden``).

    Raises ``UsageError`` for another deployment, other probes, or a start that did not answer.
    """
    refused = "this start is not added to the golden probes"
    if not now.probes:
        raise UsageError(f"{refused}: {now.broken or now.missing or 'nothing was asked'}")
    _refuse_other(probes, now)
    if changed := _changed(probes, now):
        raise UsageError(f"{refused}: {changed[0]}", fix="save a new baseline")
    starts = (*starts_of(probes), *starts_of(now))
    means = np.mean(starts, axis=0).tolist()
    joined = [
        replace(then, tokens=(_joined(then.tokens[0], here.tokens[0], mean),))
        for then, here, mean in zip(probes.probes, now.probes, means, strict=True)
    ]
    return replace(probes, probes=tuple(joined), starts=tuple(map(tuple, starts)))


def _joined(then: GoldenToken, here: GoldenToken, mean: float) -> GoldenToken:
    """Return the token with the mean over starts and the range of all draws."""
    return replace(then, mean=mean, low=min(then.low, here.low), high=max(then.high, here.high))


def _describe(blank: GoldenDrift, probes: GoldenProbes, now: GoldenProbes) -> GoldenDrift:
    """Add the distance and the probes that moved most."""
    moves = [
        MovedProbe(
            id=then.id,
            token_id=then.tokens[0].token_id,
            before=then.tokens[0].mean,
            now=here.tokens[0].mean,
        )
        for then, here in zip(probes.probes, now.probes, strict=True)
    ]
    outside = [
        move
        for move, probe in zip(moves, probes.probes, strict=True)
        if not probe.tokens[0].low <= move.now <= probe.tokens[0].high
    ]
    outside.sort(key=lambda move: -abs(move.now - move.before))
    return replace(
        blank,
        distance=float(np.mean([abs(move.now - move.before) for move in moves])),
        limit=LEAST_NATS,
        outside=len(outside),
        moved=tuple(outside[:_MOVED]),
    )


def _judge_by_starts(result: GoldenDrift, probes: GoldenProbes) -> GoldenDrift:
    """Compare the distance with those of each reference start from the mean of the others."""
    from scipy.stats import t

    table = np.asarray(starts_of(probes))  # [starts, probes]
    count = len(table)
    others = (table.sum(axis=0) - table) / (count - 1)
    apart = np.abs(table - others).mean(axis=1)
    reach = t.ppf(_QUANTILE, count - 1) * apart.std(ddof=1) * math.sqrt(1 + 1 / count)
    limit = max(LEAST_NATS, float(apart.mean() + reach))
    drifted = result.distance is not None and result.distance > limit
    return replace(
        result, noise=float(apart.mean()), limit=limit, verdict="fail" if drifted else "pass"
    )


def _judge_by_repetitions(
    result: GoldenDrift, probes: GoldenProbes, now: GoldenProbes
) -> GoldenDrift:
    """Ask for more than rounding and more than the spread of repetitions within a start."""
    test = _permuted(probes.draws, now.draws)
    result = replace(
        result, noise=float(np.mean(test.null_distribution)), p_value=float(test.pvalue)
    )
    least = smallest_p(*result.repetitions)
    if least > LEVEL:
        reason = (
            f"{result.repetitions[0]} repetitions against {result.repetitions[1]} give at least "
            f"p = {least:.2g}; take more"
        )
        return replace(result, reason=reason)
    if test.pvalue > LEVEL:
        return replace(result, verdict="pass")
    distance = result.distance or 0.0
    if distance <= LEAST_NATS:
        reason = f"the change of {distance:.1g} nats is rounding (limit {LEAST_NATS:g})"
        return replace(result, verdict="pass", reason=reason)
    return replace(result, verdict="fail")


def _permuted(then: Sequence[Sequence[float]], now: Sequence[Sequence[float]]) -> Any:
    """Permute which repetition belongs to which side."""
    from scipy.stats import permutation_test

    table = np.asarray([*then, *now], dtype=np.float64).T  # [probes, R + S]
    table -= table.mean(axis=1, keepdims=True)

    def distance(one: Any, other: Any, axis: int) -> Any:
        gap = table[:, one].mean(axis=axis) - table[:, other].mean(axis=axis)
        return np.abs(gap).mean(axis=0)

    # Columns are permuted, so that all probes of a repetition stay together.
    return permutation_test(
        (np.arange(len(then)), np.arange(len(then), table.shape[1])),
        distance,
        vectorized=True,
        n_resamples=_PERMUTATIONS,
        batch=256,
        alternative="greater",
        axis=-1,
        rng=np.random.default_rng(0),
    )


def smallest_p(repetitions: int, other: int) -> float:
    """Return the smallest possible p-value for these repetitions."""
    mirrored = 2 if repetitions == other else 1
    return max(mirrored / math.comb(repetitions + other, repetitions), 1 / (_PERMUTATIONS + 1))


def _refuse_other(probes: GoldenProbes, now: GoldenProbes) -> None:
    before = [(p.id, p.prompt, p.tokens[0].token_id) for p in probes.probes]
    if before != [(p.id, p.prompt, p.tokens[0].token_id) for p in now.probes]:
        raise UsageError(
            "the two sets of golden probes have different prompts or tokens",
            fix="take the new ones with retake_golden, from the old ones",
        )


def _changed(probes: GoldenProbes, now: GoldenProbes) -> tuple[str, ...]:
    pairs = (
        ("variant", probes.variant, now.variant),
        ("engine version", probes.engine_version, now.engine_version),
        ("weights", probes.model_sha256, now.model_sha256),
    )
    return tuple(
        f"{what} was {then[:12]}, is {here[:12]}"
        for what, then, here in pairs
        if then is not None and here is not None and then != here
    )
