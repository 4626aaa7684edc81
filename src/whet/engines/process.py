"""One engine process: spawned under its guardian, watched, read, reaped whatever happens."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import psutil

from whet.core.starved import SERVERS
from whet.core.store import translate_disk_errors

_SUPERVISE = Path(__file__).with_name("supervise.py")
_TAIL_BYTES = 1 << 16
_SLACK_S = 15.0
_handed_out: Final[deque[int]] = deque(maxlen=64)
_handing_out: Final = threading.Lock()


def free_port() -> int:
    """A port of the loopback that was free a moment ago; a race is answered by another try.

    None of the last 64 is handed out again: a server listens a minute after it was given its port,
    and others may be starting meanwhile.
    """
    with _handing_out:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in _handed_out:
                _handed_out.append(port)
                return port


class Guardian(Protocol):
    """The process that runs ``supervise.py`` for one engine, as ``Popen`` would show it."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...
    def kill(self) -> None: ...

    def close_lifeline(self) -> None:
        """Let it end the engine, as it does when this process dies. Safe to call again."""


Fork = Callable[..., Guardian | None]
"""``(argv, env=, log=, grace_s=)``: None where the engine must be spawned."""


class SpawnedGuardian(subprocess.Popen[bytes]):
    """A guardian that this process has spawned."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], log: Path, grace_s: float
    ) -> None:
        """Run ``argv`` under it."""
        read_end, self._lifeline = os.pipe()
        words = [str(read_end), str(grace_s), str(log), "--", *argv]
        try:
            super().__init__(
                [sys.executable, "-P", str(_SUPERVISE), *words],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(read_end,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(read_end)

    def close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        self.terminate()  # a forked worker of this process may hold the pipe as well


class EngineProcess:
    """A server and all that it forks, in a session of their own.

    The log is opened for appending; ``log_text`` returns only what this process wrote.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        grace_s: float = 10.0,
        fork: Fork | None = None,
    ) -> None:
        """Spawn at once, or let ``fork`` do it. ``StorageError`` where the log cannot be opened."""
        self.argv, self.log = argv, log
        self._grace_s = grace_s
        with translate_disk_errors(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            self._log_start = log.stat().st_size
        forked = fork and fork(argv, env=env, log=log, grace_s=grace_s)
        self.forked = bool(forked)
        self._guardian = forked or SpawnedGuardian(argv, env=env, log=log, grace_s=grace_s)
        SERVERS.add(self.descendants)

    @property
    def pid(self) -> int | None:
        """The engine's own process id while it lives."""
        children = self.descendants(recursive=False)
        return children[0].pid if children else None

    @property
    def nice(self) -> int | None:
        """Its nice value: above 0, other processes of the machine go before it."""
        children = self.descendants(recursive=False)
        try:
            return children[0].nice() if children else None
        except psutil.Error:
            return None

    def exit_code(self) -> int | None:
        """None while the engine runs; else its exit code, 128 + n for a death by signal n."""
        return self._guardian.poll()

    def descendants(self, *, recursive: bool = True) -> list[psutil.Process]:
        """The engine and what it forked, the guardian itself left out."""
        try:
            return psutil.Process(self._guardian.pid).children(recursive=recursive)
        except psutil.NoSuchProcess:
            return []

    def listens_on(self, port: int) -> bool:
        """Whether this engine listens on the port: another program may have taken it first."""
        for process in self.descendants():
            try:
                connections = process.net_connections(kind="tcp")
            except psutil.Error:
                continue
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections):
                return True
        return False

    def log_text(self) -> str:
        """All that this process has printed, secrets already redacted."""
        return self._read(self._log_start)

    def log_tail(self) -> str:
        """The last 64 KiB of it, cheap enough to look at between requests."""
        try:
            size = self.log.stat().st_size
        except OSError:
            return ""
        return self._read(max(self._log_start, size - _TAIL_BYTES))

    def _read(self, start: int) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(start)
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def stop(self) -> None:
        """End the whole tree: SIGTERM, a grace period, SIGKILL. Safe to call again.

        Closing the lifeline comes first: from then on the guardian ends the tree even if this call
        is itself interrupted.
        """
        SERVERS.discard(self.descendants)
        known = self.descendants()
        self._guardian.close_lifeline()
        if self._guardian.poll() is None:
            try:
                self._guardian.wait(self._grace_s + _SLACK_S)
            except subprocess.TimeoutExpired:
                self._guardian.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._guardian.wait(_SLACK_S)
        _end(known)


def _end(processes: list[psutil.Process]) -> None:
    """Kill what outlived a guardian that was itself killed; psutil guards against reused ids."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=5.0)
