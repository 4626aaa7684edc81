"""Coefficients fitted to what was measured: bounded least squares on simulated latencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from whet.core.errors import UsageError
from whet.predict.hardware import Sheet
from whet.predict.performance.coefficients import TYPICAL, Coefficients
from whet.predict.performance.simulator import Limits, Request, Simulated, simulate
from whet.predict.performance.step import Draft, StepModel
from whet.predict.performance.work import Work

_Values = NDArray[np.float64]

_WEIGHTS: Final = {"ttft": 0.5, "tpot": 1.0, "e2e": 1.0, "steps": 0.7}
_BOUNDS: Final = {
    "kv_bandwidth": (0.1, 1.0),
    "attention": (0.02, 1.0),
    "layer_s": (0.0, 1e-3),  # a GPU takes less than a tenth of it, the demo's pair on a CPU 0.9 ms
    "step_s": (0.0, 5e-3),
    "sequence_s": (0.0, 5e-5),
    "prefill_s": (0.0, 2e-2),
    "request_s": (0.0, 1e-2),
    "message_s": (0.0, 2e-4),
    "turns": (0.0, 30.0),
}
_SHARES: Final = ((0.05, 0.93), (0.03, 0.9))
"""Bounds of bandwidth and compute: a plain copy on an H200 reaches 0.9 of its data sheet."""
_PRIOR: Final = 0.1
"""How strongly a coefficient that the rows say nothing of stays where the fit begins."""
_STEP: Final = 3e-2
"""Of the logits: the simulator's steps are whole, so a smaller difference is noise."""
_EVALUATIONS: Final = 40
_TOLERANCE: Final = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Latencies:
    """Means over the requests after the first wave, in seconds; ``steps`` of the whole trial."""

    ttft: float
    tpot: float
    e2e: float
    steps: float | None = None

    def items(self) -> tuple[tuple[str, float | None], ...]:
        """By name."""
        return (("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e), ("steps", self.steps))


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One measured cell: what ran, the requests in the order they were sent, and what it took.

    ``group`` names the variant and the model, so that rows can be held out together. Without
    ``in_flight`` the requests arrive when they say.
    """

    group: str
    work: Work
    draft: Draft | None
    limits: Limits
    requests: tuple[Request, ...]
    in_flight: int | None
    measured: Latencies


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """ln(predicted ÷ measured) of one observation, by figure."""

    observation: Observation
    errors: tuple[tuple[str, float], ...]


def predict_latencies(
    observation: Observation, coefficients: Coefficients, sheet: Sheet
) -> Latencies:
    """The latencies that coefficients give for the observation's requests."""
    model = StepModel(observation.work, sheet, coefficients, draft=observation.draft)
    result = simulate(
        observation.requests, model, observation.limits, in_flight=observation.in_flight
    )
    return mean_latencies(result, observation.in_flight)


def mean_latencies(result: Simulated, in_flight: int | None) -> Latencies:
    """Means without the first wave of requests of a closed loop."""
    timed = result.requests[first_wave(in_flight, len(result.requests)) :]
    tpot = [each.tpot_s for each in timed if each.request.output > 1]
    return Latencies(
        ttft=float(np.mean([each.ttft_s for each in timed])),
        tpot=float(np.mean(tpot)) if tpot else math.nan,
        e2e=float(np.mean([each.e2e_s for each in timed])),
        steps=float(result.steps),
    )


def first_wave(in_flight: int | None, requests: int) -> int:
    """How many requests to leave out: those sent at once, at most half of all."""
    return min(in_flight or 0, requests // 2)


def residuals(
    observations: Sequence[Observation], coefficients: Coefficients, sheet: Sheet
) -> list[Residual]:
    """The errors of every observation."""
    return [
        Residual(
            observation=each,
            errors=tuple(_errors(predict_latencies(each, coefficients, sheet), each.measured)),
        )
        for each in observations
    ]


def fit(
    observations: Sequence[Observation], sheet: Sheet, *, start: Coefficients = TYPICAL
) -> Coefficients:
    """Coefficients within physical bounds that give the smallest errors.

    Logarithmic errors of mean TTFT, TPOT, E2E and steps, with a soft loss, and a weak pull towards
    ``start``. Raises ``UsageError`` without observations.
    """
    if not observations:
        raise UsageError("there is nothing to calibrate with", fix="measure at least one cell")
    space = _Space(sorted({each.work.scheme for each in observations}), start)

    def loss(point: _Values) -> _Values:
        coefficients = space.coefficients(point)
        rows = [
            _WEIGHTS[name] * error
            for residual in residuals(observations, coefficients, sheet)
            for name, error in residual.errors
        ]
        return np.concatenate([np.array(rows), _PRIOR * (point - space.start)])

    solution = least_squares(
        loss,
        space.start,
        loss="soft_l1",
        f_scale=_TOLERANCE,
        max_nfev=_EVALUATIONS,
        diff_step=_STEP,
    )
    return space.coefficients(solution.x)


def _errors(predicted: Latencies, measured: Latencies) -> list[tuple[str, float]]:
    true = dict(measured.items())
    return [
        (name, math.log(value / actual))
        for name, value in predicted.items()
        if value and (actual := true[name]) and value > 0 and actual > 0
    ]


class _Space:
    """Coefficients as logits within their bounds: shares by scheme first, then the others."""

    def __init__(self, schemes: Sequence[str], start: Coefficients) -> None:
        self.schemes = schemes
        bounds, values = [], []
        for place, limits in enumerate(_SHARES):
            bounds += [limits] * len(schemes)
            values += [start.of(scheme)[place] for scheme in schemes]
        bounds += list(_BOUNDS.values())
        values += [getattr(start, name) for name in _BOUNDS]
        self.low, self.high = (np.array(side) for side in zip(*bounds, strict=True))
        margin = 1e-3 * (self.high - self.low)
        inside = np.clip(np.array(values), self.low + margin, self.high - margin)
        self.start: _Values = -np.log((self.high - self.low) / (inside - self.low) - 1)
        self._base = start

    def coefficients(self, point: _Values) -> Coefficients:
        values = self.low + (self.high - self.low) / (1 + np.exp(-point))
        count = len(self.schemes)
        shares = [float(value) for value in values]
        others = dict(zip(_BOUNDS, shares[2 * count :], strict=True))
        return replace(
            self._base,
            bandwidth={**self._base.bandwidth, **dict(zip(self.schemes, shares, strict=False))},
            compute={**self._base.compute, **dict(zip(self.schemes, shares[count:], strict=False))},
            **others,
        )
