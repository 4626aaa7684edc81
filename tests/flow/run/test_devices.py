"""Which sessions run on which device of a Ray cluster, and when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.flow.rounds_stage import Stand, spec_of
from whet.core.protocols import Silent
from whet.core.records.codec import encode
from whet.core.records.load import OutputLengths
from whet.core.run import Run
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.measure.rounds import Rounds, sessions_of
from whet.flow.run.plan import RATE_SEARCH, Plan, Recorder
from whet.flow.run.search.grid import rounds_of
from whet.flow.run.workers.executor import RayExecutor, demand_of
from whet.flow.run.workers.session import Outcome

ray = pytest.importorskip("ray")
VARIANTS: dict[str, Any] = {"fp16": {}, "b": {}, "c": {}}
FORTH, BACK = ["fp16", "b", "c"], ["c", "b", "fp16"]


@dataclass
class OneCluster:
    """A cluster that is asked as the ``ray`` module is; the newest session ends first.

    ``by_device`` has the variants of each device in order, ``together`` how many sessions ran when
    another was started, ``lengths`` are measured by the first session.
    """

    exceptions = ray.exceptions
    workers: int
    measures_lengths: bool = True
    by_device: dict[int, list[str]] = field(default_factory=dict)
    together: list[int] = field(default_factory=list)
    running: dict[int, Outcome] = field(default_factory=dict)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 2.0}}] * self.workers

    def put(self, data: bytes) -> bytes:
        return data

    def remote(self, *, scheduling_strategy: Any, **_options: Any) -> Any:
        device = scheduling_strategy.placement_group

        def start(_function: object) -> Any:
            return SimpleNamespace(remote=lambda *args: self._start(device, *args))

        return start

    def _start(self, device: int, _version: str, _sent: bytes, _files: Any, *args: Any) -> int:
        pending, left = args
        self.by_device.setdefault(device, []).append(pending.name)
        ref = sum(map(len, self.by_device.values()))
        files = {"journal.jsonl": b""}
        if self.measures_lengths and ref == 1:
            entry = {"kind": "lengths", "key": "answers", "status": "complete"}
            lengths = encode(OutputLengths(variant="fp16", tokens=(3,)))
            files = {
                "journal.jsonl": json.dumps(entry).encode(),
                "lengths/answers.json": json.dumps(lengths).encode(),
            }
        self.together.append(len(self.running))
        self.running[ref] = Outcome(
            worker=str(device), files=files, lines=(), starts_left=left, error=None
        )
        return ref

    def wait(self, refs: Sequence[int], **_asked: Any) -> tuple[list[int], list[int]]:
        return [refs[-1]], list(refs[:-1])

    def get(self, ref: int) -> Outcome:
        return self.running.pop(ref)


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placement groups are numbers."""
    numbers = count(1)
    monkeypatch.setattr("ray.util.placement_group", lambda _bundles: next(numbers))
    monkeypatch.setattr("ray.util.remove_placement_group", lambda _device: None)
    monkeypatch.setattr(
        "ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy",
        lambda device: SimpleNamespace(placement_group=device),
    )


def measure(
    folder: Path, cluster: OneCluster, *, trials: int, title: str = "", **change: Any
) -> OneCluster:
    with RunStore.open(folder / "run") as store:
        recorder = Recorder(store=store, observer=Silent())
        spec = spec_of(folder, trials=trials, **{"variants": VARIANTS, **change})
        plan = prepare(spec, recorder, Stand(), skip_infeasible=False)
        executor = RayExecutor(cluster)  # type: ignore[arg-type]
        executor.measure(plan, recorder, Stand(), rounds(plan, store, title))
    return cluster


def rounds(plan: Plan, store: RunStore, title: str) -> Rounds:
    every = rounds_of(plan, Run(store))
    return list(sessions_of(every, quality=True, title=title))


@pytest.mark.parametrize("title", ["", "confirmation", RATE_SEARCH])
@pytest.mark.parametrize(("trials", "workers"), [(4, 1), (4, 2), (3, 2), (2, 4), (1, 4)])
def test_a_round_stays_on_one_device(tmp_path: Path, trials: int, workers: int, title: str) -> None:
    cluster = measure(tmp_path, OneCluster(workers), trials=trials, title=title)
    assert Counter(map(tuple, cluster.by_device.values())) == Counter(
        tuple(BACK if number % 2 else FORTH) for number in range(trials)
    )
    assert max(cluster.together) + 1 == min(trials, workers)


@pytest.mark.parametrize("measures", [True, False])
def test_the_lengths_of_answers_are_measured_before_others_start(
    tmp_path: Path, measures: bool
) -> None:
    natural = {"workload": {"output_lengths": "natural"}}
    cluster = measure(tmp_path, OneCluster(2, measures), trials=2, **natural)
    assert cluster.together[:2] == [0, 0]
    assert max(cluster.together) == (1 if measures else 0)
    assert list(cluster.by_device.values()) == [FORTH, BACK]


def test_devices_that_rounds_leave_idle_are_named(tmp_path: Path) -> None:
    class Ear(Silent):
        def warn(self, message: str) -> None:
            warnings.append(message)

    warnings: list[str] = []
    with RunStore.open(tmp_path / "run") as store:
        recorder = Recorder(store=store, observer=Silent())
        plan = prepare(spec_of(tmp_path, trials=2), recorder, Stand(), skip_infeasible=False)
    blocks = plan.spec.load.model_copy(update={"order": "blocks"})
    blocks_plan = replace(plan, spec=plan.spec.model_copy(update={"load": blocks}))
    for each, workers in ((plan, 2), (plan, 4), (blocks_plan, 2)):
        RayExecutor(OneCluster(workers)).require(each, Ear())  # type: ignore[arg-type]
    assert [each.split(";")[0] for each in warnings] == [
        "a round stays on one worker, so 2 of 4 measure",
        "a round stays on one worker, so 1 of 2 measure",
    ]


@pytest.mark.parametrize(
    ("args", "expected"),
    [({}, 1), ({"tensor_parallel_size": 2, "data_parallel_size": 2}, 4)],
)
def test_a_worker_has_the_gpus_of_the_largest_variant(args: dict[str, Any], expected: int) -> None:
    variants = [{}, args]
    resolved = [
        SimpleNamespace(variant=SimpleNamespace(engine_args=tuple(each.items())))
        for each in variants
    ]
    plan: Any = SimpleNamespace(device=SimpleNamespace(kind="cuda"), resolved=resolved)
    cluster: Any = OneCluster(1)
    assert demand_of(cluster, plan) == {"GPU": expected, "CPU": 1.0}
    plan.device.kind = "cpu"
    assert demand_of(cluster, plan) == {"CPU": 2.0}
