"""``whet`` in a forked process, on a scripted engine, a disk that fail at one point."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stage import Said
from tests.faults.cells import Cell
from tests.flow.stage import FakeEngine, FakeServer, install
from tests.scripted_server import scripted_server
from whet.cli.main import main
from whet.core.errors import EngineStartError
from whet.core.protocols import Server
from whet.core.records.engine import ResolvedEngine
from whet.core.store import RunStore
from whet.load import disturbance, health, trial
from whet.report.charts import svg

NEVER = 1 << 60
_LIMIT_S = 240
_CHART = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = (
    *("scipy.stats", "transformers.tokenization_utils_tokenizers", "altair", "pyarrow.parquet"),
    *("whet.cli.run.run", "whet.flow.run.pipeline", "whet.report.run.files", "whet.cli.observer"),
    *("whet.engines.vllm.engine", "whet.report.run.live", "pandas.core.arrays.arrow", "uvloop"),
    __name__,
)
"""Imported before the fork, so that a command starts at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Writes:
    """Calls that change the folder of a command, by number: the failing ones and their error.

    ``error`` -1 ends the process there, as ``kill -9`` does.
    """

    first: int = NEVER
    last: int = NEVER
    error: int = 0


@dataclass
class FaultyEngine(FakeEngine):
    """A scripted engine; at the point of the cell the fault comes, and is noted in ``folder``."""

    cell: Cell | None = None
    folder: Path = Path()
    up: FakeServer | None = None
    counts: Counter[str] = field(default_factory=Counter)
    is_due: bool = False
    trials: int = 0

    def count(self, what: str) -> None:
        """Something that may be the point has happened."""
        self.counts[what] += 1
        if self.cell is None or (what, self.counts[what]) != self.cell.at:
            return
        fault = self.cell.fault
        if fault.signal:
            self._note()
            os.kill(os.getpid(), fault.signal)
        elif fault.disk:
            self._note()
            fail_writes(Writes(first=0, error=fault.disk))
        else:
            self.is_due = True
            self._strike()

    def _strike(self) -> None:
        """Let the fault meet the running server, or wait for the next one."""
        fault, up = self.cell and self.cell.fault, self.up
        if fault is None or up is None or not self.is_due or fault.refuses:
            return
        self.is_due = False
        self._note()
        up.dead = fault.dies
        up.scripted.script = replace(up.scripted.script, **fault.script)
        if fault.forgets:
            up.scripted.counters.clear()

    def _note(self) -> None:
        variant = self.started[-1] if self.started else ""
        start = self.started.count(variant) - 1
        (self.folder / "fault").write_text(
            json.dumps({"variant": variant, "start": start, "trials": self.trials})
        )

    @contextmanager
    def _serve(self, resolved: ResolvedEngine, log: Path) -> Iterator[Server]:
        self.started.append(resolved.variant.name)
        self.count("serve")
        if self.is_due and self.cell is not None and self.cell.fault.refuses:
            self.is_due = False
            self._note()
            raise EngineStartError("CUDA out of memory; lower gpu_memory_utilization")
        is_restarted = self.cell is not None and self.cell.state == "restarted"
        dead = is_restarted and len(self.started) == 1
        with scripted_server(gap_s=0.001, words=True, fault="reset" if dead else None) as scripted:
            scripted.requests = _Requests(partial(self.count, "window"))
            self.up = FakeServer(scripted, resolved.variant.name, dead)
            self._strike()
            try:
                yield self.up
            finally:
                self.up = None


class _Requests(list[dict[str, Any]]):
    """Bodies that a server received; each of a timed window is counted."""

    is_timed = False

    def __init__(self, count: Any) -> None:
        super().__init__()
        self.count = count

    def append(self, body: dict[str, Any]) -> None:
        super().append(body)
        if _Requests.is_timed:
            self.count()


def fail_writes(writes: Writes) -> None:
    """Count the calls that change the current folder, and let those of ``writes`` fail."""
    fail = ctypes.CDLL(None).disk_fail
    fail.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    fail(os.getcwd().encode(), writes.first, writes.last, writes.error)


def _watch(engine: FaultyEngine, patch: pytest.MonkeyPatch) -> None:
    """Let the engine count records and timed requests, and accept a late client."""
    note, window = RunStore.note, trial.run_window

    def counted(store: RunStore, kind: str, key: str, *, status: str, **more: Any) -> None:
        note(store, kind, key, status=status, **more)
        engine.trials += kind == "trials"
        if status == "complete":
            engine.count(kind)

    async def timed(*words: Any) -> None:
        _Requests.is_timed = True
        try:
            await window(*words)
        finally:
            _Requests.is_timed = False

    patch.setattr(RunStore, "note", counted)
    patch.setattr(trial, "run_window", timed)
    patch.setattr(svg, "_draw", lambda _spec: _CHART)  # by another process, which nothing disturbs
    patch.setattr(health, "LATENESS_FLOOR_NS", 10 * 10**9)
    patch.setattr(health, "MAX_CPU_SHARE", 2.0)
    patch.setattr(disturbance, "MAX_LOST_SHARE", 1.0)


def _perform(folder: Path, words: Sequence[str], cell: Cell | None, writes: Writes) -> None:
    """Run one command in ``folder/work``, in a process that was forked for it."""
    gc.freeze()  # what was imported before takes no part in the collections before each trial
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # the scripted server's connections
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder / "work")
    tempfile.tempdir = str(folder / "work" / "tmp")
    os.environ |= {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "TMPDIR": tempfile.tempdir}
    del os.environ["LD_PRELOAD"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = ["whet", *words]
    engine = FaultyEngine(cell=cell, folder=folder)
    with pytest.MonkeyPatch.context() as patch:
        install(engine, patch)
        _watch(engine, patch)
        fail_writes(writes)
        try:
            main()
        finally:
            (folder / "writes").write_text(str(ctypes.CDLL(None).disk_calls()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A folder in which one run is started, stopped and resumed."""

    folder: Path
    spec: Path

    @property
    def root(self) -> Path:
        """The run directory."""
        return self.folder / "work" / "runs" / "tiny"

    @property
    def words(self) -> tuple[str, ...]:
        return ("run", str(self.spec), "-o", "runs")

    def start(self, *more: str, cell: Cell | None = None, writes: Writes = Writes()) -> BaseProcess:
        """Start the command in a process that can be killed."""
        (self.folder / "work" / "tmp").mkdir(parents=True, exist_ok=True)
        for name in ("out", "err"):
            (self.folder / name).write_text("")  # also where it is killed before it begins
        process = _CONTEXT.Process(
            target=_perform, args=(self.folder, (*self.words, *more), cell, writes)
        )
        process.start()
        return process

    def end(self, process: BaseProcess) -> Said:
        """Wait for the end of a command; one that hangs fails the test."""
        process.join(_LIMIT_S)
        hangs = process.exitcode is None
        process.kill()
        process.join()
        out, err = ((self.folder / name).read_text() for name in ("out", "err"))
        assert not hangs, out + err
        return Said(code=int(process.exitcode or 0), out=out, err=err)

    def run(self, *more: str, **how: Any) -> Said:
        """Start the command and wait for its end."""
        return self.end(self.start(*more, **how))


def fork_with_disk(library: Path) -> None:
    """Start the process that commands are forked from, with the disk that fails."""
    source = Path(__file__).with_name("disk.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    _CONTEXT.set_forkserver_preload(list(_PRELOADED))
    os.environ["LD_PRELOAD"] = str(library)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        del os.environ["LD_PRELOAD"]
