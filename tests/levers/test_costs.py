"""What a lever drags along, told from recorded starts, from trials and from cells."""

from __future__ import annotations

from dataclasses import replace

from tests.levers.recorded import log
from whet.core.load import Load
from whet.core.records.evidence import EngineFacts, LeverCost, TrialNotices
from whet.core.records.summary import CellSummary
from whet.levers.side_effects import Observed, side_effects_of


def costs(mine: Observed, reference: Observed) -> dict[str, LeverCost]:
    return {cost.what: cost for cost in side_effects_of(mine, reference, ["speculation"])}


def in_trial(name: str, *kernels: str) -> tuple[TrialNotices, ...]:
    lines = tuple(
        f"Triton kernel JIT compilation during inference: {kernel}. This causes a latency spike; "
        "consider extending warmup to cover this shape/config."
        for kernel in kernels
    )
    return (TrialNotices(variant=name, load=Load.at(4), trial=0, notices=lines),)


COSTS = {
    "asynchronous scheduling off": "Async scheduling not supported with draft_model",
    "older model runner": "using the V1 model runner instead",
    "fewer tokens a step": "max_num_scheduled_tokens is set to 7168",
    "a smaller KV pool": "10,235,216 tokens, 13,700,928 without",
    "a kernel was compiled while serving": "rejection_greedy_sample_kernel",
}


def test_what_a_real_draft_model_drags_along_is_told() -> None:
    plain = Observed(variant="fp16", facts=log("h100_16bit_graphs"))
    found = costs(Observed(variant="spec", facts=log("h100_awq_draft_model")), plain)
    for what, detail in COSTS.items():
        if what != "a kernel was compiled while serving":
            assert detail in found[what].detail, what
    assert not costs(plain, plain)


def test_a_reference_that_does_not_say_that_it_schedules_asynchronously_lost_nothing() -> None:
    facts = replace(log("h100_w8a8"), async_scheduling=False)
    mine = Observed(variant="ngram", facts=facts)
    for told, what in ((None, set()), (False, set()), (True, {"asynchronous scheduling off"})):
        other = Observed(variant="fp16", facts=replace(facts, async_scheduling=told))
        assert set(costs(mine, other)) == what, told


def test_a_kernel_compiled_in_the_window_is_told_by_its_name() -> None:
    facts = log("h100_w8a8")
    common, own = "_topk_log_softmax_kernel", "rejection_greedy_sample_kernel"
    mine = Observed(variant="spec", facts=facts, trials=in_trial("spec", common, own))
    other = Observed(variant="fp16", facts=facts, trials=in_trial("fp16", common))
    found = costs(mine, other)
    assert set(found) == {"a kernel was compiled while serving"}
    assert own in found["a kernel was compiled while serving"].detail
    assert not costs(other, mine)


def test_the_engine_s_own_compilation_notice_is_read() -> None:
    notices = log("h100_awq_draft_model").notices
    assert sum("JIT compilation during inference: " in notice for notice in notices) == 5
    assert not any("JIT monitor" in notice for notice in notices)


def test_graphs_that_went_and_a_lost_prefix_block_are_told() -> None:
    graphs, eager = log("h100_16bit_graphs"), log("h100_w8a8")

    def at(name: str, facts: EngineFacts, hit_rate: float) -> Observed:
        return Observed(variant=name, facts=facts, cells=(summary(name, hit_rate),))

    found = costs(at("eagle", eager, 256 / 320), at("fp16", graphs, 288 / 320))
    assert found["no CUDA graphs"].load is None
    assert found["a lower prefix hit rate"].detail == "80.0%, 90.0% without"
    assert found["a lower prefix hit rate"].load == Load.at(4)
    assert not costs(at("fp16", graphs, 0.9), at("again", graphs, 0.9))


def summary(name: str, hit_rate: float) -> CellSummary:
    return CellSummary(
        variant=name,
        load=Load.at(4),
        status="complete",
        trials=1,
        requests=20,
        errors=0,
        memory_kind="device",
        figures={"prefix_hit_rate": hit_rate},
        window_s=None,
        warmup_excluded=0,
    )
