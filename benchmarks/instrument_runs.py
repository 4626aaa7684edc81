"""One run of one client: its row, its report, what the server did for it, CPU and memory."""

from __future__ import annotations

import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.chunk_server import Pace, ServerRecord
from benchmarks.instrument_tools import Client, Load, Report, read_answer
from benchmarks.instrument_truth import paced_server, reset, timed, truth
from benchmarks.jobs import ROOT, JobError, last_words
from benchmarks.table import Row
from whet.core.errors import WhetError
from whet.core.provenance import now
from whet.core.units import MIB

_SAMPLE_S: Final = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """Who runs, and where: ``folder`` holds what a tool writes and is emptied before each run."""

    clients: Sequence[Client]
    versions: Mapping[str, str]
    folder: Path
    limit_s: float
    quick: bool = False

    def in_turn(self, repeat: int) -> list[Client]:
        """The clients, beginning with another one each time."""
        turn = repeat % len(self.clients)
        return [*self.clients[turn:], *self.clients[:turn]]

    def row(self, client: Client, name: str, repeat: int, load: Load) -> Row:
        """The columns of every table."""
        return {
            "tool": client.name,
            "table": name,
            "repeat": repeat,
            "in_flight": load.in_flight,
            "requests": load.requests,
            "pieces": load.tokens,
            "version": self.versions.get(client.name),
            "started_at": now(),
            "complaint": None,
            "failure": None,
        }

    def run(
        self, client: Client, pace: Pace, load: Load, *, memory: bool = False
    ) -> tuple[Row, Report, list[ServerRecord]]:
        """Run a tool once: columns of a row, what it reports, and the requests that it timed.

        ``JobError`` where it wrote no answer, or speaks of requests that the server did not serve.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        with paced_server(pace) as url:
            reset(url)
            command = client.command(url, load, self.folder)
            spent = run_client(client, command, self.folder, limit_s=self.limit_s, memory=memory)
            records = truth(url)
        report = read_answer(client, self.folder)
        complaint = spent.complaint
        if report.count != load.requests:
            complaint = f"figures of {report.count} of {load.requests} requests"
        values = {
            **report.figures,
            **report.more,
            "counted": report.count,
            "cpu_s": spent.cpu_s,
            "total_s": spent.total_s,
            "peak_mib": None if spent.peak_bytes is None else spent.peak_bytes / MIB,
            "complaint": complaint,
        }
        return values, report, timed(records, report.count)


def attempt(row: Row, measure: Callable[[], Row]) -> Row:
    """The row with what ``measure`` found, or with why it found nothing."""
    try:
        return row | measure()
    except (JobError, WhetError, OSError, subprocess.TimeoutExpired) as error:
        return row | {"failure": str(error)}
    except (KeyError, TypeError, IndexError, ValueError) as error:
        return row | {"failure": f"its output holds no figures ({error!r})"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """A process tree: CPU of all its processes, and the sampled peak of its memory (PSS)."""

    cpu_s: float
    total_s: float
    peak_bytes: int | None
    complaint: str | None


def run_client(
    client: Client, command: list[str], folder: Path, *, limit_s: float, memory: bool
) -> Spent:
    """Run to the end. Raises ``JobError`` with the tool's last words where it wrote no answer.

    A tool that wrote its figures and then ended in protest keeps them; ``complaint`` is what it
    said. CPU is of every process that was waited for, so no other child may end meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started_s = time.monotonic()
    with log.open("w") as stream:
        try:
            process = subprocess.Popen(
                command,
                env=client.environment(),
                cwd=ROOT if client.name == "whet" else folder,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise JobError(str(error)) from error
        with _Memory(process.pid, watch=memory) as meter:
            try:
                process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired as error:
                _stop(process)
                raise JobError(f"stopped after {limit_s:g} s") from error
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    words_of_log = last_words(log.read_text(encoding="utf-8", errors="replace"))
    words = (
        f"it ended with code {process.returncode}: {words_of_log}" if process.returncode else None
    )
    if not (folder / client.answer).is_file():
        raise JobError(words or "it wrote no figures")
    return Spent(
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        total_s=time.monotonic() - started_s,
        peak_bytes=meter.peak_bytes,
        complaint=words,
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The whole tree: a tool's workers outlive it otherwise."""
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()
    process.wait()


class _Memory:
    """Peak of the proportional set size of a process tree: shared pages count once."""

    def __init__(self, pid: int, *, watch: bool) -> None:
        self._root = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._watch = watch
        self._peak = 0

    @property
    def peak_bytes(self) -> int | None:
        """None where nothing was watched or seen."""
        return self._peak or None

    def __enter__(self) -> _Memory:
        if self._watch:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._watch:
            self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            try:
                tree = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            self._peak = max(self._peak, sum(map(_pss_bytes, tree)))


def _pss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0
