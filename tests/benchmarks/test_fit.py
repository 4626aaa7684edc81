"""The fit finds what it was made of, and keeps within bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from benchmarks.fit import TYPICAL, fit, predict_latencies

from tests.predict.performance.builders import LIMITS, SHEET, WORK
from tests.predict.performance.test_simulator import lengths
from whet.predict.performance.coefficients import Coefficients
from whet.predict.performance.observe import Latencies, Observation

TRUE = replace(
    TYPICAL,
    bandwidth={"16bit": 0.6, "FP8": 0.5},
    compute={"16bit": 0.5, "FP8": 0.4},
    layer_s=4e-5,
    prefill_s=6e-3,
)
UNKNOWN = Latencies(ttft=0.0, tpot=0.0, e2e=0.0)


def observed(in_flight: int, scheme: str, truth: Coefficients = TRUE) -> Observation:
    bits = 8 if scheme == "FP8" else 16
    row = Observation(
        group=f"{scheme} {in_flight}",
        work=replace(WORK, scheme=scheme, weight_bytes=WORK.weight_bytes * bits / 16),
        draft=None,
        limits=LIMITS,
        requests=tuple(lengths(max(3 * in_flight, 12), seed=in_flight)),
        in_flight=in_flight,
        measured=UNKNOWN,
    )
    return replace(row, measured=predict_latencies(row, truth, SHEET))


def test_loads_that_were_not_fitted_are_predicted() -> None:
    rows = [observed(n, scheme) for n in (1, 8, 32) for scheme in ("16bit", "FP8")]
    coefficients = fit(rows, SHEET)
    unseen = [observed(n, scheme) for n in (3, 16) for scheme in ("16bit", "FP8")]
    errors = [
        abs(math.log((value or 1) / (measured or 1)))
        for each in unseen
        for (_, value), (_, measured) in zip(
            predict_latencies(each, coefficients, SHEET).items(), each.measured.items(), strict=True
        )
    ]
    assert np.median(errors) < 0.03
    assert max(errors) < 0.15


def test_shares_stay_physical_where_the_device_seems_too_fast() -> None:
    impossible = replace(observed(1, "16bit"), measured=Latencies(ttft=1e-4, tpot=1e-5, e2e=1e-2))
    coefficients = fit([impossible], SHEET)
    assert all(0 < share <= 1 for share in coefficients.bandwidth.values())
    assert coefficients.layer_s >= 0
