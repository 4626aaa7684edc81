"""Detect drift of golden probes by a permutation test over whole repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from whet.core.errors import UsageError
from whet.core.records.quality_checks import GateVerdict, GoldenProbes

LEVEL: Final = 0.01
LEAST_NATS: Final = 1e-4
"""A smaller change is rounding: a server may repeat itself bit for bit, and then any other order of
additions (threads, a kernel) has the smallest possible p. A change of weights moves far more."""
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

    ``distance`` is the mean over probes of |mean log-probability then − now|, in nats; ``noise`` is
    its mean over random assignments of repetitions. ``outside`` counts probes whose mean is now
    outside the earlier interval; ``moved`` names those that moved most. ``changed`` lists known
    changes of variant, engine and weights.
    """

    probes: int
    repetitions: tuple[int, int]
    distance: float | None
    noise: float | None
    p_value: float | None
    outside: int | None
    moved: tuple[MovedProbe, ...]
    changed: tuple[str, ...]
    verdict: GateVerdict
    reason: str | None


def compare_golden(
    probes: GoldenProbes,
    now: GoldenProbes,
    *,
    level: float = LEVEL,
    least_nats: float = LEAST_NATS,
) -> GoldenDrift:
    """Test whether ``now`` (from ``retake_golden``) has the distribution of ``probes``.

    A permutation test of ``distance`` (arXiv 2512.03816): whole repetitions are assigned to the two
    sides in all C(R + S, R) ways if these are fewer than 10,000, otherwise in so many random ones.
    Fails at p ≤ ``level`` and a distance of ``least_nats`` or more. Between sides of equal size
    each assignment has a mirror image, so five against five give at least p = 2 ÷ 252 = 0.0079; if
    the smallest p exceeds ``level``, the verdict is unknown. Raises ``UsageError`` if the two asked
    different prompts or followed different tokens.
    """
    sides = (probes.repetitions, now.repetitions)
    blank = GoldenDrift(
        probes=len(probes.probes),
        repetitions=sides,
        distance=None,
        noise=None,
        p_value=None,
        outside=None,
        moved=(),
        changed=_changed(probes, now),
        verdict="unknown",
        reason=None,
    )
    if probes.probes and now.broken is not None:
        return replace(blank, verdict="fail", reason=now.broken)
    for side, when in ((probes, "then"), (now, "now")):
        if not side.probes:
            gap = side.broken or side.missing or "nothing was asked"
            return replace(blank, reason=f"no golden probes {when}: {gap}")
    _refuse_other(probes, now)
    return _judge(blank, probes, now, level, least_nats)


def _judge(
    blank: GoldenDrift,
    probes: GoldenProbes,
    now: GoldenProbes,
    level: float,
    least_nats: float,
) -> GoldenDrift:
    test = _permuted(probes.draws, now.draws)
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
    least = smallest_p(*blank.repetitions)
    result = replace(
        blank,
        distance=float(test.statistic),
        noise=float(np.mean(test.null_distribution)),
        p_value=float(test.pvalue),
        outside=len(outside),
        moved=tuple(outside[:_MOVED]),
    )
    if least > level:
        reason = (
            f"{blank.repetitions[0]} repetitions against {blank.repetitions[1]} give at least "
            f"p = {least:.2g}; take more"
        )
        return replace(result, reason=reason)
    if test.pvalue <= level and test.statistic < least_nats:
        reason = f"the change of {test.statistic:.1g} nats is rounding"
        return replace(result, verdict="pass", reason=reason)
    return replace(result, verdict="fail" if test.pvalue <= level else "pass")


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
            "the two sets of golden probes have different prompts or tokens; take the new ones "
            "with retake_golden, from the old ones"
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
