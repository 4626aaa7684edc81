"""The one oracle of the matrix, the kills and the failed writes."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.cli.stage import Said
from tests.faults.cells import Cell
from tests.faults.stage import Stage
from whet.core.errors import EngineError, Interrupted, NothingQualifiesError, StorageError
from whet.core.records.engine import ResolvedEngine, StartFacts
from whet.core.records.evidence import EngineFacts, VerdictSet
from whet.core.records.load import TrialRecord, WorkloadFacts
from whet.core.records.model import ModelFacts
from whet.core.records.quality import QualityRecord
from whet.core.records.summary import CellSummary
from whet.core.run import Run
from whet.core.store import RunStore

RECORDS = {
    "cells": CellSummary,
    "facts": EngineFacts,
    "models": ModelFacts,
    "quality": QualityRecord,
    "starts": StartFacts,
    "trials": TrialRecord,
    "variants": ResolvedEngine,
    "verdicts": VerdictSet,
    "workloads": WorkloadFacts,
}
_LINE = re.compile(r"(error|fix|warning): \S|! |  |Stopped\. Resume: whet run \S")
_UGLY = ("Traceback", "Exception ignored", "never retrieved", "never awaited", "Segmentation")
_KILLED = -9


@dataclass(frozen=True, kw_only=True, slots=True)
class Undisturbed:
    """The same run without a fault, its seconds, and its calls that change a folder."""

    measured: dict[str, object]
    seconds: float
    writes: int


def measured_in(root: Path) -> dict[str, object]:
    """What does not depend on times: each complete trial's traffic, and the run's inputs."""
    store = RunStore.read(root)
    trials = {
        key: (record.workload_sha256, len(record.requests))
        for key, record in store.keyed("trials", TrialRecord).items()
        if store.done("trials", key)
    }
    return trials | {path.name: path.read_bytes() for path in root.glob("inputs/*.*")}


def judge(
    stage: Stage, result: Said, codes: tuple[int | None, ...], trials: int
) -> dict[str, object]:
    """Judge a disturbed command by its exit code, message and records; resume what is not whole.

    Code None is the one that the records give; ``trials`` is how many there have to be. Returns
    what is there in the end. Trials that were finished before a resume keep every byte.
    """
    _judge_end(stage, result, codes)
    finished = _finished(stage.root)
    if len(finished) < trials or Run.read(stage.root).decision is None:
        _judge_end(stage, stage.run("--resume"), (None,))
        assert {name: (stage.root / name).read_bytes() for name in finished} == finished
    return measured_in(stage.root)


def judge_truth(stage: Stage, cell: Cell) -> None:
    """The requests that the fault met are errors, all others are not, and each is counted."""
    fault = json.loads((stage.folder / "fault").read_text())
    store = RunStore.read(stage.root)
    later = fault["trials"] + (cell.point == "in_a_trial")
    counted: dict[str, Counter[bool]] = defaultdict(Counter)
    for number, (key, trial) in enumerate(store.keyed("trials", TrialRecord).items()):
        failed = [event.error is not None for event in trial.requests]
        is_met = (trial.variant, trial.start) == (fault["variant"], fault["start"])
        if is_met and cell.fault.breaks and number >= later:
            assert all(failed), key
        if not is_met and trial.status == "complete":
            assert not any(failed), key
        counted[trial.variant][store.done("trials", key)] += sum(failed)
    for each in store.all("cells", CellSummary):
        errors = counted[each.variant]
        unfinished = errors[False] if each.status != "complete" else 0
        assert each.errors == errors[True] + unfinished, each.variant


def _judge_end(stage: Stage, result: Said, codes: tuple[int | None, ...]) -> None:
    text = result.out + result.err
    assert not [word for word in _UGLY if word in text], text
    assert result.code in codes or (None in codes and result.code == _code_of(stage.root)), text
    if result.code != _KILLED:
        lines = result.err.splitlines()
        assert all(map(_LINE.match, lines)), result.err
        heads = [line.split(":")[0] for line in lines]
        stops = result.code == Interrupted.exit_code
        assert heads.count("error") == (result.code != 0 and not stops), result.err
        assert heads.count("Stopped. Resume") == stops, result.err
    if result.code not in (_KILLED, StorageError.exit_code):
        assert not [each for end in (".tmp", ".part") for each in stage.root.rglob(f"*{end}")]
        assert (stage.root / "report.html").exists() or not list(stage.root.glob("cells/*"))
    _judge_records(stage.root)


def _code_of(root: Path) -> int:
    """The exit code of a run that came to its end, by its records."""
    run = Run.read(root)
    if all(cell.status != "complete" for cell in run.cells):
        return EngineError.exit_code
    chosen = run.decision is not None and run.decision.recommendation is not None
    return 0 if chosen else NothingQualifiesError.exit_code


def _judge_records(root: Path) -> None:
    """Everything that is named is there, whole and of its form."""
    if not (root / "journal.jsonl").exists():
        return
    store = RunStore.read(root)
    for kind, form in RECORDS.items():
        for key in store.keys(kind):
            if store.done(kind, key):
                assert isinstance(store.get(kind, key, form), form), (kind, key)
    for path in root.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=_refuse)
    if (root / "results.csv").exists():
        with (root / "results.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert all(None not in row and None not in row.values() for row in rows)


def _refuse(constant: str) -> float:
    raise AssertionError(f"{constant} in a record")


def _finished(root: Path) -> dict[str, bytes]:
    """The files of complete trials, by path."""
    if not (root / "journal.jsonl").exists():
        return {}
    store = RunStore.read(root)
    names = [f"trials/{key}.json" for key in store.keys("trials") if store.done("trials", key)]
    return {name: (root / name).read_bytes() for name in names}
