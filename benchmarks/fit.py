"""Coefficients of ``whet plan`` fitted to measured cells: bounded least squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from whet.core.spec import SIXTEEN_BIT
from whet.predict.hardware import Sheet
from whet.predict.performance.coefficients import Coefficients
from whet.predict.performance.observe import Latencies, Observation, mean_latencies
from whet.predict.performance.simulator import simulate
from whet.predict.performance.step import StepModel

_Values = NDArray[np.float64]

TYPICAL: Final = Coefficients(
    bandwidth={SIXTEEN_BIT: 0.8},
    compute={SIXTEEN_BIT: 0.7},
    kv_bandwidth=0.7,
    attention=0.4,
    layer_s=28e-6,
    step_s=1e-3,
    sequence_s=4e-6,
    prefill_s=11e-3,
    request_s=1.5e-3,
    message_s=6e-5,
    turns=8.0,
)
"""Where a fit begins."""
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


def fit(observations: Sequence[Observation], sheet: Sheet) -> Coefficients:
    """Coefficients within physical bounds with the smallest logarithmic errors, and a soft loss."""
    space = _Space(sorted({each.work.scheme for each in observations}), TYPICAL)

    def loss(point: _Values) -> _Values:
        coefficients = space.coefficients(point)
        rows = [
            _WEIGHTS[name] * math.log(value / measured)
            for each in observations
            for (name, value), (_, measured) in zip(
                predict_latencies(each, coefficients, sheet).items(),
                each.measured.items(),
                strict=True,
            )
            if value and measured and value > 0 and measured > 0
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


def predict_latencies(
    observation: Observation, coefficients: Coefficients, sheet: Sheet
) -> Latencies:
    """The latencies that coefficients give for the observation's requests."""
    model = StepModel(observation.work, sheet, coefficients, draft=observation.draft)
    result = simulate(
        observation.requests, model, observation.limits, in_flight=observation.in_flight
    )
    return mean_latencies(result, observation.in_flight)


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
