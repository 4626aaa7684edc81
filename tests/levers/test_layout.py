"""What counters of each server say of replicas, and of prompts computed apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.levers.builders import resolved, trial, workload
from whet.core.records.engine import Layout, ResolvedEngine
from whet.core.records.evidence import Verdict
from whet.core.records.load import Counters
from whet.engines import get_engine
from whet.levers import judge_cell
from whet.levers.parallelism import BY_SOURCE, GENERATED_BY

GENERATED = "vllm:generation_tokens_total"
RECEIVED = f'{BY_SOURCE}{{source="external_kv_transfer"}}'
COMPUTED = f'{BY_SOURCE}{{source="local_compute"}}'
REPLICAS = Layout(decode=2)
APART = Layout(prefill=1, decode=1, connector="NixlConnector")


def server(layout: Layout) -> ResolvedEngine:
    plain = resolved()
    return replace(plain, variant=replace(plain.variant, layout=layout))


def verdict(layout: Layout, kind: str, after: dict[str, float]) -> Verdict:
    whole = {GENERATED: 1000.0, **after}
    zero = Counters(taken_ns=0, values=tuple((name, 0.0) for name in whole))
    end = Counters(taken_ns=1, values=tuple(whole.items()))
    verdicts = judge_cell(server(layout), [trial(zero, end)], workload())
    return next(each for each in verdicts if each.claim.kind == kind)


def by(*tokens: float) -> dict[str, float]:
    return {f'{GENERATED_BY}{{source="decode{n}"}}': value for n, value in enumerate(tokens)}


@pytest.mark.parametrize(
    ("tokens", "outcome"),
    [((480, 520), "proved"), ((100, 900), "unproved"), ((0, 1000), "contradicted")],
)
def test_replicas_share_the_work(tokens: tuple[float, float], outcome: str) -> None:
    assert verdict(REPLICAS, "layout", by(*tokens)).outcome == outcome


def test_a_router_that_counts_nothing_proves_nothing() -> None:
    assert verdict(REPLICAS, "layout", by(1000)).outcome == "unproved"


@pytest.mark.parametrize(
    ("received", "computed", "outcome"),
    [(900, 100, "proved"), (100, 900, "unproved"), (0, 1000, "contradicted")],
)
def test_kv_caches_that_were_transferred_are_counted(
    received: float, computed: float, outcome: str
) -> None:
    counts = {RECEIVED: received, COMPUTED: computed, **by(1000)}
    assert verdict(APART, "kv_transfer", counts).outcome == outcome


def test_a_transfer_that_failed_contradicts() -> None:
    counts = {RECEIVED: 900.0, COMPUTED: 100.0, **by(1000)}
    failed = counts | {"vllm:nixl_num_failed_transfers_total": 2.0}
    assert verdict(APART, "kv_transfer", failed).outcome == "contradicted"


def test_an_attached_server_refuses_a_layout() -> None:
    refusal = get_engine("openai").unsupported(replace(server(REPLICAS), engine="openai"))
    assert refusal is not None
    assert "leave layout out" in refusal
