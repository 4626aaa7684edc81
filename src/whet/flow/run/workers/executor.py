"""The driver of ``--executor ray``: finds devices, hands out sessions, stores results."""

from __future__ import annotations

import json
import math
import pickle
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

from whet._version import __version__
from whet.core.errors import EngineLostError, InfeasibleError, UsageError, WhetError
from whet.core.flags import plain_args
from whet.core.outside import json_value
from whet.core.protocols import Observer
from whet.core.records.engine import StartFacts
from whet.core.records.load import WorkloadFacts
from whet.core.run import Run
from whet.core.starts import every_start, start_key, store_start
from whet.core.store import RunStore, write_atomic
from whet.flow.run.measure.rounds import Executor, Rounds, Session
from whet.flow.run.measure.session import MAX_STARTS, PendingWork, summarize_cells
from whet.flow.run.plan import Engines, Inputs, Plan, Recorder
from whet.flow.run.traffic.lengths import lacks_lengths
from whet.flow.run.traffic.logged import TIMES
from whet.flow.run.workers.session import JOURNAL, Files, Outcome, run_session

MAX_LOSSES: Final = 3
"""Workers that Ray may lose over one session; then its variants have failed."""
_POLL_S: Final = 1.0
_CLOSE_S: Final = 30.0
_CONNECT_S: Final = 5.0
_PATIENCE_S: Final = 60.0
"""For a node to come back after the last is lost."""
_DEGREES: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_OF_A_START: Final = frozenset({"starts", "facts", "declared"})
_ANSWER_FOLDERS: Final = ("top_logprobs", "golden")


@dataclass(slots=True)
class _Track:
    """The sessions of a round that are left, and the placement group that holds their device.

    ``name`` is the variant of the running session, which had ``starts`` left as it began.
    """

    sessions: deque[Session]
    device: Any = None
    name: str = ""
    starts: int = 0


class RayExecutor(Executor):
    """Gives sessions to Ray and stores what they return. Made by ``ray_executor``.

    A round stays on one device, so that differences between its variants hold nothing of the
    device.
    """

    is_local = False
    _plan: Plan
    _recorder: Recorder

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._running: dict[Any, _Track] = {}
        self._sent: Any = None
        self._demand: dict[str, float] = {}
        self._starts_left: dict[str, int] = {}

    def require(self, plan: Plan, observer: Observer) -> None:
        """Refuse a plan that the cluster has no devices for."""
        if any(resolved.url is not None for resolved in plan.resolved):
            raise UsageError(
                "--executor ray starts a server on each worker, and engine.url is one that runs "
                "already",
                fix="leave one of the two out",
            )
        workers = _require_workers(self._ray, plan)
        rounds = 1 if plan.spec.load.order == "blocks" else plan.spec.load.trials
        if rounds < workers:
            observer.warn(
                f"a round stays on one worker, so {rounds} of {workers} measure; raise load.trials "
                "(with load.order: interleaved) to use the others"
            )

    def measure(self, plan: Plan, recorder: Recorder, engines: Engines, rounds: Rounds) -> None:
        """Run every session that the run lacks."""
        self._plan, self._recorder = plan, recorder
        self._demand = demand_of(self._ray, plan)
        self._sent = self._ray.put(pickled_plan(plan, engines))
        names = (session.name for part in rounds for session in part)
        self._starts_left = dict.fromkeys(names, MAX_STARTS)
        waiting = deque(_Track(deque(part)) for part in rounds)
        while waiting or self._running:
            workers = await_workers(self._ray, self._demand)
            if lacks_lengths(plan.spec, recorder.store):
                workers = 1  # its first session measures them for all
            while waiting and len(self._running) < workers:
                self._start_next(waiting.popleft())
            if self._running:
                for ref in self._ray.wait(list(self._running), timeout=_POLL_S)[0]:
                    self._end(ref)

    def width(self, plan: Plan) -> int:
        """Return how many sessions fit now."""
        return await_workers(self._ray, demand_of(self._ray, plan))

    def close(self) -> None:
        """Cancel every session, which ends its servers, and store what it has measured."""
        if not (refs := list(self._running)):
            return
        for ref in refs:
            self._ray.cancel(ref)
        for ref in self._ray.wait(refs, num_returns=len(refs), timeout=_CLOSE_S)[0]:
            with suppress(self._ray.exceptions.RayError):
                self._store(self._ray.get(ref), self._running.pop(ref))

    def _start_next(self, track: _Track) -> None:
        """Start the next session that lacks something; without one, free the device."""
        from ray.util import remove_placement_group

        while track.sessions:
            session = track.sessions.popleft()
            pending = session.pending(self._recorder.store)
            if pending and self._starts_left[session.name]:
                self._start(track, pending, session.label or "one round")
                return
        if track.device is not None:
            remove_placement_group(track.device)

    def _start(self, track: _Track, pending: PendingWork, label: str) -> None:
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        track.device = track.device or placement_group([self._demand])
        track.name, track.starts = pending.name, self._starts_left[pending.name]
        self._recorder.observer.stage("serve", f"{track.name} ({label})")
        task = self._ray.remote(
            num_gpus=self._demand.get("GPU", 0),
            num_cpus=self._demand["CPU"],
            scheduling_strategy=PlacementGroupSchedulingStrategy(track.device),
            max_retries=MAX_LOSSES - 1,
        )(run_session)
        files = known_files(self._recorder.store, answers=pending.quality)
        left = {track.name: track.starts}
        self._running[task.remote(__version__, self._sent, files, pending, left)] = track

    def _end(self, ref: Any) -> None:
        """Store what a session returned, and start the next of its round."""
        track = self._running.pop(ref)
        try:
            outcome = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        except self._ray.exceptions.RayError:
            self._give_up(track.name)
        else:
            self._store(outcome, track)
            if outcome.error is not None:
                raise outcome.error
        self._start_next(track)

    def _store(self, outcome: Outcome, track: _Track) -> None:
        merge(self._recorder, outcome)
        name, used = track.name, track.starts - outcome.starts_left[track.name]
        self._starts_left[name] = max(0, self._starts_left[name] - used)
        known = {c.load: c for c in Run(self._recorder.store).cells if c.variant == name}
        for cell in summarize_cells(self._plan, self._recorder.store, name):
            if cell.trials and known.get(cell.load) != cell:
                self._recorder.observer.cell(cell, "")

    def _give_up(self, name: str) -> None:
        why = f"{MAX_LOSSES} workers were lost while they measured it"
        self._starts_left[name] = 0
        self._recorder.store.note("starts", name, status="failed", reason=why)
        self._recorder.observer.warn(f"{name}: {why}; it is left out")
        summarize_cells(self._plan, self._recorder.store, name)


def _cause(error: Exception) -> Exception:
    """Return what ended a task: whet's own error, or Ray's with the traceback of a defect."""
    if isinstance(cause := getattr(error, "cause", None), WhetError):
        return cause
    if "failed to import" not in str(error):
        return error
    return EngineLostError(
        f"the workers of the Ray cluster cannot import whet ({str(error).splitlines()[-1]})",
        fix="install it as it is here on every node",
    )


@contextmanager
def ray_executor(address: str | None) -> Iterator[RayExecutor]:
    """An executor on a running cluster; every session and engine is ended at the end.

    ``address`` is HOST:PORT of the head; None is the cluster that this machine is a node of.
    Raises ``UsageError``.
    """
    if find_spec("ray") is None:
        raise UsageError("--executor ray needs Ray, which is not installed: pip install ray")
    if address is not None:
        _knock(address)
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address or "auto", log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError) as error:
        why = " ".join(str(error).split())[:200]
        raise UsageError(
            f"cannot join the Ray cluster of {address or 'this machine'} ({why})",
            fix="start its node here with ray start --head, or ray start --address HOST:PORT",
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has set its own
    try:
        with closing(RayExecutor(ray)) as executor:
            yield executor
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Refuse an address where nothing answers: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not host or not port.isdecimal():
        raise UsageError(f"--address {address}: write HOST:PORT of the cluster's head")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"nothing answers at --address {address}",
            fix=f"start the head there with ray start --head --port {port}, or correct the address",
        ) from error


def demand_of(ray: ModuleType, plan: Plan) -> dict[str, float]:
    """Return a session's resources: GPUs for the largest variant, or a node's CPUs."""
    if plan.device.kind != "cuda":
        return {"CPU": max((node.get("CPU", 0.0) for node in _offers(ray)), default=0.0) or 1.0}
    every = (plain_args(resolved.variant) for resolved in plan.resolved)
    gpus = max(math.prod(int(args.get(name, 1)) for name in _DEGREES) for args in every)
    return {"GPU": gpus, "CPU": 1.0}


def await_workers(ray: ModuleType, demand: dict[str, float]) -> int:
    """Sessions that fit now; waits a minute for a node. ``EngineLostError`` where none comes."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (workers := _count_workers(ray, demand)):
        if time.monotonic() > deadline:
            raise EngineLostError(
                "every worker of the Ray cluster is gone",
                fix="start a node with ray start --address HOST:PORT and go on with --resume",
            )
        time.sleep(1.0)
    return workers


def _require_workers(ray: ModuleType, plan: Plan) -> int:
    """Sessions that fit; ``InfeasibleError`` for none, and for devices of another kind."""
    demand = demand_of(ray, plan)
    if plan.device.kind == "cpu" and any(node.get("GPU") for node in _offers(ray)):
        raise InfeasibleError(
            "the Ray cluster has GPUs and this machine has none, so the spec was resolved for "
            "a CPU",
            fix="run whet on one of the cluster's GPU nodes",
        )
    if workers := _count_workers(ray, demand):
        return workers
    needed = " and ".join(f"{amount:.0f} {name}" for name, amount in demand.items())
    raise InfeasibleError(
        f"no node of the Ray cluster offers {needed}, which the largest variant needs",
        fix="add one, lower tensor_parallel_size, or leave --executor ray out",
    )


def _count_workers(ray: ModuleType, demand: dict[str, float]) -> int:
    """Sessions that fit on the nodes that are alive at the same time."""
    return sum(
        min(int(node.get(name, 0.0) // needed) for name, needed in demand.items())
        for node in _offers(ray)
    )


def _offers(ray: ModuleType) -> list[dict[str, float]]:
    """What each node that is alive offers, by resource."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def pickled_plan(plan: Plan, engines: Engines) -> bytes:
    """Return the plan, its engines, and its inputs: paths below a run directory, and files."""
    inputs: dict[str, Path | None] = {}
    files: dict[str, bytes] = {}
    for each in fields(Inputs):
        path: Path | None = getattr(plan.inputs, each.name)
        inputs[each.name] = path and Path("inputs", each.name + path.suffix)
        if path is not None and path.exists():
            files[str(inputs[each.name])] = path.read_bytes()
    if plan.inputs.traffic is not None:
        files[f"inputs/{TIMES}"] = (plan.inputs.traffic.parent / TIMES).read_bytes()
    return pickle.dumps((plan, engines, inputs, files))


def known_files(store: RunStore, *, answers: bool) -> Files:
    """Return what a session reads of the run; with ``answers`` what it compares answers with."""
    kinds = ("lengths", "workloads", *(("quality", "plain_answers") if answers else ()))
    entries = [
        {"kind": kind, "key": key, "status": store.status(kind, key), "reason": None}
        for kind in kinds
        for key in store.keys(kind)
    ]
    paths = [store.path(str(each["kind"]), f"{each['key']}.json") for each in entries]
    folders = _ANSWER_FOLDERS if answers else ()
    paths += (path for folder in folders for path in sorted(store.path(folder).glob("*")))
    files = {str(p.relative_to(store.root)): p.read_bytes() for p in paths if p.is_file()}
    journal = b"".join(json.dumps(each).encode() + b"\n" for each in entries)
    return files | {JOURNAL: journal}


def merge(recorder: Recorder, outcome: Outcome) -> None:
    """Store what a session wrote, and pass its lines on to the observer.

    A session counts its own starts; here they get their numbers in the run. Raises ``UsageError``
    for traffic that differs from the run's.
    """
    store = recorder.store
    for how, line in outcome.lines:
        getattr(recorder.observer, how)(f"{outcome.worker}: {line}")
    kinds = dict.fromkeys(json.loads(line)["kind"] for line in outcome.files[JOURNAL].splitlines())
    with TemporaryDirectory(prefix="whet-merge-") as folder:
        for name, data in outcome.files.items():
            if name.split("/")[0] in {JOURNAL, *kinds}:
                write_atomic(Path(folder, name), data)
                continue
            path = store.path(name)
            before = path.read_bytes() if name.startswith("logs/") and path.exists() else b""
            write_atomic(path, before + data)
        part = RunStore.read(Path(folder))
        names = (name for name in part.keys("starts") if "/" not in name)
        first = {name: _merge_starts(store, part, name, outcome.worker) for name in names}
        for kind in (each for each in kinds if each not in _OF_A_START):
            for key in part.keys(kind):
                _merge_record(store, part, kind, key, first, outcome.worker)


def _merge_starts(store: RunStore, part: RunStore, name: str, worker: str) -> int:
    """Store the starts of one server; return the number in the run of the first."""
    numbers = []
    for at, report in enumerate(every_start(part, name)):
        start = part.get("starts", start_key(part, name, at), StartFacts)
        assert start is not None
        numbers.append(store_start(store, name, replace(start, worker=worker), report))
    if part.status("starts", name) == "failed":
        store.note("starts", name, status="failed", reason=part.reason("starts", name))
    return min(numbers, default=0)


def _merge_record(
    store: RunStore, part: RunStore, kind: str, key: str, first: dict[str, int], worker: str
) -> None:
    """Store one record, a trial under its start's number in the run."""
    status, path = part.status(kind, key) or "", part.path(kind, f"{key}.json")
    if not path.exists():
        store.note(kind, key, status=status, reason=part.reason(kind, key))
        return
    record = json_value(path.read_bytes())
    if kind == "trials":
        record["start"] += first[record["variant"]]
    elif kind == "workloads":
        earlier = store.get(kind, key, WorkloadFacts)
        if earlier is not None and earlier.sha256 != record["sha256"]:
            raise UsageError(
                f"{worker} made other traffic of {key} than the run began with",
                fix="install the same packages on every node, or start a new run with --name",
            )
    store.put(kind, key, record, status=status)
