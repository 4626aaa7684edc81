"""How a variant's requests are sent: in flight at once, in static batches, to adapters in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.checkpoint_factory import write_adapter
from tests.flow.stage import SHORT, FakeEngine, tiny_spec
from tests.scripted_server import scripted_server
from whet.core.load import Load
from whet.core.protocols import Silent
from whet.core.records.load import ClientHealth, TrialRecord
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.plan import Plan, Recorder
from whet.flow.run.traffic.workload import trial_plan
from whet.levers import judge_cell
from whet.load import TrialPlan, run_trial
from whet.metrics import CellContext, summarise

GAP_S = 0.001
ADAPTERS = ("one", "two", "three")
HEALTHY = ClientHealth(
    dispatch_delay_p99_ns=0, loop_lag_p99_ns=0, cpu_share=0.1, valid=True, reason=None
)


Job = tuple[Plan, RunStore]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("spec")
    for name in ADAPTERS:
        write_adapter(folder / name)
    texts = {**SHORT, "min_output_tokens": 2, "input_output_ratio": 40.0}
    spec = tiny_spec(
        folder,
        engine={"name": "fake", "args": {"max_model_len": 512, "block_size": 4}},
        workload=texts,
        load={
            "concurrency": [4],
            "trials": 1,
            "min_requests": 18,
            "requests_per_slot": 4,
            "warmup_requests": 8,
        },
        variants={
            "fp16": {"prefix_cache": True},
            "static": {"prefix_cache": True, "batching": "static"},
            "lora": {"prefix_cache": True, "loras": {n: f"./{n}" for n in ADAPTERS}},
        },
    )
    with RunStore.open(folder / "run") as store:
        recorder = Recorder(store=store, observer=Silent())
        yield prepare(spec, recorder, FakeEngine(), skip_infeasible=False), store


def plans(job: Job) -> tuple[TrialPlan, TrialPlan]:
    continuous, static, _ = (plan_of(job, at) for at in range(3))
    return continuous, static


def plan_of(job: Job, at: int, *, warmup: int = 8) -> TrialPlan:
    plan, store = job
    return trial_plan(plan, store, plan.resolved[at], (Load.at(4), 0), warmup=warmup)


def run(plan: TrialPlan, **script: float) -> TrialRecord:
    with scripted_server(gap_s=GAP_S, **script) as server:
        trial = run_trial(
            server.url, "scripted", plan=plan, memory=lambda: None, alive=lambda: None
        )
    return replace(trial, health=HEALTHY)  # whatever else this machine had to do


def test_static_batches_are_the_other_variants_requests_in_another_loop(job: Job) -> None:
    continuous, static = plans(job)
    assert (continuous.loop, static.loop) == ("closed", "static")
    assert static.workload == continuous.workload
    assert static.warmup == continuous.warmup


def test_the_throughput_of_static_batches_is_that_of_their_slowest_members(job: Job) -> None:
    """18 requests are 4 batches of 4 in the window; one of n tokens takes (n − 1) gaps."""
    _, plan = plans(job)
    trial = run(plan)
    lengths = [request.max_tokens for request in plan.workload.requests]
    batches = [lengths[at : at + 4] for at in range(0, 16, 4)]
    events = [trial.requests[at : at + 4] for at in range(0, 16, 4)]
    assert len({max(batch) for batch in batches}) > 1
    for before, after in pairwise(events):
        assert {e.scheduled_ns for e in after} == {max(e.ended_ns for e in before)}
    tps = summarise(
        [trial], cell=CellContext(price_usd_per_hour=1.0, memory_kind="device")
    ).tps_mean
    assert tps is not None
    took_ns = sum(max(e.ended_ns - e.scheduled_ns for e in seen) for seen in events)
    assert trial.window_end_ns == took_ns
    assert tps.value == pytest.approx(sum(map(sum, batches)) / (took_ns / 1e9))
    least_s = sum((max(batch) - 1) * GAP_S for batch in batches)
    assert tps.value <= sum(map(sum, batches)) / least_s


def test_static_batches_are_held_to_the_hit_rate_that_their_requests_were_built_for(
    job: Job,
) -> None:
    _, plan = plans(job)
    facts = plan.workload.facts
    assert facts.expected_hit_rate > 0.2
    for share, outcome in ((facts.expected_hit_rate, "proved"), (0.0, "contradicted")):
        trial = run(plan, hit_share=share)
        verdicts = judge_cell(job[0].resolved[1], [trial], facts)
        said = {verdict.claim.kind: verdict.outcome for verdict in verdicts}
        assert said["prefix_cache"] == outcome


def test_adapters_are_asked_for_in_turn_with_the_other_variants_prompts(job: Job) -> None:
    plain, plan = plan_of(job, 0), plan_of(job, 2)
    assert plain.calls is None
    assert plain.warmup_calls is None
    assert (plan.workload, plan.warmup) == (plain.workload, plain.warmup)
    assert plan.calls is not None
    assert [call.extra["model"] for call in plan.calls] == [*ADAPTERS] * 6
    prompts = [request.prompt_token_ids for request in plain.workload.requests]
    assert [call.prompt_token_ids for call in plan.calls] == prompts


def test_the_warm_up_asks_for_every_adapter(job: Job) -> None:
    """8 requests of 3 adapters; none where the server is warm."""
    plan = plan_of(job, 2)
    assert plan.warmup_calls is not None
    assert [call.extra["model"] for call in plan.warmup_calls] == ([*ADAPTERS] * 3)[:8]
    assert plan_of(job, 2, warmup=0).warmup_calls == ()


def test_what_is_sent_names_the_adapter_and_is_else_the_same(job: Job) -> None:
    sent = []
    for at in (0, 2):
        plan = plan_of(job, at)
        with scripted_server(gap_s=0.0) as server:
            run_trial(server.url, "scripted", plan=plan, memory=lambda: None, alive=lambda: None)
        sent.append(sorted(server.requests[8:], key=str))
    models = [body["model"] for body in sent[1]]
    assert {name: models.count(name) for name in ADAPTERS} == dict.fromkeys(ADAPTERS, 6)
    plain, adapted = ([{**body, "model": None} for body in bodies] for bodies in sent)
    assert sorted(map(str, adapted)) == sorted(map(str, plain))
