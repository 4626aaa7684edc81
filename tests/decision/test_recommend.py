"""The recommendation: its saving, its reasons, its cautions."""

from dataclasses import replace
from typing import Any

import pytest

from tests.decision.cells import (
    cell,
    decided,
    entry,
    estimate,
    quality,
    tables,
    tier,
    timed,
    with_figures,
)
from whet.core.format import significant
from whet.core.load import Load
from whet.core.records.codec import decode, encode
from whet.core.records.decision import Decision, Fleet, Recommendation
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import (
    GreedyParity,
    LosslessCheck,
    TokenIdentity,
)
from whet.core.records.summary import CellSummary, Estimate
from whet.decision.recommend import saving_between_machines

FP16, AWQ = cell("fp16", 8, 1.00, 150), cell("awq", 8, 0.60, 150)


def recommended(decision: Decision) -> Recommendation:
    assert decision.recommendation is not None
    return decision.recommendation


def test_the_saving_is_against_the_baselines_own_best_cost() -> None:
    dear = cell("fp16", 1, 9.0, 100)
    late = cell("fp16", 32, 0.1, 9000)
    found = recommended(decided(tier([dear, FP16, late, AWQ])))
    assert (found.variant, found.load, found.tier) == ("awq", Load.at(8), "L4")
    assert found.reference_cost_per_1m_tokens is not None
    assert found.reference_cost_per_1m_tokens.value == 1.0
    assert found.saving is not None
    assert found.saving.value == pytest.approx(0.4)
    assert found.saving.low is not None
    assert found.saving.high is not None
    assert found.saving.low < 0.4 < found.saving.high
    assert found.cheaper


def test_savings_are_against_the_defaults() -> None:
    usual = cell("fp16+cache", 8, 0.75, 100)
    found = recommended(decided(tier([FP16, usual, AWQ]), reference="fp16+cache"))
    assert found.saving is not None
    assert found.saving.value == pytest.approx(0.2)
    assert found.difference is not None
    assert (found.difference.family, found.difference.different) == (2, True)


def test_two_machines_have_the_interval_of_independent_figures() -> None:
    # Log-normal figures with standard errors 0.03 and 0.04: the ratio's is 0.05.
    def figure(value: float, error: float) -> Estimate:
        return replace(
            estimate(value),
            low=value * 2.718281828 ** (-1.96 * error),
            high=value * 2.718281828 ** (1.96 * error),
        )

    found = saving_between_machines(figure(3.0, 0.03), figure(4.0, 0.04))
    assert found.value == 0.25
    assert found.high == pytest.approx(1 - 0.75 * 2.718281828 ** (-1.96 * 0.05))
    assert found.low == pytest.approx(1 - 0.75 * 2.718281828 ** (1.96 * 0.05))


def test_where_the_baseline_is_cheapest_nothing_is_saved() -> None:
    found = recommended(decided(tier([FP16, cell("awq", 8, 2.0, 150)])))
    assert found.variant == "fp16"
    assert (found.saving, found.difference) == (None, None)
    assert not any("fp16" in caution for caution in found.cautions), "the headline says it"


def test_without_a_qualifying_baseline_there_is_no_saving() -> None:
    found = recommended(decided(tier([cell("fp16", 8, 1.0, 9000), AWQ])))
    assert (found.saving, found.reference_cost_per_1m_tokens) == (None, None)
    assert any("no saving to state" in caution for caution in found.cautions)


def test_nothing_qualifies_nothing_is_recommended() -> None:
    assert decided(tier([cell("fp16", 8, 1.0, 9000)])).recommendation is None


def test_a_difference_that_a_few_more_starts_would_show_is_not_distinguished() -> None:
    cells = [FP16, cell("awq", 8, 0.96, 150)]
    found = recommended(decided(tier(cells, tables=tables(cells, sd=0.02))))
    assert (found.variant, found.cheaper) == ("awq", False)
    assert found.difference is not None
    assert found.difference.starts_needed is not None
    assert 3 < found.difference.starts_needed <= 10


def test_a_difference_that_takes_many_starts_is_a_tie_and_the_default_stays() -> None:
    cells = [FP16, cell("awq", 8, 0.995, 150)]
    found = recommended(decided(tier(cells, tables=tables(cells, sd=0.02))))
    assert (found.variant, found.meets) == ("fp16", "yes")
    [caution] = [each for each in found.cautions if "do not distinguish" in each]
    assert caution.startswith("awq at concurrency 8 costs 0.5%")


def test_one_start_distinguishes_nothing() -> None:
    cells = [FP16, AWQ]
    one = [
        with_figures(replace(item, starts=1), cost_per_1m_tokens=replace(cost, low=None, high=None))
        for item in cells
        if (cost := item.cost_per_1m_tokens) is not None
    ]
    found = recommended(decided(tier(one, tables=tables(cells, count=1))))
    assert (found.variant, found.cheaper) == ("awq", False)
    assert found.difference is not None
    assert found.difference.starts_needed is None
    assert any("set load.trials to 2" in caution for caution in found.cautions)


def confirmed(cells: list[CellSummary], again: list[CellSummary]) -> Decision:
    return decided(tier(cells, confirmation=again, fresh=tables(again, count=2)))


def test_the_headline_is_the_confirmations() -> None:
    again = [cell("fp16", 8, 1.02, 150), cell("awq", 8, 0.66, 160)]
    found = recommended(confirmed([FP16, AWQ], again))
    assert (found.variant, found.measured_again) == ("awq", True)
    assert found.cost_per_1m_tokens.value == 0.66
    assert found.saving is not None
    assert found.saving.value == pytest.approx(1 - 0.66 / 1.02)


def test_a_finalist_that_misses_a_limit_when_measured_again_gives_way() -> None:
    again = [cell("fp16", 8, 1.0, 150), cell("awq", 8, 0.60, 700)]
    found = recommended(confirmed([FP16, AWQ], again))
    assert found.variant == "fp16"
    assert "awq at concurrency 8 was not confirmed: it misses TTFT p95" in found.cautions


def test_an_interrupted_confirmation_gives_figures_and_no_difference() -> None:
    found = recommended(confirmed([FP16, AWQ], [cell("awq", 8, 0.7, 150)]))
    assert found.variant == "awq"
    assert found.cost_per_1m_tokens.value == 0.7
    assert found.saving is not None
    assert found.saving.value == pytest.approx(0.4), "of the first starts of both"
    assert found.difference is not None
    assert not found.difference.fresh


def test_a_cell_that_was_measured_again_has_one_figure_in_the_whole_matrix() -> None:
    slow = cell("fp16", 8, 1.0, 300)
    again = [cell("fp16", 8, 1.02, 300), cell("awq", 8, 0.66, 160)]
    decision = confirmed([cell("fp16", 1, 9.0, 100), slow, AWQ], again)
    costs = {x.cost_per_1m_tokens.value for x in decision.matrix if x.cost_per_1m_tokens}
    loads = {x.difference.reference_load for x in decision.matrix if x.difference}
    assert Load.at(1) in loads
    assert costs == {0.66}


@pytest.mark.parametrize("dearer", [1.20, 1.021])
def test_what_is_dearer_when_measured_again_gives_way_to_the_default(dearer: float) -> None:
    again = [cell("fp16", 8, 1.02, 150), cell("awq", 8, dearer, 150)]
    found = recommended(confirmed([FP16, cell("awq", 8, 0.95, 150)], again))
    assert (found.variant, found.measured_again, found.meets) == ("fp16", True, "yes")
    assert found.cost_per_1m_tokens.value == 1.02
    assert found.saving is None
    assert any("not cheaper than fp16 when measured again" in each for each in found.cautions)


def test_one_start_that_is_dearer_again_gives_way_too() -> None:
    again = [cell("fp16", 8, 1.0, 150), cell("awq", 8, 1.1, 150)]
    inputs = tier(
        [FP16, AWQ],
        tables=tables([FP16, AWQ], count=1),
        confirmation=again,
        fresh=tables(again, count=1),
    )
    assert recommended(decided(inputs)).variant == "fp16"


def test_of_equal_costs_on_two_machines_the_default_is_recommended() -> None:
    small = tier([cell("fp16", 8, 2.0, 9000), cell("awq", 8, 1.0, 150)])
    found = recommended(decided(small, tier([FP16], tier="H100")))
    assert (found.variant, found.tier) == ("fp16", "H100")


def test_every_variant_is_tested_against_the_reference_once() -> None:
    cells = [FP16, cell("fp16", 16, 1.1, 200), AWQ, cell("gptq", 16, 0.7, 150)]
    decision = decided(tier(cells))
    assert [(d.candidate, d.load, d.reference_load) for d in decision.differences] == [
        ("awq", Load.at(8), Load.at(8)),
        ("gptq", Load.at(16), Load.at(8)),
    ]
    assert {d.family for d in decision.differences} == {2}


def test_what_weakens_the_evidence_is_said() -> None:
    weak = with_figures(
        replace(AWQ, memory_kind="resident", starts=1),
        ttft_p95_ms=estimate(150, enough=False),
    )
    records = {"fp16": quality("fp16"), "awq": quality("awq", reason="few questions")}
    found = recommended(decided(tier([FP16, weak], quality=records)))
    said = "; ".join(found.cautions)
    for part in (
        "40 requests",
        "measured on a CPU",
        "one start of each configuration",
        "few questions",
    ):
        assert part in said


def test_the_recommendation_is_for_the_requested_point() -> None:
    cells = [FP16, AWQ, cell("awq", 16, 0.3, 900)]
    found = recommended(decided(tier(cells), recommend_ttft_ms=1000.0, recommend_quality=0.05))
    assert (found.load, found.ttft_target_ms, found.quality_tolerance) == (
        Load.at(16),
        1000.0,
        0.05,
    )


def test_the_cheapest_tier_is_recommended_against_the_baselines_cheapest() -> None:
    small = tier([FP16, AWQ])
    large = tier([cell("fp16", 8, 0.8, 150), cell("awq", 8, 0.4, 150)], tier="H100")
    decision = decided(small, large)
    found = recommended(decision)
    assert found.tier == "H100"
    assert found.saving is not None
    assert found.saving.value == pytest.approx(0.5)
    assert [item.tier for item in decision.matrix] == ["L4"] * 9 + ["H100"] * 9


def test_the_decision_survives_its_json_form() -> None:
    decision = decided(tier([FP16, AWQ, cell("awq+spec", 8, 0.5, 150)]))
    assert decode(Decision, encode(decision)) == decision


@pytest.mark.parametrize(
    ("value", "text"),
    [(11_398.9, "11,400"), (134.86, "134.9"), (0.13, "0.1300"), (0, "0"), (999.96, "1,000.0")],
)
def test_four_figures_without_a_power_of_ten(value: float, text: str) -> None:
    assert significant(value, 4) == text


def test_degenerate_timed_text_excludes_every_cell_of_its_variant() -> None:
    cells = [FP16, AWQ, cell("awq", 16, 0.3, 150), cell("other", 8, 0.9, 150)]
    found = {
        "awq": timed("awq", "fail", "12 of 80 timed answers are degenerate text"),
        "other": timed("other", "pass", None),
    }
    decision = decided(tier(cells, degenerate=found))
    assert recommended(decision).variant == "other"
    told = {(item.variant, item.load): item.reason for item in decision.excluded}
    assert set(told) == {("awq", Load.at(8)), ("awq", Load.at(16))}
    said = "its timed answers are degenerate text: 12 of 80 timed answers are degenerate text"
    assert set(told.values()) == {said}


def test_a_degenerate_baseline_leaves_no_saving_to_state() -> None:
    found = {"fp16": timed("fp16", "fail", None), "awq": timed("awq", "pass", None)}
    decision = decided(tier([FP16, AWQ], degenerate=found))
    assert recommended(decision).saving is None
    assert [item.reason for item in decision.excluded] == [
        "its timed answers are degenerate text: 12 of 80"
    ]


@pytest.mark.parametrize(
    ("word", "caution"),
    [
        ("pass", None),
        ("unknown", "timed answers: 4 timed answers are too few to judge"),
        (None, "timed answers: not checked for degenerate text"),
    ],
)
def test_timed_answers_that_nobody_could_judge_are_a_caution(
    word: str | None, caution: str | None
) -> None:
    known = (
        {} if word is None else {"awq": timed("awq", word, "4 timed answers are too few to judge")}
    )
    found = recommended(decided(tier([FP16, AWQ], degenerate=known)))
    assert found.variant == "awq"
    assert [said for said in found.cautions if said.startswith("timed")] == [caution] * bool(
        caution
    )


def cautions(record: QualityRecord) -> tuple[str, ...]:
    """What is said beside the recommendation of a variant of this quality."""
    records = {"fp16": quality("fp16"), "awq": record}
    known = {"awq": timed("awq", "pass", None)}
    found = recommended(decided(tier([FP16, AWQ], quality=records, degenerate=known)))
    assert found.variant == "awq"
    return tuple(caution for caution in found.cautions if "selected figure" not in caution)


def lossless(verdict: str, *reasons: str, parity: GreedyParity | None = None) -> LosslessCheck:
    return LosslessCheck(
        parity=parity,
        sampling=None,
        acceptance_rate=None,
        drafted=None,
        verdict=verdict,
        reasons=reasons,
    )


def test_checks_of_the_gate_that_were_not_made_are_cautions() -> None:
    whole = quality("awq")
    assert cautions(whole) == ()
    assert cautions(replace(whole, lossless=lossless("unknown", "6 prompts are too few"))) == (
        "speculation: 6 prompts are too few",
    )
    assert cautions(replace(whole, twin="awq+cache")) == (
        "predictions: not compared with awq+cache, which serves the same weights",
    )
    assert cautions(replace(whole, twin="awq")) == (), "it is the first that serves them"
    deaf = TokenIdentity(checked=0, problems=(), missing="the server has no /tokenize")
    assert cautions(replace(whole, identity=deaf)) == ("tokens: the server has no /tokenize",)


def test_what_the_gates_own_reason_says_is_not_said_again() -> None:
    record = quality("awq", reason="speculation: 6 prompts are too few")
    record = replace(record, lossless=lossless("unknown", "6 prompts are too few"))
    assert cautions(record) == ("quality: speculation: 6 prompts are too few",)


def test_speculation_whose_answers_were_not_checked_is_not_recommended() -> None:
    fast = with_figures(AWQ, acceptance_length=2.5)
    unproved = tier([FP16, AWQ], speculating={"awq"})
    for inputs in (tier([FP16, fast]), unproved):
        decision = decided(inputs)
        assert recommended(decision).variant == "fp16"
        [out] = decision.excluded
        assert (out.variant, out.kind) == ("awq", "not checked")
        assert out.reason.startswith(
            "whether speculation changes answers was not checked; measure it"
        )
        assert decision.qualified == ("fp16",)
        assert {entry.variant for entry in decision.matrix} <= {"fp16", None}
    alone = decided(tier([cell("fp16", 8, 1.0, 9000), fast]))
    assert "was not checked" in alone.matrix[-1].reason


@pytest.mark.parametrize("word", ["unknown", "fail"])
def test_speculation_whose_check_did_not_pass_is_not_recommended(word: str) -> None:
    record = replace(quality("awq"), lossless=lossless(word, "6 prompts are too few"))
    records = {"fp16": quality("fp16"), "awq": record}
    decision = decided(tier([FP16, AWQ], quality=records, speculating={"awq"}))
    assert recommended(decision).variant == "fp16"
    assert decision.excluded[0].reason.endswith(f"is {word}: 6 prompts are too few")


@pytest.mark.parametrize("sampled", [None, "3 of 9 requests are sampled"])
def test_sampled_answers_that_were_not_compared(sampled: str | None) -> None:
    record = replace(quality("awq"), lossless=lossless("pass"))
    records = {"fp16": quality("fp16"), "awq": record}
    decision = decided(tier([FP16, AWQ], quality=records, speculating={"awq"}, sampled=sampled))
    if sampled is None:
        assert recommended(decision).variant == "awq"
        assert any(limit.startswith("greedy requests only: ") for limit in decision.limits)
    else:
        assert recommended(decision).variant == "fp16"
        assert sampled in decision.excluded[0].reason


def test_a_fault_that_the_traffic_meets_excludes_a_variant() -> None:
    decision = decided(tier([FP16, AWQ], faults={"awq": "sampled text is wrong"}))
    assert recommended(decision).variant == "fp16"
    assert [(x.variant, x.kind, x.reason) for x in decision.excluded] == [
        ("awq", "known fault", "sampled text is wrong")
    ]


def test_a_fault_that_the_traffic_does_not_meet_is_a_limit() -> None:
    known = {name: timed(name, "pass", None) for name in ("fp16", "awq")}
    limits = {"awq": ("greedy requests only: sampled text is wrong",)}
    decision = decided(tier([FP16, AWQ], limits=limits, degenerate=known))
    assert recommended(decision).variant == "awq"
    assert decision.limits == limits["awq"] == decision.limits_of("awq")
    assert decision.limits_of("fp16") == ()
    assert set(limits["awq"]) <= set(recommended(decision).cautions)


def at_rates(name: str, *ttft: float, **changes: Any) -> list[CellSummary]:
    """Cells of one variant at 2 and 6 requests a second; the costs follow from the rates."""
    rates = (2.0, 6.0)
    return [
        replace(cell(name, 1, 1 / rate, late, **changes), load=Load.rate(rate))
        for rate, late in zip(rates, ttft, strict=True)
    ]


def test_at_rates_the_fewest_servers_win() -> None:
    cells = [*at_rates("fp16", 100, 900), *at_rates("awq", 100, 300)]
    inputs = tier(cells, price_usd_per_hour=1.0, demand_rps=9.0)
    found = recommended(decided(inputs))
    assert (found.variant, found.load) == ("awq", Load.rate(6.0))
    assert found.fleet == Fleet(demand_rps=9.0, rate_rps=4.5, servers=2, usd_per_month=1460.0)
    assert found.reference_fleet is not None
    assert found.reference_fleet.servers == 5
    assert found.saving is not None
    assert found.saving.value == pytest.approx(0.6)
    assert found.cheaper
    best = next(each for each in decided(inputs).matrix if each.variant == "awq")
    assert "$1,460 a month for 9 req/s (2 servers at 4.5 req/s)" in best.reason


def test_a_quotient_of_rates_that_rounds_up_makes_no_server() -> None:
    [item] = [replace(cell("fp16", 1, 1.0, 100), load=Load.rate(0.1))]
    found = recommended(decided(tier([item], price_usd_per_hour=1.0, demand_rps=1.1)))
    assert found.fleet is not None
    assert found.fleet.servers == 11  # 1.1 / 0.1 is 11.000000000000002


def test_where_as_many_servers_are_needed_the_default_stays() -> None:
    cells = [*at_rates("fp16", 100, 300), *at_rates("awq", 90, 400)]
    decision = decided(tier(cells, price_usd_per_hour=1.0, demand_rps=6.0))
    assert {each.variant for each in decision.matrix if each.ttft_target_ms > 400} == {"fp16"}
    found = recommended(decision)  # awq is as cheap, and slower
    assert (found.variant, found.fleet and found.fleet.servers) == ("fp16", 1)
    labels = {(each.variant, each.load.value): each.label for each in decision.cells}
    assert labels["awq", 6.0] == "qualifies, needs 1 server"


def test_a_cell_that_costs_less_a_token_and_needs_as_many_servers_saves_nothing() -> None:
    cells = [*at_rates("fp16", 100, 900), *at_rates("awq", 90, 900)]
    found = recommended(decided(tier(cells, price_usd_per_hour=1.0, demand_rps=9.0)))
    assert (found.variant, found.fleet and found.fleet.servers) == ("fp16", 5)
    assert "awq at 2 req/s needs 5 servers too: nothing saved" in found.cautions


def test_a_rate_above_one_that_missed_does_not_count() -> None:
    cells = [*at_rates("fp16", 100, 300), *at_rates("awq", 600, 300)]
    prices = {"price_usd_per_hour": 1.0, "demand_rps": 18.0}

    def labels(decision: Decision) -> dict[tuple[str, float], str]:
        return {(each.variant, each.load.value): each.label for each in decision.cells}

    decision = decided(tier(cells, **prices))
    assert labels(decision)["awq", 2.0] == "misses TTFT p95"
    assert labels(decision)["awq", 6.0] == "misses a limit at 2 req/s"
    assert labels(decision)["fp16", 2.0] == "qualifies, needs 9 servers"
    assert recommended(decision).variant == "fp16"
    fresh = [with_figures(cells[2], ttft_p95_ms=estimate(100.0))]
    again = decided(tier(cells, **prices, confirmation=fresh))
    assert labels(again)["awq", 6.0] == "qualifies, needs 3 servers", "the newest figures count"


def test_where_no_rate_counts_the_reason_names_the_one_that_missed() -> None:
    alone = tier(at_rates("fp16", 600, 300), price_usd_per_hour=1.0, demand_rps=9.0)
    said = "fp16 at 6 req/s: misses a limit at 2 req/s"
    assert said in entry(decided(alone)).reason
