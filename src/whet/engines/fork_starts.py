"""Servers forked from a process that has imported the engine once.

Imports take most of a start whose compile cache is warm. A forked server has the flags and the log
of one that is started plainly; what cannot be forked is started plainly.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from whet.core.protocols import Engine
from whet.core.records.engine import ResolvedEngine
from whet.engines.process import EngineProcess

_PROGRAM: Final = Path(__file__).with_name("fork_parent.py")
_IMPORT_S: Final = 180.0
_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.1
_KILLED: Final = 137


class ForkedGuardian:
    """A guardian that was forked by the parent; the other kind is a ``Popen``."""

    def __init__(self, connection: socket.socket) -> None:
        """``connection`` is the one that asked for it. ``OSError`` if the parent has ended."""
        self._connection = connection
        with connection.makefile("r") as file:
            answer = file.readline()
        if not answer.endswith("\n"):
            raise ConnectionError("the parent has ended")
        connection.settimeout(None)
        self._process = psutil.Process(int(answer))

    @property
    def pid(self) -> int:
        """Of the guardian."""
        return self._process.pid

    def poll(self) -> int | None:
        """The engine's exit code, 137 where the guardian was killed; None while it runs."""
        try:
            code = self._connection.recv(16, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        return int(code or _KILLED)

    def wait(self, timeout: float) -> int:
        """The exit code; ``TimeoutExpired`` after ``timeout`` seconds."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.poll(1000 * timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("guardian", timeout)
        return code

    def kill(self) -> None:
        """End the guardian, and its engine with it."""
        with suppress(psutil.NoSuchProcess):
            self._process.kill()

    def close_lifeline(self) -> None:
        """Let it end the engine: it does the same when this process dies."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)


@dataclass(kw_only=True, slots=True)
class ForkParent:
    """A process that forks servers of one Python and one environment; it begins with the first.

    ``path`` is its socket; variables of ``late`` are read after the imports.
    """

    argv: Sequence[str]
    path: Path
    log: Path
    env: Mapping[str, str]
    own: Mapping[str, str]
    late: Sequence[str]
    process: EngineProcess | None = None

    def fork(
        self, argv: Sequence[str], *, env: Mapping[str, str], log: Path, grace_s: float
    ) -> ForkedGuardian | None:
        """Fork a server; None where it must be started plainly, with the reason in the log."""
        start = {
            "argv": argv[2:],
            "env": {name: env.get(name) for name in self.late},
            "log": str(log),
            "grace_s": grace_s,
        }
        try:
            self._check(argv, env)
            connection = self._connect()
            connection.sendall(f"{json.dumps(start)}\n".encode())
            return ForkedGuardian(connection)
        except (OSError, ValueError, psutil.Error) as error:
            with suppress(OSError), self.log.open("a") as file:
                file.write(f"{log.stem} is started plainly: {error}\n")
            return None

    def _check(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        if [*argv[:2]] != [self.argv[0], "-m"]:
            raise ValueError("it is another program")
        names = {name for name, _ in self.env.items() ^ env.items()} - {*self.late}
        if names:
            raise ValueError(f"imports may read {', '.join(sorted(names))}, which differs")

    def _connect(self) -> socket.socket:
        """Connect once the imports are done. ``OSError`` where they failed."""
        if self.process is None:
            self.process = EngineProcess(self.argv, env={**self.own, **self.env}, log=self.log)
        deadline = time.monotonic() + _IMPORT_S
        while True:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(_ANSWER_S)
            try:
                connection.connect(str(self.path))
            except OSError:
                connection.close()
                if self.process.exit_code() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
            else:
                return connection


@contextmanager
def fork_parent(
    modules: Sequence[str],
    *,
    python: str,
    env: Mapping[str, str],
    own: Mapping[str, str],
    late: Sequence[str],
    log: Path,
) -> Iterator[ForkParent]:
    """Import ``modules`` with ``python`` at the first start; end what was forked with the parent.

    Servers with the environment ``env`` are forked; each has those of ``own`` that it lacks.
    """
    with tempfile.TemporaryDirectory(prefix="whet-") as folder:
        path = Path(folder) / "fork"
        argv = [python, "-P", str(_PROGRAM), str(path), *modules]
        parent = ForkParent(argv=argv, path=path, log=log, env=env, own=own, late=late)
        try:
            yield parent
        finally:
            if parent.process is not None:
                parent.process.stop()


@contextmanager
def warm_engines(
    engines: Callable[[str], Engine], servers: Sequence[ResolvedEngine], *, log: Path
) -> Iterator[Callable[[str], Engine]]:
    """Yield ``engines`` by name, those of ``servers`` with forked starts where they have them."""
    with ExitStack() as stack:
        warm: dict[str, Engine] = {}
        for each in servers:
            if each.engine not in warm and each.url is None:
                up = warm_engine(engines(each.engine), each, log=log)
                warm[each.engine] = stack.enter_context(up)
        yield lambda name: warm.get(name) or engines(name)


def warm_engine(
    engine: Engine, resolved: ResolvedEngine, *, log: Path
) -> AbstractContextManager[Engine]:
    """The engine, with forked starts where it has them; what is deployed starts plainly.

    ``resolved`` is any of the servers that will be started: those with its Python and environment
    are forked. ``log`` holds why others are not. The guardian of a forked server needs Linux.
    """
    warm: Callable[..., AbstractContextManager[Engine]] | None = getattr(engine, "warm", None)
    if warm is None or sys.platform != "linux":
        return nullcontext(engine)
    return warm(resolved, log=log)
