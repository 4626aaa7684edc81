"""Servers that come up together share a device's memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.predict.builders import gpu, model, variant
from whet.core.records.engine import Speculation, Variant
from whet.core.records.plan import MemoryPlan
from whet.core.units import GIB
from whet.predict import Demand, group_memory_warnings, plan_memory

CARD = gpu(80, name="H100 SXM")


def plan(this: Variant) -> MemoryPlan:
    demand = Demand(max_batch=1, tokens_per_request=512)
    return plan_memory(this, target=model(), stored=model(), draft=None, device=CARD, demand=demand)


def test_pools_of_a_stated_size_are_added_up() -> None:
    one = plan(variant(kv_cache_memory_bytes=2 * GIB))
    fixed = one.weight_bytes + one.activation_bytes
    most = (80 * GIB - 2 * fixed) // 2
    plans = {
        name: plan(variant(kv_cache_memory_bytes=most + more))
        for name, more in (("a", 0), ("b", -1024), ("c", 2048))
    }
    assert list(group_memory_warnings([["a", "b"]], plans, CARD)) == []
    (told,) = group_memory_warnings([["a", "b"], ["a", "c"]], plans, CARD)
    assert told.startswith("a, c: they come up together")


def test_without_a_stated_size_each_takes_its_share_of_the_card() -> None:
    plans = {name: plan(variant()) for name in ("a", "b")}
    assert len(list(group_memory_warnings([["a", "b"]], plans, CARD))) == 1


def test_an_unknown_server_ends_the_sum() -> None:
    plans = {"a": plan(variant())}
    assert list(group_memory_warnings([["a", "gone"]], plans, CARD)) == []


def test_a_head_counts_with_what_it_stores(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 5000)
    head = Speculation(method="eagle3", num_tokens=4, draft_path=str(tmp_path))
    plain = variant()
    assert plan(plain).draft_weight_bytes is None
    assert plan(replace(plain, speculation=head)).draft_weight_bytes == 5000
    elsewhere = replace(head, draft_path="owner/head")
    assert plan(replace(plain, speculation=elsewhere)).draft_weight_bytes is None
