"""Calibrations of GPUs: coefficients, and the error that they had where they were not fitted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from whet.core.errors import UsageError
from whet.core.store import read_json
from whet.predict.hardware import model_words
from whet.predict.performance.coefficients import Coefficients
from whet.predict.performance.work import Work

_STORED: Final = "calibrations.json"
_PARALLEL_ERROR: Final = 0.3
_EXPERT_ERROR: Final = 0.4
"""Stated errors of what no calibration has, added as independent ones."""
_METRICS: Final = ("ttft", "tpot", "e2e")
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


def calibration_of(gpu: str, own: Calibration | None = None) -> Calibration:
    """The calibration of a GPU; another one's shares, with a wider error, where it has none.

    ``own`` goes before the stored ones where it is of this GPU.
    """
    stored = _calibrations()
    if own is not None and model_words(gpu) & model_words(own.gpu):
        return replace(own, gpu=gpu)
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


def read_calibration(path: Path) -> Calibration:
    """What ``whet calibrate`` wrote. ``UsageError`` for another file."""
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is not a calibration ({error})", fix="write one with whet calibrate"
        ) from error
    return parse_calibration(data)


def parse_calibration(data: Mapping[str, Any]) -> Calibration:
    """A stored calibration. ``UsageError`` where a figure is missing."""
    try:
        return Calibration(
            gpu=data["gpu"],
            engine=data["engine"],
            source=data["source"],
            errors={name: float(data["errors"][name]) for name in _METRICS},
            coefficients=Coefficients(**data["coefficients"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the calibration is not whole: {error}", fix="calibrate again") from error


@cache
def _calibrations() -> dict[str, Calibration]:
    text = resources.files(__package__).joinpath(_STORED).read_text(encoding="utf-8")
    return {each["gpu"]: parse_calibration(each) for each in json.loads(text)}
