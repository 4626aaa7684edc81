"""Measure a few cells of one server, or take those of stored runs, and fit coefficients."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import yaml

from whet.checkpoint import read_facts
from whet.core.errors import EngineStartError, MeasurementError, UsageError
from whet.core.protocols import Observer, Server
from whet.core.provenance import Device, find_device, now
from whet.core.records import EngineFacts, ModelFacts, ResolvedEngine
from whet.core.run import Run
from whet.core.spec import EngineSpec
from whet.core.store import write_atomic
from whet.engines import get_profile
from whet.engines.together import Start, serve_together
from whet.flow.calibrate.options import CalibrateOptions
from whet.flow.calibrate.points import CPU_POINTS, GPU_POINTS, Point, measure_points
from whet.flow.serving import plain_variant, resolve_alone
from whet.predict.hardware import Sheet, sheet_of
from whet.predict.performance.coefficients import Coefficients
from whet.predict.performance.fit import Observation, fit, residuals
from whet.predict.performance.observe import limits_of, observations_of, timed_requests
from whet.predict.performance.work import work_of
from whet.predict.settings import read_settings

_FIGURES: Final = ("ttft", "tpot", "e2e")
_ROUNDED: Final = 4
_FOLDS: Final = 5
_SPARE: Final = 1.2
"""KV cache of a server beside others, over the mean tokens in flight of the largest point."""


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


def calibrate(models: Sequence[Path], options: CalibrateOptions, observer: Observer) -> Calibrated:
    """Write the calibration of this machine, or of the machine of stored runs.

    The servers of ``models`` start together and are measured one after the other; their cells are
    fitted together.

    ``UsageError`` without cells to fit to; ``MeasurementError`` where no cell has figures.
    """
    if options.runs:
        runs = [Run.read(path) for path in options.runs]
        device = runs[0].require_environment().device
        observations = [each for run in runs for each in observations_of(run)]
        versions = {each.engine_version for run in runs for each in run.engines.values()}
        engine = f"vLLM {', '.join(sorted(versions))}"
    elif not models:
        raise UsageError("give a model to calibrate with, or stored runs with --run")
    else:
        device = find_device()
        engine, observations = _measured(models, options, device, observer)
    if not observations:
        raise MeasurementError("no cell has figures; see the warnings above, and calibrate again")
    sheet = sheet_of(device)
    observer.stage("fit", f"{len(observations)} cells")
    done = Calibrated(
        device=device,
        engine=engine,
        coefficients=fit(observations, sheet),
        errors=_left_out(observations, sheet, observer),
        cells=len(observations),
    )
    write_atomic(options.out, json.dumps(done.document, indent=1) + "\n")
    return done


def _measured(
    models: Sequence[Path], options: CalibrateOptions, device: Device, observer: Observer
) -> tuple[str, list[Observation]]:
    """Measure the points that each model has room for; the engine's name and version."""
    every = GPU_POINTS if device.kind == "cuda" else CPU_POINTS
    facts = [read_facts(model) for model in models]
    limit = min(each.max_position for each in facts)
    points = tuple(each for each in every if each.longest <= limit)
    observations: list[Observation] = []
    with TemporaryDirectory(prefix="whet-") as scratch:
        several = device.kind == "cuda" and len(models) > 1
        starts = [
            _start(
                model,
                points,
                {**(_share(known, points) if several else {}), **_engine_args(options.engine_arg)},
                Path(scratch) / f"{model.name}-{number}.log",
            )
            for number, (model, known) in enumerate(zip(models, facts, strict=True))
        ]
        observer.stage("serve", f"{', '.join(each.name for each in models)} on {device.name}")
        with serve_together(starts, observer) as outcomes:
            for model, known, start, server in zip(models, facts, starts, outcomes, strict=True):
                if isinstance(server, EngineStartError):
                    raise server
                observer.stage("measure", model.name)
                observations += _cells(known, start, server, points, observer)
    resolved = starts[0].resolved
    return f"{get_profile(resolved.engine).title} {resolved.engine_version}", observations


def _start(model: Path, points: Sequence[Point], args: Mapping[str, Any], log: Path) -> Start:
    length = max((each.longest for each in points), default=0)
    spec = EngineSpec(args=dict(args))
    variant = plain_variant(model, spec, max_model_len=length, eager=False)
    engine, resolved = resolve_alone(variant, spec)
    return Start(engine=engine, resolved=resolved, log=log)


def _share(facts: ModelFacts, points: Sequence[Point]) -> dict[str, Any]:
    """One of several servers on a GPU takes the KV cache that the points need, and no more."""
    tokens = max((each.in_flight * (each.prompt + each.output) for each in points), default=0)
    pool = round(_SPARE * tokens * facts.kv_bytes_per_token)
    return {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": pool}


def _cells(
    facts: ModelFacts, start: Start, server: Server, points: Sequence[Point], observer: Observer
) -> Iterator[Observation]:
    resolved, model = start.resolved, Path(start.resolved.variant.model_path)
    started = get_profile(resolved.engine).read_log(server.log_text())
    device = find_device()
    for point, trial in measure_points(
        server, resolved, points, tokenizer=model, observer=observer
    ):
        rows = timed_requests(trial, shared=0) if trial.status == "complete" else None
        if rows is None:
            reason = trial.failure or "requests failed"
            observer.warn(f"{point.in_flight} in flight has no figures: {reason}")
            continue
        yield _observation(facts, resolved, started, device, point.in_flight, rows)


def _observation(
    facts: ModelFacts,
    resolved: ResolvedEngine,
    started: EngineFacts,
    device: Device,
    in_flight: int,
    rows: Any,
) -> Observation:
    settings = read_settings(resolved.variant, target=facts, device=device)
    return Observation(
        group=f"{facts.stored.scheme}, {in_flight} in flight",
        work=work_of(facts, settings),
        draft=None,
        limits=limits_of(resolved.variant, settings, started, device),
        requests=rows.requests,
        in_flight=in_flight,
        measured=rows.latencies,
    )


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


def _engine_args(words: Sequence[str]) -> dict[str, Any]:
    args = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--engine-arg {word!r} must be NAME=VALUE")
        args[name.strip().lstrip("-").replace("-", "_")] = yaml.safe_load(value)
    return args


def rounded(value: Any) -> Any:
    """Numbers to four digits, within a document."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return float(f"{value:.{_ROUNDED}g}") if isinstance(value, float) else value
