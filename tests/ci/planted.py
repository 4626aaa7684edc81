"""Copies of stored real runs with one planted change each."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.ci.compare import compare_runs, open_sides
from whet.ci.options import CiOptions
from whet.ci.result import Check, CiResult
from whet.core.load import Load
from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.records.summary import CellSummary
from whet.core.run import Run
from whet.core.store import RunStore, write_json
from whet.demo.bundled import RECORDED
from whet.metrics import METRICS

CPU_DEMO = Path(__file__).parents[2] / "results" / "cpu-demo" / "run.tar.xz"
H200 = RECORDED
"""Recommends fp8+eagle3+cache at concurrency 128; three starts, and two more that confirm it."""


def unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder)  # our own archive; filters came with 3.11.4
    return folder / "run"


def compared(
    candidate: Path, against: Path, *, variant: str | None = None, allowed: float = 0.07
) -> CiResult:
    options = CiOptions(variant=variant, max_regression=allowed)
    return compare_runs(open_sides(candidate, against, options))


def check(result: CiResult, name: str) -> Check:
    """The only check of this name."""
    (match,) = [each for each in result.checks if each.name == name]
    return match


def change_trials(
    root: Path, variant: str, change: Callable[[TrialRecord], TrialRecord], size: int | None = None
) -> None:
    with RunStore.open(root, resume=True) as store:
        for key, trial in store.keyed("trials", TrialRecord).items():
            if trial.variant == variant and size in (None, trial.load.concurrency):
                store.put("trials", key, change(trial))


def slower(factor: float) -> Callable[[TrialRecord], TrialRecord]:
    """Every time of a trial multiplied."""

    def scaled(event: RequestEvent) -> RequestEvent:
        return replace(
            event,
            scheduled_ns=round(event.scheduled_ns * factor),
            sent_ns=round(event.sent_ns * factor),
            chunk_ns=tuple(round(at * factor) for at in event.chunk_ns),
            ended_ns=round(event.ended_ns * factor),
        )

    def change(trial: TrialRecord) -> TrialRecord:
        return replace(
            trial,
            window_start_ns=round(trial.window_start_ns * factor),
            window_end_ns=round(trial.window_end_ns * factor),
            requests=tuple(map(scaled, trial.requests)),
        )

    return change


def scaled_counter(name: str, factor: float) -> Callable[[TrialRecord], TrialRecord]:
    """What a counter rose by in each trial, multiplied."""

    def change(trial: TrialRecord) -> TrialRecord:
        before, after = trial.counters_before, trial.counters_after
        assert before is not None
        assert after is not None
        start = before.get(name) or 0.0
        values = dict(after.values)
        values[name] = start + factor * (values[name] - start)
        return replace(trial, counters_after=replace(after, values=tuple(values.items())))

    return change


def change_record(root: Path, kind: str, key: str, cls: type[Any], **fields: Any) -> None:
    with RunStore.open(root, resume=True) as store:
        record = store.get(kind, key, cls)
        assert record is not None, (kind, key)
        store.put(kind, key, replace(record, **fields))


def change_cell(root: Path, variant: str, size: int, **fields: Any) -> None:
    """Change fields and figures of a stored cell."""
    key = f"{variant}--b{size:03d}"
    cell = Run.read(root).cell(variant, Load.at(size))
    assert cell is not None
    figures = {name: fields.pop(name) for name in METRICS if name in fields}
    change_record(root, "cells", key, CellSummary, figures={**cell.figures, **figures}, **fields)


def change_file(root: Path, name: str, change: Callable[[Any], None]) -> None:
    """Edit the plain JSON of one of the run's files."""
    data = json.loads((root / name).read_text())
    change(data)
    write_json(root / name, data)
