"""The workers of a run: started, listened to, replaced when lost, and ended."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from whet._version import __version__
from whet.core.errors import EngineLostError, InfeasibleError
from whet.core.protocols import Silent
from whet.core.store import RunStore
from whet.flow.run.plan import Inputs, Recorder
from whet.flow.run.traffic.logged import TIMES
from whet.flow.run.workers.actor import Place
from whet.flow.run.workers.cluster import Node, alive_nodes, kill_workers, start_worker
from whet.flow.run.workers.messages import FromWorker, Job, Setup, ToWorker

_PATIENCE_S: Final = 60.0
"""For a worker to start, and for a node to come back after the last is lost."""
_FAILURES: Final = 3
_POLL_S: Final = 1.0
_CLOSE_S: Final = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A worker is gone, with what it was measuring."""

    reason: str


@dataclass(eq=False, kw_only=True, slots=True)
class Member:
    """One worker. ``expected`` is the call to its actor that is waited for."""

    node: Node
    actor: Any
    expected: Any
    label: str = ""
    is_set_up: bool = False


class Pool:
    """Workers on every device of the cluster that the job can use."""

    def __init__(self, ray: ModuleType, job: Job, *, gpus: int, module: str) -> None:
        self._ray, self._job, self._gpus, self._module = ray, job, gpus, module
        self._members: list[Member] = []
        self._labels: dict[tuple[str, str], str] = {}
        self._refused: set[str] = set()
        self._failures = 0
        self._setup = ray.put(pickle.dumps(_setup(job)))
        self._paths = tuple(_paths(job))

    @property
    def members(self) -> list[Member]:
        """The workers that can be given orders."""
        return [each for each in self._members if each.label]

    def open(self) -> None:
        """Start every worker and wait for it. ``InfeasibleError`` where one cannot do the job."""
        self.fill()
        deadline = time.monotonic() + _PATIENCE_S
        while len(self.members) < len(self._members) and time.monotonic() < deadline:
            for _ in self.listen():
                pass
            if self._refused:
                raise InfeasibleError(next(iter(self._refused)))
        late = [each for each in self._members if not each.label]
        for each in late:
            self._job.recorder.observer.warn(
                f"a worker of the node {each.node.address} did not start within "
                f"{_PATIENCE_S:.0f} s; its devices are in use or it is gone"
            )
            self._drop(each)
        if not self._members:
            raise EngineLostError("no worker of the Ray cluster started; see ray status")

    def fill(self) -> None:
        """Start what is missing on the nodes that are alive."""
        for node in alive_nodes(self._ray, self._gpus):
            present = sum(each.node.id == node.id for each in self._members)
            for _ in range(present, node.workers):
                self._start(node)

    def send(self, member: Member, message: ToWorker) -> None:
        """Give a worker an order."""
        frames = [pickle.dumps(message)]
        if not member.is_set_up:
            frames.insert(0, self._setup)
            member.is_set_up = True
        member.actor.send.remote(*frames)

    def listen(self) -> Iterator[tuple[Member, FromWorker | Lost]]:
        """What workers say within a second. ``EngineLostError`` after a minute without any."""
        self._await_members()
        expected = {each.expected: each for each in self._members}
        ready, _ = self._ray.wait(list(expected), num_returns=1, timeout=_POLL_S)
        for each in map(expected.__getitem__, ready):
            try:
                answer = self._ray.get(each.expected)
            except self._ray.exceptions.RayError as error:
                yield from self._lose(each, type(error).__name__, str(error))
                continue
            if isinstance(answer, Place):
                self._welcome(each, answer)
            elif answer is None:
                yield from self._lose(each, "its process ended", "")
            else:
                each.expected = each.actor.receive.remote()
                yield each, pickle.loads(answer)

    def close(self) -> Iterator[tuple[Member, FromWorker | Lost]]:
        """End every worker and its engine; yields what they still say. To be used up."""
        try:
            for each in [each for each in self._members if not each.label]:
                self._drop(each)
            for each in self._members:
                each.actor.stop.remote()
            deadline = time.monotonic() + _CLOSE_S
            while self._members and time.monotonic() < deadline:
                yield from self.listen()
        finally:
            kill_workers(self._ray, [each.actor for each in self._members])
            self._members.clear()

    def _start(self, node: Node) -> None:
        actor = start_worker(self._ray, node, self._module)
        expected = actor.describe.remote(
            __version__, self._job.plan.target.weights_sha256, self._paths
        )
        self._members.append(Member(node=node, actor=actor, expected=expected))

    def _welcome(self, member: Member, place: Place) -> None:
        where, own, other = place.host, self._job.plan.device, place.device
        problem = place.problem
        if (own.kind, own.name) != (other.kind, other.name):
            problem = (
                f"has {other.name} and this machine {own.name}; measure unlike devices in runs of "
                "their own, and compare them with whet decide"
            )
        if problem is not None:
            self._refused.add(f"the worker on {where} {problem}")
            self._job.recorder.observer.warn(f"the worker on {where} {problem}")
            self._drop(member)
            return
        if place.nice > 0:
            self._job.recorder.observer.warn(
                f"the worker on {where} runs at nice {place.nice}, so other processes go before "
                "it; start its node with RAY_worker_niceness=0"
            )
        self._failures = 0
        member.label = self._label(member, place)
        member.expected = member.actor.receive.remote()

    def _label(self, member: Member, place: Place) -> str:
        """The same for the same devices of a node, and unique."""
        key = member.node.id, place.gpus
        if key not in self._labels:
            name = f"{place.host} GPU {place.gpus}" if place.gpus else place.host
            taken = [each for each in self._labels.values() if each.split(" #")[0] == name]
            self._labels[key] = f"{name} #{len(taken) + 1}" if taken else name
        return self._labels[key]

    def _lose(self, member: Member, reason: str, text: str) -> Iterator[tuple[Member, Lost]]:
        self._drop(member)
        if member.label:
            yield member, Lost(reason=reason)
            return
        self._failures += 1
        why = f"{reason}: {(text.strip().splitlines() or [''])[-1][:200]}"
        if self._failures >= _FAILURES:
            raise EngineLostError(
                f"the workers of the Ray cluster do not start ({why}); install whet as it is here "
                "on every node"
            )

    def _drop(self, member: Member) -> None:
        self._members.remove(member)
        kill_workers(self._ray, [member.actor])

    def _await_members(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self._members:
            if time.monotonic() > deadline:
                raise EngineLostError(
                    "every worker of the Ray cluster is gone; start a node with ray start "
                    "--address HOST:PORT and go on with --resume"
                )
            time.sleep(_POLL_S)
            self.fill()


def _setup(job: Job) -> Setup:
    """The job without what stays here, and the text that its inputs name."""
    inputs: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for each in fields(Inputs):
        path: Path | None = getattr(job.plan.inputs, each.name)
        if path is not None and path.exists():
            inputs[each.name] = each.name + path.suffix
            files[inputs[each.name]] = path.read_bytes()
    if job.plan.inputs.traffic is not None:
        files[TIMES] = (job.plan.inputs.traffic.parent / TIMES).read_bytes()
    bare = Recorder(store=RunStore(job.recorder.store.root), observer=Silent())
    return Setup(job=replace(job, recorder=bare), inputs=inputs, files=files)


def _paths(job: Job) -> Iterable[str]:
    """Folders and files that have to be on every node: the target, then the others."""
    yield job.plan.target.path
    named: Mapping[str, None] = {}
    for resolved in job.plan.resolved:
        variant = resolved.variant
        named = {**named, variant.model_path: None, **{path: None for _, path in variant.loras}}
        if variant.speculation is not None and variant.speculation.draft_path is not None:
            named = {**named, variant.speculation.draft_path: None}
    yield from named
    if job.plan.spec.load.trace is not None:
        yield str(job.plan.spec.load.trace.resolve())
