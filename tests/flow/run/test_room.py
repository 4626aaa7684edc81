"""What servers take of a device next to one another, and how each one's KV pool is sized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.stage import FakeEngine, prepared, tiny_spec
from tests.predict.builders import gpu
from tests.records import model
from whet.core.load import Load
from whet.core.protocols import Silent
from whet.core.records.engine import ResolvedEngine
from whet.core.spec import LoadSpec
from whet.core.store import RunStore
from whet.core.units import GIB
from whet.flow.run.measure.room import as_started, free_bytes, most_at_once, need_of
from whet.flow.run.measure.waves import open_waves
from whet.flow.run.plan import Plan, Recorder
from whet.flow.run.traffic.workload import tokens_in_flight

CARD = gpu(80, name="H100 SXM")
LLAMA = model()
RATES = LoadSpec(rates=(1.0,))
AT_32 = (Load.at(1), Load.at(32))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.open(tmp_path / "run") as store:
        yield store


def plan_of(store: RunStore, folder: Path, args: dict[str, Any] | None = None) -> Plan:
    """Two variants of a 7B shape on an H100, 32 requests in flight."""
    engine = {"name": "fake", "args": {"max_model_len": 512}}
    load = {"concurrency": [1, 32], "trials": 1, "order": "blocks"}
    spec = tiny_spec(
        folder, engine=engine, load=load, variants={"fp16": {}, "other": {"args": args or {}}}
    )
    plan = prepared(spec, store)
    return replace(plan, device=CARD, target=replace(LLAMA, path=plan.target.path))


def other(plan: Plan) -> ResolvedEngine:
    return next(item for item in plan.resolved if item.variant.name == "other")


def test_a_pool_holds_the_largest_load_with_a_margin(store: RunStore, tmp_path: Path) -> None:
    plan = plan_of(store, tmp_path)
    need = need_of(plan, store, other(plan), AT_32)
    assert need.pool is not None
    tokens = tokens_in_flight(plan, store, other(plan).variant, AT_32[-1])
    assert need.pool == pytest.approx(1.25 * tokens * 524_288, rel=0.15)
    assert need.total > need.pool + LLAMA.weight_bytes + GIB, "activations and a context, too"
    small = need_of(plan, store, other(plan), AT_32[:1])
    assert small.pool is not None
    assert small.pool >= 512 * 524_288, "the engine refuses less than its longest request"


def test_what_requests_share_takes_memory_once(store: RunStore, tmp_path: Path) -> None:
    plan = plan_of(store, tmp_path)
    plain = replace(other(plan).variant, engine_args=(("block_size", 1),))
    whole, shared = (
        tokens_in_flight(plan, store, replace(plain, prefix_cache=cache), AT_32[-1])
        for cache in (False, True)
    )
    assert whole / 3 < shared < 0.95 * whole


def test_the_start_gets_the_pool_and_the_stored_variant_stays_as_deployed(
    store: RunStore, tmp_path: Path
) -> None:
    plan = plan_of(store, tmp_path, {"gpu-memory-utilization": 0.8, "max_num_seqs": 64})
    resolved = other(plan)
    need = need_of(plan, store, resolved, AT_32)
    started = as_started(plan, FakeEngine(), resolved, need)
    assert dict(started.variant.engine_args) == {
        "max_model_len": 512,
        "max_num_seqs": 64,
        "kv_cache_memory_bytes": need.pool,
        "gpu_memory_utilization": 0.1,
    }
    assert replace(started, variant=resolved.variant) == resolved
    assert store.get("variants", "other", ResolvedEngine) == resolved


def test_a_pool_that_the_spec_sizes_is_kept(store: RunStore, tmp_path: Path) -> None:
    plan = plan_of(store, tmp_path, {"kv_cache_memory_bytes": 9 * GIB})
    need = need_of(plan, store, other(plan), AT_32)
    assert need.pool is None
    assert need.total > 9 * GIB + LLAMA.weight_bytes
    assert as_started(plan, FakeEngine(), other(plan), need) is other(plan)


def test_the_servers_that_start_together_fit_the_card(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16))
    plan = plan_of(store, tmp_path)
    need = need_of(plan, store, plan.baseline(), AT_32)
    with open_waves(Recorder(store=store, observer=Silent()), FakeEngine()) as waves:
        servers = [plan.baseline()] * 4
        width = waves.width(plan, servers)
        assert width == 3
        assert waves.width(plan, servers[:2]) == 2
        assert width * need.total <= free_bytes(plan) < (width + 1) * need.total
        rates = replace(plan, spec=plan.spec.model_copy(update={"load": RATES}))
        assert waves.width(rates, servers) == 1, "as many requests as run at once may be in flight"


def test_an_engine_without_a_sized_pool_starts_alone(store: RunStore, tmp_path: Path) -> None:
    plan = plan_of(store, tmp_path)
    assert need_of(plan, store, replace(other(plan), engine="sglang"), AT_32).alone


@pytest.mark.parametrize(("cores", "most"), [(1, 1), (2, 2), (4, 2), (8, 3), (16, 4), (96, 4)])
def test_servers_at_once_by_the_cores_of_the_host(
    monkeypatch: pytest.MonkeyPatch, cores: int, most: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    assert most_at_once() == most
