"""The matrix: which variant is cheapest, how surely it qualifies, and why none does."""

from dataclasses import replace

import pytest

from tests.decision.cells import (
    cell,
    decided,
    entry,
    estimate,
    quality,
    tier,
    verdict,
    with_figures,
)
from whet.core.load import Load

FP16, AWQ = cell("fp16", 8, 1.00, 150), cell("awq", 8, 0.60, 150)


def test_the_cheapest_that_qualifies_wins_at_its_own_load() -> None:
    cells = [FP16, cell("awq", 4, 0.9, 100), cell("awq", 8, 0.6, 300), cell("awq", 16, 0.4, 900)]
    decision = decided(tier(cells))
    won = [entry(decision, ttft).load for ttft in (200.0, 500.0, 1000.0)]
    assert won == [Load.at(4), Load.at(8), Load.at(16)]
    assert {item.meets for item in decision.matrix} == {"yes"}
    assert len(decision.matrix) == 9


def test_a_tail_on_the_target_is_not_below_it() -> None:
    decision = decided(tier([cell("fp16", 8, 1.0, 500.0)]))
    assert entry(decision, 500.0).meets is None
    assert entry(decision, 1000.0).meets == "yes"


def test_other_latencies_count_where_they_are_asked_for() -> None:
    slow = with_figures(AWQ, tpot_p95_ms=estimate(60), e2e_p95_ms=estimate(900))
    quick = with_figures(FP16, tpot_p95_ms=estimate(40), e2e_p95_ms=estimate(900))
    assert entry(decided(tier([slow, quick]))).variant == "awq"
    assert entry(decided(tier([slow, quick]), tpot_ms=50.0)).variant == "fp16"
    assert entry(decided(tier([slow, quick]), e2e_ms=800.0)).meets is None


def test_a_rate_below_its_floor_does_not_qualify() -> None:
    """A variant without the lever has no rate, and the floor does not concern it."""
    drafted = with_figures(AWQ, acceptance_rate=0.6)
    for floor, expected in ((0.65, "fp16"), (0.6, "awq")):
        decision = decided(tier([FP16, drafted]), min_acceptance_rate=floor)
        assert entry(decision).variant == expected
    alone = entry(decided(tier([drafted]), min_acceptance_rate=0.65))
    assert "acceptance rate 60%, below 65%" in alone.reason


def test_a_latency_that_is_asked_for_and_missing_does_not_qualify() -> None:
    found = entry(decided(tier([FP16]), tpot_ms=50.0))
    assert found.meets is None
    assert "TPOT p95 not measured" in found.reason


def test_quality_counts_at_each_tolerance_by_itself() -> None:
    record = quality("awq", ("fail", "unknown", "pass"))
    decision = decided(tier([FP16, AWQ], quality={"fp16": quality("fp16"), "awq": record}))
    won = [entry(decision, 500.0, tolerance).variant for tolerance in (0.01, 0.02, 0.05)]
    assert won == ["fp16", "fp16", "awq"]


def test_unmeasured_quality_is_no_pass() -> None:
    decision = decided(tier([FP16, AWQ], quality={"fp16": quality("fp16")}))
    assert entry(decision).variant == "fp16"
    [found] = decision.excluded
    assert (found.variant, found.load) == ("awq", None)
    assert found.reason == "its answers were not checked"


def test_a_limit_within_the_interval_is_likely_met() -> None:
    near = cell("fp16", 8, 1.0, 497)  # the interval ends at 502
    decision = decided(tier([near]))
    assert entry(decision, 500.0).meets == "likely"
    assert entry(decision, 1000.0).meets == "yes"


def test_one_start_or_a_percentile_of_few_requests_is_likely_met() -> None:
    ttft = FP16.ttft_p95_ms
    assert ttft is not None
    for figure in (replace(ttft, low=None, high=None), replace(ttft, enough=False)):
        found = entry(decided(tier([with_figures(FP16, ttft_p95_ms=figure)])))
        assert found.meets == "likely"


def test_nobody_is_explained_by_the_nearest_miss() -> None:
    cells = [cell("fp16", 1, 3.0, 560), cell("fp16", 8, 1.0, 4000), cell("awq", 8, 0.6, 4000)]
    record = quality("awq", ("fail",) * 3, ratio=1.08)
    found = entry(decided(tier(cells, quality={"fp16": quality("fp16"), "awq": record})))
    assert (found.meets, found.variant, found.cost_per_1m_tokens) == (None, None, None)
    assert "of 3 cells all miss TTFT p95, 1 miss quality" in found.reason
    assert "nearest is fp16 at concurrency 1: TTFT p95 560 ms" in found.reason


def test_a_tail_of_few_requests_may_win() -> None:
    short = with_figures(AWQ, ttft_p95_ms=estimate(150, enough=False))
    found = entry(decided(tier([FP16, short])))
    assert (found.variant, found.meets) == ("awq", "likely")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "failed", "failure": "the engine died"}, "failed: the engine died"),
        ({"status": "interrupted"}, "interrupted"),
        ({"errors": 3}, "3 of 200 requests failed"),
        ({"cost_per_1m_tokens": None}, "no cost"),
        ({"ttft_p95_ms": None}, "no TTFT p95"),
    ],
)
def test_an_unfinished_cell_is_excluded_everywhere(changes: dict[str, object], said: str) -> None:
    decision = decided(tier([FP16, cell("awq", 8, 0.6, 150, **changes)]))
    [found] = decision.excluded
    assert (found.variant, found.load, found.tier) == ("awq", Load.at(8), "L4")
    assert said in found.reason
    assert {item.variant for item in decision.matrix} == {"fp16"}


@pytest.mark.parametrize("outcome", ["contradicted", "unproved"])
def test_a_start_claim_without_evidence_excludes_every_cell(outcome: str) -> None:
    cells = [FP16, AWQ, cell("awq", 16, 0.5, 150)]
    proofs = [verdict("fp16"), verdict("awq"), verdict("awq", outcome, kind="prefix_cache")]
    decision = decided(tier(cells, verdicts=proofs))
    assert [(item.variant, item.load) for item in decision.excluded] == [
        ("awq", Load.at(8)),
        ("awq", Load.at(16)),
    ]
    assert outcome in decision.excluded[0].reason


def test_a_cell_claim_without_evidence_excludes_that_cell_only() -> None:
    cells = [FP16, AWQ, cell("awq", 16, 0.5, 150)]
    proofs = [
        verdict("fp16"),
        verdict("awq"),
        verdict("awq", "proved", 8, "speculation"),
        verdict("awq", "contradicted", 16, "speculation"),
    ]
    decision = decided(tier(cells, verdicts=proofs))
    assert [(item.variant, item.load) for item in decision.excluded] == [("awq", Load.at(16))]
    assert entry(decision).load == Load.at(8)


def test_a_cell_claim_proved_elsewhere_proves_nothing_here() -> None:
    cells = [FP16, AWQ, cell("awq", 16, 0.5, 150)]
    proofs = [verdict("fp16"), verdict("awq", "proved", 8, "speculation")]
    decision = decided(tier(cells, verdicts=proofs))
    [found] = decision.excluded
    assert found.load == Load.at(16)
    assert "not judged at this load" in found.reason


def test_no_evidence_at_all_is_no_proof() -> None:
    decision = decided(tier([FP16, AWQ], verdicts=[verdict("fp16")]))
    assert "no evidence" in decision.excluded[0].reason


def test_no_cells_is_none_in_words() -> None:
    decision = decided(tier([]))
    assert {item.meets for item in decision.matrix} == {None}
    assert decision.recommendation is None
