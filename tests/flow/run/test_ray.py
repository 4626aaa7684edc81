"""Two workers on one host: nothing that was measured is lost or measured twice, whoever dies."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.flow.rounds_stage import spec_of
from tests.flow.run.ray_stage import FOLDER, GuardedStand, engines, install, install_worker
from whet.core.errors import InfeasibleError, UsageError
from whet.core.protocols import Silent
from whet.core.provenance import Device
from whet.core.records.decision import Decision
from whet.core.records.engine import StartFacts
from whet.core.records.load import TrialRecord
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.starts import start_key
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.measure.rounds import Measurer
from whet.flow.run.pipeline import run
from whet.flow.run.plan import Recorder
from whet.flow.run.search.grid import rounds_of
from whet.flow.run.workers.executor import ray_executor

ray = pytest.importorskip("ray")
REPOSITORY = Path(__file__).resolve().parents[3]
VARIANTS: dict[str, Any] = {"fp16": {}, "b": {}, "c": {"prefix_cache": True}}
OBJECTIVE = {"ttft_ms": [10_000], "recommend_ttft_ms": 10_000}


class Nodes:
    """A cluster of two nodes with a CPU each; the second can be killed and started again."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        arguments = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=arguments)
        self.second: Any = None
        self.start()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def start(self) -> None:
        if self.second is None:
            self.second = self.cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)

    def kill(self) -> None:
        for infos in self.second.all_processes.values():
            for info in infos:
                with suppress(ProcessLookupError):
                    os.kill(info.process.pid, signal.SIGKILL)
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = None


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("ray")
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("RAY_health_check_initial_delay_ms", "500")
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("RAY_health_check_failure_threshold", "3")
        made = Nodes()
        yield made
        made.cluster.shutdown()


@pytest.fixture(autouse=True)
def stage(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that workers read; no engine is left at the end."""
    folder = Path(os.environ[FOLDER])
    (folder / "lethal.json").write_text("[]")
    (folder / "ledger.txt").write_text("")
    nodes.start()
    install(monkeypatch)
    init = ray.init

    def init_with_hook(**arguments: Any) -> Any:
        return init(**arguments, runtime_env={"worker_process_setup_hook": install_worker})

    monkeypatch.setattr("ray.init", init_with_hook)
    yield folder
    assert eventually(lambda: not engines()), engines()


def eventually(holds: Callable[[], bool], *, timeout_s: float = 15.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


def spec_for(folder: Path, **change: Any) -> Spec:
    return spec_of(folder, trials=2, **{"variants": VARIANTS, "objective": OBJECTIVE, **change})


def story(
    spec: Spec,
    root: Path,
    address: str | None,
    *,
    resume: bool = False,
    refused: Collection[tuple[str, int]] = (),
) -> Decision:
    engine = GuardedStand(refused=set(refused))
    with RunStore.open(root, resume=resume) as store:
        recorder = Recorder(store=store, observer=Silent())
        if address is None:
            return run(spec, recorder, engines=engine)
        with ray_executor(address) as executor:
            return run(spec, recorder, executor=executor, engines=engine)


def outcome(decision: Decision) -> tuple[object, ...]:
    """What was decided. Figures differ by rounding: sums are made in the order of the journal."""
    chosen = decision.recommendation
    return (
        chosen and (chosen.variant, chosen.load),
        [(each.meets, each.variant, each.load) for each in decision.matrix],
        sorted((each.variant, str(each.load), each.status) for each in decision.cells),
        [(each.variant, each.kind) for each in decision.excluded],
    )


def ledger(stage: Path) -> Counter[str]:
    return Counter((stage / "ledger.txt").read_text().splitlines())


def done(root: Path) -> set[str]:
    """Trials that are stored, as the ledger writes them."""
    trials = RunStore.read(root).all("trials", TrialRecord)
    return {f"{t.variant} {t.load} {t.trial}" for t in trials if t.status == "complete"}


def stored(root: Path) -> set[tuple[str, str, str | None]]:
    """Every journalled key of a run with its status."""
    lines = map(json.loads, (root / "journal.jsonl").read_text().splitlines())
    return {(line["kind"], line["key"], line["status"]) for line in lines}


def workers() -> list[psutil.Process]:
    """Processes in which Ray runs a session."""
    every = psutil.process_iter(["cmdline"])
    return [p for p in every if (p.info["cmdline"] or [""])[0].startswith("ray::run_session")]


def test_two_workers_decide_as_one_machine_does(nodes: Nodes, tmp_path: Path, stage: Path) -> None:
    spec = spec_for(tmp_path)
    local = story(spec, tmp_path / "local", None)
    (stage / "ledger.txt").write_text("")
    root = tmp_path / "ray"
    assert outcome(story(spec, root, nodes.address)) == outcome(local)
    assert local.recommendation is not None
    assert set(ledger(stage).values()) == {1}, "nothing is measured twice"
    store = RunStore.read(root)
    by_round: dict[int, set[str]] = {}
    for trial in store.all("trials", TrialRecord):
        start = store.get("starts", start_key(store, trial.variant, trial.start), StartFacts)
        assert start is not None
        by_round.setdefault(trial.trial, set()).add(str(start.worker))
    assert [len(each) for each in by_round.values()] == [1] * len(by_round), "one device a round"
    assert len(set.union(*by_round.values())) == 2
    assert (root / "logs" / "fp16.log").exists()
    assert stored(root) == stored(tmp_path / "local")


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_a_death_at_any_moment_loses_nothing(
    nodes: Nodes, tmp_path: Path, stage: Path, seed: int
) -> None:
    spec, root = spec_for(tmp_path), tmp_path / "ray"
    local = story(spec, tmp_path / "local", None)
    (stage / "ledger.txt").write_text("")
    draw = random.Random(seed)
    what, after_s = ("node", "worker")[seed % 2], draw.uniform(0.0, 4.0)
    killed: list[tuple[set[str], Counter[str]]] = []

    def kill() -> None:
        eventually(lambda: len(engines()) > 0, timeout_s=60)
        time.sleep(after_s)
        if what == "node":
            nodes.kill()
        elif victims := workers():
            draw.choice(victims).kill()
        killed.append((done(root), ledger(stage)))

    killer = threading.Thread(target=kill)
    killer.start()
    decision = story(spec, root, nodes.address)
    killer.join()
    assert outcome(decision) == outcome(local)
    (stored, before), after = killed[0], ledger(stage)
    assert {cell: after[cell] - before[cell] for cell in stored if after[cell] > before[cell]} == {}
    assert done(root) == done(tmp_path / "local")


@pytest.mark.full
def test_a_variant_that_kills_its_workers_has_failed(
    nodes: Nodes, tmp_path: Path, stage: Path
) -> None:
    (stage / "lethal.json").write_text('["b"]')
    root = tmp_path / "ray"
    decision = story(spec_for(tmp_path), root, nodes.address)
    reasons = {item.variant: item.reason for item in decision.excluded}
    assert "3 workers were lost while they measured it" in reasons["b"]
    assert {cell.variant for cell in Run.read(root).cells if cell.status == "complete"} == {
        "fp16",
        "c",
    }


@pytest.mark.full
def test_a_stop_leaves_no_engine_and_either_executor_goes_on(
    nodes: Nodes, tmp_path: Path, stage: Path
) -> None:
    spec, root = spec_for(tmp_path), tmp_path / "ray"
    local = story(spec, tmp_path / "local", None)
    (stage / "ledger.txt").write_text("")

    def stop() -> None:
        eventually(lambda: sum(ledger(stage).values()) > 8, timeout_s=60)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    threading.Thread(target=stop).start()
    with pytest.raises(KeyboardInterrupt):
        story(spec, root, nodes.address)
    assert not engines()
    assert eventually(lambda: not workers())
    stored, before = done(root), ledger(stage)
    assert stored
    assert outcome(story(spec, root, None, resume=True)) == outcome(local)
    after = ledger(stage)
    assert all(after[cell] == before[cell] for cell in stored)


def test_what_the_cluster_cannot_do_is_one_sentence(nodes: Nodes, tmp_path: Path) -> None:
    gpu = Device(kind="cuda", name="H100", memory_bytes=1, count=1, driver=None)
    with RunStore.open(tmp_path / "run") as store, ray_executor(nodes.address) as executor:
        recorder = Recorder(store=store, observer=Silent())
        plan = prepare(spec_for(tmp_path), recorder, GuardedStand(), skip_infeasible=False)
        with pytest.raises(InfeasibleError, match=r"no node of the Ray cluster offers 1 GPU and"):
            executor.require(replace(plan, device=gpu), Silent())
        attached = tuple(replace(each, url="http://h") for each in plan.resolved)
        with pytest.raises(UsageError, match=r"engine\.url is one that runs"):
            executor.require(replace(plan, resolved=attached), Silent())


@pytest.mark.full
def test_workers_refuse_another_machine_version_and_missing_files(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = GuardedStand()
    with RunStore.open(tmp_path / "run") as store:
        recorder = Recorder(store=store, observer=Silent())
        plan = prepare(spec_for(tmp_path), recorder, engine, skip_infeasible=False)
        other = replace(plan.device, name="another CPU")
        gone = replace(plan.target, path=str(tmp_path / "gone"))
        for wrong, message in (
            (replace(plan, device=other), "measure unlike devices in runs of their own"),
            (replace(plan, target=gone), "put a copy at the same path on every node"),
            (replace(plan, target=replace(plan.target, weights_sha256="0")), "has other weights"),
            (plan, r"and this machine 0\.0; install the same version"),
        ):
            if wrong is plan:
                monkeypatch.setattr("whet.flow.run.workers.executor.__version__", "0.0")
            rounds = rounds_of(wrong, Run(store))
            with ray_executor(nodes.address) as executor:
                measurer = Measurer(recorder=recorder, engines=engine, executor=executor)
                with pytest.raises(InfeasibleError, match=message):
                    measurer.measure(wrong, rounds, quality=False)


@pytest.mark.full
def test_a_server_that_does_not_start_is_left_out(nodes: Nodes, tmp_path: Path) -> None:
    decisions = [
        story(spec_for(tmp_path), tmp_path / name, address, refused={("b", 0)})
        for name, address in (("local", None), ("ray", nodes.address))
    ]
    assert outcome(decisions[0]) == outcome(decisions[1])
    assert {each.variant for each in decisions[1].excluded} == {"b"}
    assert all("CUDA out of memory" in each.reason for each in decisions[1].excluded)
