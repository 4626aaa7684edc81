"""The Ray actor of one worker: holds a device, and the process that measures on it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from whet._version import __version__
from whet.checkpoint import read_facts
from whet.core.errors import WhetError
from whet.core.gpus import VISIBLE_DEVICES_ENV
from whet.core.provenance import Device, find_device
from whet.flow.run.workers.frames import read_frame, write_frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a worker is, and what is wrong with it for a job; ``problem`` is a sentence.

    ``nice`` is the priority value of its process.
    """

    host: str
    nice: int
    gpus: str
    device: Device
    problem: str | None


class Worker:
    """Made a Ray actor by ``cluster.start_worker``; its methods run in threads."""

    def __init__(self, module: str) -> None:
        """Start the measuring process, ``python -m module``."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_node_environment(),
            start_new_session=True,
        )
        with suppress(PermissionError):  # Ray starts workers at nice 15; ``Place`` has the value
            node = os.getpriority(os.PRIO_PROCESS, os.getppid())
            os.setpriority(os.PRIO_PROCESS, self._process.pid, node)
        self._sending = threading.Lock()

    def describe(self, version: str, target_sha256: str, paths: Iterable[str]) -> Place:
        """The worker's place; ``paths`` have to exist there, the first is the target."""
        gpus = os.environ.get(VISIBLE_DEVICES_ENV, "")
        device = find_device()
        return Place(
            host=socket.gethostname(),
            nice=os.getpriority(os.PRIO_PROCESS, self._process.pid),
            gpus=gpus if device.kind == "cuda" else "",
            device=device,
            problem=_problem(version, target_sha256, list(paths)),
        )

    def send(self, *frames: bytes) -> None:
        """Give the process orders, each a pickled message."""
        assert self._process.stdin is not None
        with self._sending, suppress(BrokenPipeError):  # ``receive`` says that it is gone
            for frame in frames:
                write_frame(self._process.stdin, frame)

    def receive(self) -> bytes | None:
        """The next message of the process, pickled; None once it has ended."""
        assert self._process.stdout is not None
        return read_frame(self._process.stdout)

    def stop(self) -> None:
        """Ask the process to end its engine and itself."""
        self._process.terminate()


def _node_environment() -> dict[str, str]:
    """The environment in which the node was started, with the GPUs that Ray assigned.

    Ray sets more for its workers, such as one thread for OpenMP, which would slow an engine down.
    """
    own = {name: os.environ[name] for name in (VISIBLE_DEVICES_ENV,) if name in os.environ}
    try:
        parts = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(part).partition("=") for part in parts if part)
    return {name: value for name, _, value in pairs} | own


def _problem(version: str, target_sha256: str, paths: list[str]) -> str | None:
    if version != __version__:
        return f"has whet {__version__} and this machine {version}; install the same version"
    for path in paths:
        if not Path(path).exists():
            return (
                f"has no {path}; put a copy at the same path on every node, or the run directory "
                "and the checkpoints on a shared disk"
            )
    try:
        facts = read_facts(Path(paths[0]))
    except WhetError as error:
        return f"cannot read {paths[0]}: {error}"
    if facts.weights_sha256 != target_sha256:
        return f"has other weights at {paths[0]}; copy the checkpoint to every node"
    return None
