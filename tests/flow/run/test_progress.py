"""``progress.jsonl``: what a viewer reads of a run while it goes on."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_privacy import MARK, write_run
from tests.flow.stage import FakeEngine, install, tiny_spec
from whet.core.errors import UsageError
from whet.core.load import Load
from whet.core.protocols import Silent
from whet.core.records.search import Tried
from whet.core.records.summary import CellSummary
from whet.core.store import RunStore
from whet.flow.run.options import RunOptions, SpecOptions
from whet.flow.run.pipeline import ProgressLog, execute, read_run


def events(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "progress.jsonl").read_text().splitlines()]


class Cells(Silent):
    """Takes what is handed on."""

    def __init__(self) -> None:
        self.cells: list[str] = []

    def cell(self, cell: CellSummary, standing: str) -> None:
        self.cells.append(f"{cell.variant} {standing}")


def test_a_run_has_its_start_servers_messages_and_end_and_no_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(FakeEngine(), monkeypatch)
    options = RunOptions(output_dir=tmp_path / "runs")
    spec, root, source = read_run(write_run(tmp_path), SpecOptions(), options)
    execute(spec, root, source=source, options=options, observer=Silent())
    lines = events(root)
    assert lines[0]["event"] == "run"
    assert (lines[0]["name"], lines[0]["time_s"], lines[0]["resumed"]) == ("tiny", None, False)
    assert lines[0]["variants"] == ["fp16", "other"]
    ready = [line for line in lines if line["event"] == "server ready"]
    assert {line["variant"] for line in ready} == {"fp16", "other"}
    assert all(line["ready_s"] == 0.1 for line in ready)
    assert {"stage", "note"} <= {line["event"] for line in lines}
    assert lines[-1]["event"] == "end"
    assert lines[-1]["stopped"] is None
    assert all(datetime.fromisoformat(line["at"]).tzinfo is not None for line in lines)
    seconds = [line["s"] for line in lines]
    assert seconds == sorted(seconds)
    assert MARK not in (root / "progress.jsonl").read_text()


def test_a_resumed_run_appends_after_a_torn_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(FakeEngine(), monkeypatch)
    spec, root = tiny_spec(tmp_path), tmp_path / "run"
    bad = RunOptions(executor="local", address="x:1")
    with pytest.raises(UsageError):
        execute(spec, root, source=b"", options=bad, observer=Silent())
    first = events(root)
    assert (first[-1]["event"], first[-1]["stopped"]) == ("end", "UsageError")
    with (root / "progress.jsonl").open("a") as file:
        file.write('{"at": "torn')
    execute(spec, root, source=b"", options=RunOptions(resume=True), observer=Silent())
    lines = (root / "progress.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines[: len(first)]] == first
    assert lines[len(first)] == '{"at": "torn'
    assert json.loads(lines[len(first) + 1])["event"] == "run"


def test_cells_and_steps_of_a_search_are_events_and_handed_on(tmp_path: Path) -> None:
    observer, spec = Cells(), tiny_spec(tmp_path)
    with RunStore.open(tmp_path / "run") as store:
        log = ProgressLog(store, observer, spec)
        step = Tried(variant="awq", wave=1, loads=(Load.at(8),), value="{}", move="4 bit")
        store.put("tried", "awq", step)
        cell = CellSummary(
            variant="awq",
            load=Load.at(8),
            status="complete",
            trials=1,
            requests=4,
            errors=0,
            memory_kind="device",
            figures={"memory_gb": 2.5},
        )
        log.cell(cell, "adopted")
    _, tried, measured = events(tmp_path / "run")
    assert (tried["event"], tried["variant"], tried["move"]) == ("search step", "awq", "4 bit")
    assert (measured["event"], measured["standing"]) == ("cell", "adopted")
    assert measured["cell"]["memory_gb"] == 2.5
    assert measured["cell"]["load"] == {"concurrency": 8}
    assert observer.cells == ["awq adopted"]
