"""Whether golden probes still say what they said: a permutation test over whole repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from whet.core.errors import UsageError
from whet.core.records.quality_checks import GoldenProbes

LEVEL: Final = 0.01
LEAST_NATS: Final = 1e-4
"""Below it a change is rounding: a server may repeat itself to the bit, and then any other order of
additions (threads, a kernel) has the least p there is. Weights that matter move far more."""
_DEALS: Final = 9999
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
    """Whether a deployment still says what it said. ``verdict`` is pass, fail or unknown.

    ``distance`` is the mean over probes of |mean log-probability then − now|, in nats; ``noise``
    what the same figure is where repetitions are dealt to the sides at random, on average.
    ``outside`` counts probes whose mean now lies outside the interval of then; ``moved`` names
    those that moved most. ``changed`` says what is known to be another: variant, engine, weights.
    """

    probes: int
    repetitions: tuple[int, int]
    distance: float | None
    noise: float | None
    p_value: float | None
    outside: int | None
    moved: tuple[MovedProbe, ...]
    changed: tuple[str, ...]
    verdict: str
    reason: str | None


def compare_golden(
    probes: GoldenProbes,
    now: GoldenProbes,
    *,
    level: float = LEVEL,
    least_nats: float = LEAST_NATS,
) -> GoldenDrift:
    """Test whether ``now`` (from ``retake_golden``) comes from the distribution of ``probes``.

    A permutation test of ``distance``: whole repetitions are dealt anew to the two sides, in all
    C(R + S, R) ways where these are fewer than 10,000, else in so many at random (arXiv 2512.03816
    tests the mean of each token so). Fails at p ≤ ``level`` and a distance of ``least_nats`` or
    more. Of two sides of equal size each deal has a mirror image with the same distance, so five
    against five say no less than 2 ÷ 252 = 0.0079; where even the least p is above ``level``,
    the verdict is unknown. Raises ``UsageError`` where the two asked different prompts or followed
    different tokens.
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
    found = replace(
        blank,
        distance=float(test.statistic),
        noise=float(np.mean(test.null_distribution)),
        p_value=float(test.pvalue),
        outside=len(outside),
        moved=tuple(outside[:_MOVED]),
    )
    if least > level:
        reason = (
            f"{blank.repetitions[0]} repetitions against {blank.repetitions[1]} can say no less "
            f"than p = {least:.2g}; take more"
        )
        return replace(found, reason=reason)
    if test.pvalue <= level and test.statistic < least_nats:
        reason = f"the change of {test.statistic:.1g} nats is no more than rounding"
        return replace(found, verdict="pass", reason=reason)
    return replace(found, verdict="fail" if test.pvalue <= level else "pass")


def _permuted(then: Sequence[Sequence[float]], now: Sequence[Sequence[float]]) -> Any:
    """scipy's permutation test over which repetition belongs to which side."""
    from scipy.stats import permutation_test

    table = np.asarray([*then, *now], dtype=np.float64).T  # [probes, R + S]
    table -= table.mean(axis=1, keepdims=True)

    def distance(one: Any, other: Any, axis: int) -> Any:
        gap = table[:, one].mean(axis=axis) - table[:, other].mean(axis=axis)
        return np.abs(gap).mean(axis=0)

    # What is dealt are columns of the table, so that all probes of a repetition stay together.
    return permutation_test(
        (np.arange(len(then)), np.arange(len(then), table.shape[1])),
        distance,
        vectorized=True,
        n_resamples=_DEALS,
        batch=256,
        alternative="greater",
        axis=-1,
        rng=np.random.default_rng(0),
    )


def smallest_p(repetitions: int, other: int) -> float:
    """The least p-value that so many repetitions a side can give."""
    mirrored = 2 if repetitions == other else 1
    return max(mirrored / math.comb(repetitions + other, repetitions), 1 / (_DEALS + 1))


def _refuse_other(probes: GoldenProbes, now: GoldenProbes) -> None:
    asked = [(p.id, p.prompt, p.tokens[0].token_id) for p in probes.probes]
    if asked != [(p.id, p.prompt, p.tokens[0].token_id) for p in now.probes]:
        raise UsageError(
            "the two sets of golden probes asked other prompts or followed other tokens; take the "
            "new ones with retake_golden, from the old ones"
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
