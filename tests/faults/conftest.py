"""The process that commands are forked from, and the run that nothing disturbs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from tests.cli.test_privacy import write_run
from tests.faults.oracle import Undisturbed, measured_in
from tests.faults.stage import Stage, fork_with_disk
from whet.core.errors import NothingQualifiesError

LOAD = {
    "order": "blocks",
    "concurrency": [2],
    "trials": 2,
    "min_requests": 4,
    "requests_per_slot": 2,
    "warmup_requests": 2,
    "request_timeout_s": 1.0,
    "confirm": False,
}


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log's traffic on two variants at one load, two trials each, on a tiny checkpoint."""
    folder = tmp_path_factory.mktemp("spec")
    fork_with_disk(folder / "disk.so")
    path, log = write_run(folder), folder / "log.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:240]))
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"load": LOAD}))
    return path


@pytest.fixture
def stage(tmp_path: Path, spec: Path) -> Stage:
    return Stage(folder=tmp_path, spec=spec)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, spec: Path) -> Undisturbed:
    """The run without a fault."""
    stage = Stage(folder=tmp_path_factory.mktemp("undisturbed"), spec=spec)
    began = time.monotonic()
    result = stage.run()
    assert result.code in (0, NothingQualifiesError.exit_code), result.out + result.err
    return Undisturbed(
        measured=measured_in(stage.root),
        seconds=time.monotonic() - began,
        writes=int((stage.folder / "writes").read_text()),
    )
