"""A process that has imported an engine's server once and forks it for every start.

Run by path with the engine's own Python and environment:
``python -P fork_parent.py SOCKET MODULES…``. It must touch no device. A connection to SOCKET is one
start: it brings a line of JSON, receives the guardian's process id and, at the end, its exit code,
and is the guardian's lifeline. A start forks twice: the guardian (``supervise.py``), and from it
the engine, which runs a module as ``python -m`` does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent))

import supervise  # type: ignore[import-not-found]

del sys.path[0]

_TICK_S = 1.0
_LONGEST = 1 << 20


def import_server(modules: Sequence[str]) -> None:
    """Import what servers need; ``SystemExit`` where a fork would not be safe."""
    for name in modules:
        with contextlib.suppress(ImportError):  # of another version or another device
            importlib.import_module(name)
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        sys.exit("the imports have initialized CUDA")
    if threading.active_count() > 1:
        sys.exit("the imports have started threads")


def await_start(listener: socket.socket) -> list[str]:
    """Fork for each connection. Returns in an engine only, with its arguments."""
    listener.settimeout(_TICK_S)
    while True:
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return _start(connection)
            connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _start(connection: socket.socket) -> list[str]:
    os.setsid()
    connection.settimeout(None)
    with connection.makefile("r") as file:
        start = json.loads(file.readline(_LONGEST))
    output, printed = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        os.close(printed)
        _guard(connection, pid, output, start)
    connection.close()
    os.close(output)
    supervise.become_engine()
    for stream in (1, 2):
        os.dup2(printed, stream)
    os.close(printed)
    for name, value in start["env"].items():
        os.environ.pop(name, None)
        os.environ.update({} if value is None else {name: value})
    argv: list[str] = start["argv"]
    return argv


def _guard(connection: socket.socket, pid: int, output: int, start: dict[str, Any]) -> NoReturn:
    try:
        connection.sendall(f"{os.getpid()}\n".encode())
        with open(start["log"], "ab") as log:
            guardian = supervise.Guardian(
                lifeline=connection.fileno(), grace_s=start["grace_s"], log=log
            )
            code = guardian.watch(pid, output)
        connection.sendall(str(code).encode())
    finally:
        os._exit(0)


def main(path: str, *modules: str) -> None:
    """Import, listen on ``path``; in an engine run its module."""
    import_server(modules)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        argv = await_start(listener)
    sys.argv = argv
    sys.modules.pop(argv[0], None)  # else runpy warns that it is imported already
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
