"""What Ray runs on a worker: one server session in a temporary run directory."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Final

import psutil

from whet._version import __version__
from whet.checkpoint import read_facts
from whet.core import errors
from whet.core.errors import InfeasibleError, Interrupted, WhetError
from whet.core.gpus import VISIBLE_DEVICES_ENV
from whet.core.protocols import Silent
from whet.core.provenance import find_device
from whet.core.store import RunStore, write_atomic
from whet.flow.run.measure.session import PendingWork, SessionRunner
from whet.flow.run.plan import Engines, Inputs, Plan, Recorder

JOURNAL: Final = "journal.jsonl"
_FOLDER: Final = "whet-worker-"
Files = Mapping[str, bytes]
"""Contents by path below a run directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A plan, where what is measured is recorded, and what makes the engines."""

    plan: Plan
    recorder: Recorder
    engines: Engines


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a session wrote: lines of its journal, and files that are new or have changed.

    ``lines`` are notes and warnings for the driver's observer. ``error`` ended the session early;
    a failed engine does not, and is in the records.
    """

    worker: str
    node: str
    journal: bytes
    files: Files
    lines: Sequence[tuple[str, str]]
    starts_left: Mapping[str, int]
    error: WhetError | None


@dataclass(slots=True)
class _Lines(Silent):
    """An observer that keeps notes and warnings for the driver."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.lines.append(("note", message))

    def warn(self, message: str) -> None:
        self.lines.append(("warn", message))


def run_session(
    version: str, sent: bytes, files: Files, works: list[PendingWork], left: dict[str, int]
) -> Outcome:
    """Start one group of servers and measure it as the local executor does.

    ``sent`` is the pickled job, ``files`` what the session reads of the run, ``left`` how many
    starts a variant has left. A cancelled session ends its servers and returns what it has
    measured. Raises ``InfeasibleError`` where this worker cannot do the job.
    """
    with worker_job(version, sent, files) as job:
        error = None
        try:
            runner = SessionRunner(
                plan=job.plan,
                recorder=job.recorder,
                engines=job.engines,
                starts_left=left,
                after=lambda _name: None,
            )
            runner.run(works, "worker")
        except (KeyboardInterrupt, Interrupted):
            pass
        except WhetError as caught:
            error = caught
        return pack(job, files, left, error)


@contextmanager
def worker_job(version: str, sent: bytes, files: Files) -> Iterator[Job]:
    """Yield the job over a temporary run directory that holds ``files``."""
    _leave_ray_settings()
    if version != __version__:
        raise InfeasibleError(
            f"the worker {label()} has whet {__version__} and this machine {version}",
            fix="install the same version",
        )
    plan, engines, paths, inputs = pickle.loads(sent)
    if problem := _problem(plan, paths):
        raise InfeasibleError(f"the worker {label()} {problem}")
    _remove_old_folders()
    prefix = f"{_FOLDER}{os.getpid()}-"
    # A guardian may still write the last lines of a log.
    with TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        for name, data in {**inputs, **files}.items():
            write_atomic(root / name, data)
        relative = {each.name: getattr(plan.inputs, each.name) for each in fields(Inputs)}
        absolute = Inputs(**{name: path and root / path for name, path in relative.items()})
        with RunStore.open(root, resume=True) as store:
            lines = _Lines()
            if (nice := os.getpriority(os.PRIO_PROCESS, 0)) > 0:
                lines.warn(
                    f"it runs at nice {nice}, so other processes go before it; start its node with "
                    "RAY_worker_niceness=0"
                )
            recorder = Recorder(store=store, observer=lines)
            yield Job(plan=replace(plan, inputs=absolute), recorder=recorder, engines=engines)


def pack(job: Job, files: Files, left: Mapping[str, int], error: WhetError | None) -> Outcome:
    """Return what the run directory of a ``worker_job`` has beyond ``files`` and inputs."""
    import ray

    root = job.recorder.store.root
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != ".lock"]
    named = {str(path.relative_to(root)): path.read_bytes() for path in paths}
    journal = named.pop(JOURNAL, b"")[len(files.get(JOURNAL, b"")) :]
    assert isinstance(job.recorder.observer, _Lines)
    if error is not None:  # others may not survive pickling
        tree = (cls for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
        error = next(tree)(str(error))
    return Outcome(
        worker=label(),
        node=ray.get_runtime_context().get_node_id(),
        journal=journal,
        files={name: data for name, data in named.items() if data != files.get(name)},
        lines=job.recorder.observer.lines,
        starts_left=left,
        error=error,
    )


def label() -> str:
    """Return the name of this worker: its host with its GPUs, or with its node."""
    import ray

    gpus = os.environ.get(VISIBLE_DEVICES_ENV, "") if find_device().kind == "cuda" else ""
    which = f"GPU {gpus}" if gpus else f"node {ray.get_runtime_context().get_node_id()[:6]}"
    return f"{socket.gethostname()} {which}"


def _remove_old_folders() -> None:
    """Remove the directories of killed workers: they hold prompts."""
    for old in Path(gettempdir()).glob(f"{_FOLDER}*-*"):
        pid = old.name.removeprefix(_FOLDER).split("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(old, ignore_errors=True)


def _leave_ray_settings() -> None:
    """Undo one thread for OpenMP and nice 15, which Ray sets and which slow an engine down."""
    node = os.getppid()
    with suppress(OSError):
        if b"\0OMP_NUM_THREADS=" not in Path(f"/proc/{node}/environ").read_bytes():
            os.environ.pop("OMP_NUM_THREADS", None)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, node))


def _problem(plan: Plan, paths: Sequence[str]) -> str | None:
    own, here = plan.device, find_device()
    if (own.kind, own.name) != (here.kind, here.name):
        return (
            f"has {here.name} and this machine {own.name}; measure unlike devices in runs of "
            "their own, and compare them with whet decide"
        )
    for path in paths:
        if not Path(path).exists():
            return (
                f"has no {path}; put a copy at the same path on every node, or the run directory "
                "and the checkpoints on a shared disk"
            )
    try:
        facts = read_facts(Path(plan.target.path))
    except WhetError as error:
        return f"cannot read {plan.target.path}: {error}"
    if facts.weights_sha256 != plan.target.weights_sha256:
        return f"has other weights at {plan.target.path}; copy the checkpoint to every node"
    return None
