"""Coefficients of a machine's predictions, fitted to its stored runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from whet.core.errors import MeasurementError, UsageError
from whet.core.protocols import Observer
from whet.core.provenance import Device, now
from whet.core.run import Run
from whet.core.store import write_atomic
from whet.predict.hardware import Sheet, sheet_of
from whet.predict.performance.coefficients import Coefficients
from whet.predict.performance.fit import Observation, fit, residuals
from whet.predict.performance.observe import observations_of

_FIGURES: Final = ("ttft", "tpot", "e2e")
_ROUNDED: Final = 4
_FOLDS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """The result: coefficients, and the p95 of each figure's relative error.

    Errors are of cells that were left out of the fit that predicted them, a fifth at a time; cells
    of one variant are left out together.
    """

    device: Device
    engine: str
    coefficients: Coefficients
    errors: dict[str, float]
    cells: int

    @property
    def document(self) -> dict[str, Any]:
        """As ``whet plan --calibration`` reads it."""
        return {
            "gpu": self.device.name,
            "engine": self.engine,
            "source": f"measured {now()[:10]}",
            "errors": {name: round(value, 3) for name, value in self.errors.items()},
            "cells": self.cells,
            "coefficients": rounded(asdict(self.coefficients)),
        }


def calibrate(paths: Sequence[Path], out: Path, observer: Observer) -> Calibrated:
    """Write the calibration of the machine of stored runs to ``out``.

    ``MeasurementError`` where no cell has figures.
    """
    runs = [Run.read(path) for path in paths]
    device = runs[0].require_environment().device
    observations = [each for run in runs for each in observations_of(run)]
    versions = {each.engine_version for run in runs for each in run.engines.values()}
    if other := next(
        (run for run in runs if run.require_environment().device.name != device.name), None
    ):
        raise UsageError(f"{other.name} is of another machine", fix="fit the runs of one machine")
    if not observations:
        raise MeasurementError(
            "no cell of these runs has figures to fit to", fix="measure one again"
        )
    sheet = sheet_of(device)
    observer.stage("fit", f"{len(observations)} cells")
    done = Calibrated(
        device=device,
        engine=f"vLLM {', '.join(sorted(versions))}",
        coefficients=fit(observations, sheet),
        errors=_left_out(observations, sheet, observer),
        cells=len(observations),
    )
    write_atomic(out, json.dumps(done.document, indent=1) + "\n")
    return done


def _left_out(
    observations: Sequence[Observation], sheet: Sheet, observer: Observer
) -> dict[str, float]:
    """p95 of the errors of groups of cells under coefficients fitted to the others."""
    groups = sorted({each.group for each in observations})
    folds = [set(groups[number::_FOLDS]) for number in range(min(_FOLDS, len(groups)))]
    errors: dict[str, list[float]] = {name: [] for name in _FIGURES}
    for number, fold in enumerate(folds):
        observer.progress("parts left out", number, len(folds))
        others = [each for each in observations if each.group not in fold]
        if not others:
            continue
        held_out = [each for each in observations if each.group in fold]
        for residual in residuals(held_out, fit(others, sheet), sheet):
            for name, value in residual.errors:
                if name in errors:
                    errors[name].append(abs(float(np.expm1(value))))
    observer.progress("parts left out", len(folds), len(folds))
    return {name: float(np.quantile(each, 0.95)) for name, each in errors.items() if each}


def rounded(value: Any) -> Any:
    """Numbers to four digits, within a document."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return float(f"{value:.{_ROUNDED}g}") if isinstance(value, float) else value
