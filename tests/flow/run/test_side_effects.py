"""Which variant the costs of another are told against: its nearest relation with fewer levers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.decision.cells import cell
from tests.flow.stage import FakeEngine, tiny_spec
from tests.run_copy import replace
from whet.core.load import Load
from whet.core.records.engine import Speculation, StartFacts, Variant
from whet.core.records.evidence import EngineFacts, LeverCost, TrialNotices
from whet.core.run import Run
from whet.core.starts import store_start
from whet.core.store import RunStore
from whet.flow.run.conclude.side_effects import lever_costs

DRAFT = Speculation(method="ngram", num_tokens=4, draft_path=None)
JIT = "Triton kernel JIT compilation during inference: _fwd_kernel"


def variant(name: str, **change: Any) -> Variant:
    values: dict[str, Any] = {
        "name": name,
        "weights": "16bit",
        "scheme": "16bit",
        "model_path": "/m",
        "speculation": None,
        "prefix_cache": False,
    }
    return Variant(**{**values, **change})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.open(tmp_path / "run") as opened:
        yield opened


def facts(kv_cache_tokens: int | None) -> EngineFacts:
    return EngineFacts(
        version="1",
        weight_kernels=(),
        quantized_layers=None,
        unquantized_layers=None,
        attention_backend=None,
        kv_cache_tokens=kv_cache_tokens,
        prefix_cache_enabled=None,
        async_scheduling=None,
        notices=(),
    )


def kept(store: RunStore, *variants: tuple[Variant, int | None], baseline: str = "fp16") -> Run:
    """A run of these variants, each with one start that showed a KV pool of so many tokens."""
    for item, tokens in variants:
        start = StartFacts(
            variant=item.name, ready_s=1.0, canary_text="t", port=1, pid=None, attempts=1
        )
        store_start(store, item.name, start, (facts(tokens), None))
    spec = tiny_spec(
        store.root, variants={item.name: {} for item, _ in variants}, baseline=baseline
    )
    engine = FakeEngine()
    engines = {item.name: engine.resolve(item, spec.engine) for item, _ in variants}
    return replace(Run(store), spec=spec, engines=engines)


def told(run: Run) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Reference and levers by variant."""
    return {cost.variant: (cost.reference, cost.levers) for cost in lever_costs(run, ())}


def test_the_reference_is_the_relation_that_differs_in_the_fewest_levers(store: RunStore) -> None:
    run = kept(
        store,
        (variant("fp16"), 100),
        (variant("awq", weights="awq"), 90),
        (variant("awq+spec", weights="awq", speculation=DRAFT), 80),
        (variant("all", weights="awq", speculation=DRAFT, prefix_cache=True), 70),
    )
    assert told(run) == {
        "awq": ("fp16", ("weights=awq",)),
        "awq+spec": ("awq", ("speculation=ngram K=4",)),
        "all": ("awq+spec", ("prefix_cache",)),
    }


def test_of_two_that_are_as_near_the_baseline_is_taken(store: RunStore) -> None:
    run = kept(
        store,
        (variant("other"), 100),
        (variant("fp16"), 100),
        (variant("cache", prefix_cache=True), 80),
    )
    assert told(run) == {"cache": ("fp16", ("prefix_cache",))}


def test_of_others_that_are_as_near_the_first_is_taken(store: RunStore) -> None:
    flags = [(f"flag{at}", 1) for at in range(8)]
    nearest = [variant(f"one{at}", engine_args=(flag,)) for at, flag in enumerate(flags)]
    run = [variant("fp16"), *nearest, variant("all", engine_args=tuple(flags))]
    found = lever_costs(kept(store, *((item, 900) for item in run[:-1]), (run[-1], 100)), ())
    assert [(cost.variant, cost.reference) for cost in found] == [("all", "one0")]


def test_what_has_no_part_is_held_against_the_baseline_with_what_it_lacks(store: RunStore) -> None:
    baseline = variant("fp16", prefix_cache=True)
    run = kept(store, (baseline, 100), (variant("spec", speculation=DRAFT), 80))
    assert told(run) == {"spec": ("fp16", ("prefix_cache=unset", "speculation=ngram K=4"))}


def test_another_value_of_a_lever_is_no_part(store: RunStore) -> None:
    eight = variant("eight", engine_args=(("max_num_seqs", 8),))
    both = variant("both", engine_args=(("max_num_seqs", 32),), prefix_cache=True)
    run = kept(store, (variant("fp16"), 100), (eight, 100), (both, 80))
    assert told(run) == {"both": ("fp16", ("max_num_seqs=32", "prefix_cache"))}


def test_the_baselines_own_weights_are_no_lever(store: RunStore) -> None:
    run = kept(
        store,
        (variant("awq", weights="awq"), 100),
        (variant("fp16"), 80),
        (variant("fp16+cache", prefix_cache=True), 70),
        baseline="awq",
    )
    assert told(run) == {
        "fp16": ("awq", ("weights=16bit",)),
        "fp16+cache": ("fp16", ("prefix_cache",)),
    }


def test_a_variant_that_never_started_is_neither_told_nor_a_reference(store: RunStore) -> None:
    run = kept(
        store, (variant("fp16"), 100), (variant("all", weights="awq", prefix_cache=True), 80)
    )
    dead = FakeEngine().resolve(variant("awq", weights="awq"), run.spec.engine)
    run = replace(run, engines={**run.engines, "awq": dead})
    assert told(run) == {"all": ("fp16", ("prefix_cache", "weights=awq"))}


def test_what_is_equal_costs_nothing(store: RunStore) -> None:
    assert (
        told(kept(store, (variant("fp16"), 100), (variant("again", prefix_cache=True), 100))) == {}
    )


def test_notices_and_cells_of_the_run_are_costs_too(store: RunStore) -> None:
    """A kernel was compiled at batch 4; the hit rate of batch 1 fell by ten points."""
    both = variant("both", prefix_cache=True, speculation=DRAFT)
    run = kept(
        store, (variant("fp16"), None), (variant("cache", prefix_cache=True), None), (both, None)
    )
    for name, notices in (("cache", ()), ("both", (JIT,))):
        record = TrialNotices(variant=name, load=Load.at(4), trial=0, notices=notices)
        store.put("notices", f"{name}--b004-t0", record)
    cells = (
        cell("cache", 1, 1.0, 10.0, prefix_hit_rate=0.8),
        cell("both", 1, 1.0, 10.0, prefix_hit_rate=0.7),
    )
    found = lever_costs(run, cells)
    assert {(cost.variant, cost.reference, cost.load and cost.load.slots) for cost in found} == {
        ("both", "cache", 4),
        ("both", "cache", 1),
    }
    compiled = next(cost for cost in found if cost.load == Load.at(4))
    assert compiled == LeverCost(
        variant="both",
        reference="cache",
        levers=("speculation=ngram K=4",),
        what="a kernel was compiled while serving",
        detail=JIT,
        load=Load.at(4),
    )
