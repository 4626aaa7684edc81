"""What Ray runs on a worker: one server session in a temporary run directory."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from whet._version import __version__
from whet.checkpoint import read_facts
from whet.core import errors
from whet.core.errors import InfeasibleError, Interrupted, WhetError
from whet.core.gpus import VISIBLE_DEVICES_ENV
from whet.core.protocols import Lines
from whet.core.provenance import find_device
from whet.core.staging import staged
from whet.core.store import RunStore, write_atomic
from whet.flow.run.measure.session import PendingWork, SessionRunner
from whet.flow.run.plan import Inputs, Plan, Recorder

JOURNAL: Final = "journal.jsonl"
Files = Mapping[str, bytes]
"""Contents by path below a run directory; of the journal, the lines to add."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a session wrote: files that are new or have changed.

    ``lines`` are notes and warnings for the driver's observer. ``error`` ended the session early;
    a failed engine does not, and is in the records.
    """

    worker: str
    files: Files
    lines: Sequence[tuple[str, str]]
    starts_left: Mapping[str, int]
    error: WhetError | None


def run_session(
    version: str, sent: bytes, files: Files, pending: PendingWork, left: dict[str, int]
) -> Outcome:
    """Start a server and measure it as the local executor does.

    ``sent`` is what ``pickled_plan`` returns, ``files`` what the session reads of the run,
    ``left`` how many starts the variant has left. A cancelled session ends its servers and returns
    what it has measured. Raises ``InfeasibleError`` where this worker cannot run the plan.
    """
    observer = Lines()
    _undo_ray_settings(observer)
    if version != __version__:
        raise InfeasibleError(
            f"the worker {_label()} has whet {__version__} and this machine {version}",
            fix="install the same version",
        )
    plan, engines, inputs, input_files = pickle.loads(sent)
    for problem in _problems(plan):
        raise InfeasibleError(f"the worker {_label()} {problem}")
    known = {**input_files, **files}
    with staged(Path(gettempdir(), "whet-worker")) as stage:
        root = stage.folder
        root.chmod(0o700)  # it holds prompts
        for name, data in known.items():
            write_atomic(root / name, data)
        below = {name: path and root / path for name, path in inputs.items()}
        with RunStore.open(root, resume=True) as store:
            runner = SessionRunner(
                plan=replace(plan, inputs=Inputs(**below)),
                recorder=Recorder(store=store, observer=observer),
                engines=engines,
                starts_left=left,
                after=lambda _name, _point: None,
            )
            error = _run(runner, pending)
        changed = dict(_changed(root, known))
        return Outcome(
            worker=_label(), files=changed, lines=observer.lines, starts_left=left, error=error
        )


def _run(runner: SessionRunner, pending: PendingWork) -> WhetError | None:
    """Return what ended the session early, as a class that survives pickling."""
    try:
        with suppress(KeyboardInterrupt, Interrupted):
            runner.run(pending, "worker")
    except WhetError as error:
        tree = (cls for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
        kind: type[WhetError] = next(tree)
        return kind(str(error))
    return None


def _changed(root: Path, known: Files) -> Iterator[tuple[str, bytes]]:
    """Yield the files below ``root`` that ``known`` lacks, and the journal's new lines."""
    for path in filter(Path.is_file, root.rglob("*")):
        name, data = str(path.relative_to(root)), path.read_bytes()
        if name == JOURNAL:
            yield name, data[len(known[JOURNAL]) :]
        elif name != ".lock" and data != known.get(name):
            yield name, data


def _label() -> str:
    """Return the name of this worker: its host with its GPUs, or with its node."""
    import ray

    gpus = os.environ.get(VISIBLE_DEVICES_ENV, "") if find_device().kind == "cuda" else ""
    which = f"GPU {gpus}" if gpus else f"node {ray.get_runtime_context().get_node_id()[:6]}"
    return f"{socket.gethostname()} {which}"


def _undo_ray_settings(observer: Lines) -> None:
    """Undo one thread for OpenMP and nice 15, which Ray sets and which slow an engine down."""
    node = os.getppid()
    with suppress(OSError):
        if b"\0OMP_NUM_THREADS=" not in Path(f"/proc/{node}/environ").read_bytes():
            os.environ.pop("OMP_NUM_THREADS", None)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, node))
    if (nice := os.getpriority(os.PRIO_PROCESS, 0)) > 0:
        observer.warn(
            f"it runs at nice {nice}, so other processes go before it; start its node with "
            "RAY_worker_niceness=0"
        )


def _problems(plan: Plan) -> Iterator[str]:
    """Yield why this worker cannot run the plan: its device, missing files, other weights."""
    own, here = plan.device, find_device()
    if (own.kind, own.name) != (here.kind, here.name):
        yield (
            f"has {here.name} and this machine {own.name}; measure unlike devices in runs of "
            "their own, and compare them with whet decide"
        )
    for path in _paths(plan):
        if not Path(path).exists():
            yield (
                f"has no {path}; put a copy at the same path on every node, or the run directory "
                "and the checkpoints on a shared disk"
            )
    try:
        if read_facts(Path(plan.target.path)).weights_sha256 != plan.target.weights_sha256:
            yield f"has other weights at {plan.target.path}; copy the checkpoint to every node"
    except WhetError as error:
        yield f"cannot read {plan.target.path}: {error}"


def _paths(plan: Plan) -> Iterator[str]:
    """Yield the folders and files that have to be on every node."""
    yield plan.target.path
    for variant in (resolved.variant for resolved in plan.resolved):
        yield variant.model_path
        yield from (path for _, path in variant.loras)
        if variant.speculation is not None and variant.speculation.draft_path is not None:
            yield variant.speculation.draft_path
    if plan.spec.load.trace is not None:
        yield str(plan.spec.load.trace)
