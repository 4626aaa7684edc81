"""Calibrations of GPUs: coefficients, and the error that they had where they were not fitted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Final

from whet.predict.performance.coefficients import Coefficients
from whet.predict.performance.work import Work

_STORED: Final = "calibrations.json"
_PARALLEL_ERROR: Final = 0.3
_EXPERT_ERROR: Final = 0.4
"""Stated errors of what no calibration has, added as independent ones."""
_NEAREST: Final = {"H100 SXM": "H200", "H100 PCIe": "H200", "B200": "H200"}
"""Where nothing was measured: whose shares of the data sheet are taken."""
_DEFAULT: Final = "H200"
_UNMEASURED_ERROR: Final = 0.4
"""Stated error of a GPU whose coefficients are another one's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Coefficients with their origin.

    ``errors`` are the p95 of the relative error of TTFT, TPOT and E2E (``ttft`` …) on
    configurations that were not fitted.
    """

    gpu: str
    engine: str
    source: str
    errors: Mapping[str, float]
    coefficients: Coefficients

    def extended(self, work: Work) -> Calibration:
        """With wider errors where the work is divided as no calibration was, or has experts."""
        unknown = {}
        if work.devices * work.stages * work.ranks > 1:
            unknown["several GPUs"] = _PARALLEL_ERROR
        if work.expert_bytes:
            unknown["experts"] = _EXPERT_ERROR
        if not unknown:
            return self
        errors = {name: math.hypot(error, *unknown.values()) for name, error in self.errors.items()}
        source = f"{self.source}; {' and '.join(unknown)} never measured"
        return replace(self, source=source, errors=errors)

    @property
    def text(self) -> str:
        """Where the figures come from, in one line."""
        return f"{self.source}, {self.engine}"


def calibration_of(gpu: str) -> Calibration:
    """The calibration of a GPU; another one's shares, with a wider error, where it has none."""
    stored = _calibrations()
    if gpu in stored:
        return stored[gpu]
    other = stored[_NEAREST.get(gpu, _DEFAULT)]
    return Calibration(
        gpu=gpu,
        engine=other.engine,
        source=f"data sheet, with the shares of an {other.gpu}",
        errors={name: max(each, _UNMEASURED_ERROR) for name, each in other.errors.items()},
        coefficients=other.coefficients,
    )


@cache
def _calibrations() -> dict[str, Calibration]:
    text = resources.files(__package__).joinpath(_STORED).read_text(encoding="utf-8")
    return {
        each["gpu"]: Calibration(
            gpu=each["gpu"],
            engine=each["engine"],
            source=each["source"],
            errors=each["errors"],
            coefficients=Coefficients(**each["coefficients"]),
        )
        for each in json.loads(text)
    }
