"""The engine's guardian: a small process between whet and the server.

It runs the engine, writes the engine's output to the log with secrets redacted, and ends every
process that the engine left anywhere below it, whichever way whet goes. It does not trust its
parent to say goodbye: the far end of a pipe closes when whet dies, also by kill -9, and the
parent's id changes. Orphans come to it rather than to init (PR_SET_CHILD_SUBREAPER), so that a
worker that left the process group is ended as well. Run by path:
``python -P supervise.py FD GRACE_S LOG -- ARGV…``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from whet.core.redact import redact

del sys.path[0]  # a forked engine imports its own packages alone

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.2
_READ_BYTES = 1 << 16
_LONGEST_LINE = 1 << 20
NOT_STARTED = 127


class Guardian:
    """One engine, its output and its end."""

    def __init__(self, *, lifeline: int, grace_s: float, log: BinaryIO) -> None:
        """``lifeline`` is the read end of the pipe that whet holds open while it lives."""
        self._lifeline = lifeline
        self._grace_s = grace_s
        self._log = log
        self._parent = os.getppid()
        self._stop = self._reaped = False
        self._code = 0
        self._rest = b""

    def run(self, argv: list[str]) -> int:
        """Run the engine as ``watch`` does; 127 where it cannot be started."""
        try:
            engine = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=become_engine,  # noqa: PLW1509  this process has one thread
            )
        except OSError as error:
            self._write(f"cannot start {argv[0]}: {error.strerror}\n".encode())
            return NOT_STARTED
        assert engine.stdout is not None
        return self.watch(engine.pid, engine.stdout.fileno())

    def watch(self, pid: int, output: int) -> int:
        """Wait until the child ends or a signal arrives; 128 + n for a death by signal n.

        ``output`` is the read end of what it prints.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask_to_stop)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            self._pump(pid, output, until=lambda: self._ended(pid) or self._stop)
            if not self._ended(pid):
                _signal_all(signal.SIGTERM)
                deadline = time.monotonic() + self._grace_s
                self._pump(pid, output, until=lambda: not _below() or time.monotonic() > deadline)
        finally:
            _end_all()
        while select.select([output], [], [], 0)[0] and self._copy(output):
            pass
        self._write(self._rest)
        self._ended(pid, options=0)
        return self._code if self._code >= 0 else 128 - self._code

    def _ended(self, pid: int, *, options: int = os.WNOHANG) -> bool:
        """Whether the child has ended, which is reaped once."""
        if not self._reaped and (ended := os.waitpid(pid, options))[0]:
            self._reaped, self._code = True, os.waitstatus_to_exitcode(ended[1])
        return self._reaped

    def _ask_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop = True

    def _pump(self, pid: int, output: int, *, until: Callable[[], bool]) -> None:
        watched = {output, self._lifeline}
        while not until():
            ready, _, _ = select.select(watched, [], [], _TICK_S)
            if self._lifeline in ready or os.getppid() != self._parent:
                self._stop = True
                watched.discard(self._lifeline)
            if output in ready and not self._copy(output):
                watched.discard(output)
            _collect_orphans(pid)
            self._ended(pid)

    def _copy(self, fd: int) -> bool:
        """Copy what is there, by whole lines so that no secret is cut in two; False at the end."""
        data = os.read(fd, _READ_BYTES)
        if not data:
            return False
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        if len(rest) > _LONGEST_LINE:
            whole, newline, rest = whole + newline + rest, b"", b""
        self._rest = rest
        self._write(whole + newline)
        return True

    def _write(self, data: bytes) -> None:
        # A full disk must not stop the engine: the run itself reports it when it writes a record.
        with contextlib.suppress(OSError):
            self._log.write(redact(data.decode(errors="replace")).encode())
            self._log.flush()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def become_engine() -> None:
    """Lead a process group, and die with the guardian. Called in the engine's process."""
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _below() -> list[psutil.Process]:
    """Every process below, also one in a session of its own; orphans come to this one."""
    return psutil.Process().children(recursive=True)


def _signal_all(number: int) -> None:
    for process in _below():
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _collect_orphans(engine: int) -> None:
    """Reap finished orphans; the engine itself is left to its guardian."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, options)) and ended.si_pid != engine:
            os.waitpid(ended.si_pid, 0)


def _end_all() -> None:
    """SIGKILL whatever lives below until nothing does; bounded, for a D state cannot be killed."""
    deadline = time.monotonic() + 10.0
    while any(map(_running, _below())) and time.monotonic() < deadline:
        _signal_all(signal.SIGKILL)
        time.sleep(0.05)


def _running(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def main(words: list[str]) -> int:
    """``FD GRACE_S LOG -- ARGV…``."""
    lifeline, grace_s, log, _, *argv = words
    with open(log, "ab") as file:
        return Guardian(lifeline=int(lifeline), grace_s=float(grace_s), log=file).run(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
