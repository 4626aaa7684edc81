"""The recommendation: its saving, its reasons, its cautions."""

from dataclasses import replace

import pytest

from tests.decide.cells import cell, comparison, decided, estimate, quality, tier
from whet.core.records import Decision, Estimate, Recommendation, decode, encode
from whet.decide.ratios import ratio
from whet.decide.words import significant

FP16, AWQ = cell("fp16", 8, 1.00, 150), cell("awq", 8, 0.60, 150)


def recommended(decision: Decision) -> Recommendation:
    assert decision.recommendation is not None
    return decision.recommendation


def test_the_saving_is_against_the_baselines_own_best_cost() -> None:
    dear = cell("fp16", 1, 9.0, 100)
    late = cell("fp16", 32, 0.1, 9000)
    found = recommended(decided(tier([dear, FP16, late, AWQ])))
    assert (found.variant, found.batch_size, found.tier) == ("awq", 8, "L4")
    assert found.baseline_cost_per_1m_tokens is not None
    assert found.baseline_cost_per_1m_tokens.value == 1.0
    assert found.saving is not None
    assert found.saving.value == pytest.approx(0.4)
    assert found.saving.low is not None
    assert found.saving.high is not None
    assert found.saving.low < 0.4 < found.saving.high
    assert any("saves 40.0%" in reason for reason in found.reasons)


def test_the_ratio_of_two_figures_has_the_delta_methods_interval() -> None:
    # Log-normal figures with standard errors 0.03 and 0.04: the ratio's is 0.05.
    def figure(value: float, error: float) -> Estimate:
        return replace(
            estimate(value),
            low=value * 2.718281828 ** (-1.96 * error),
            high=value * 2.718281828 ** (1.96 * error),
        )

    found = ratio(figure(3.0, 0.03), figure(2.0, 0.04))
    assert found.value == 1.5
    assert found.low == pytest.approx(1.5 * 2.718281828 ** (-1.96 * 0.05))
    assert found.high == pytest.approx(1.5 * 2.718281828 ** (1.96 * 0.05))


def test_unequal_arms_stay_with_their_side() -> None:
    skewed = Estimate(value=1.0, low=1.0, high=2.0, samples=9)
    exact = Estimate(value=1.0, low=1.0, high=1.0, samples=9)
    above, below = ratio(skewed, exact), ratio(exact, skewed)
    assert (above.low, above.high) == (pytest.approx(1.0), pytest.approx(2.0))
    assert (below.low, below.high) == (pytest.approx(0.5), pytest.approx(1.0))


def test_where_the_baseline_is_cheapest_nothing_is_saved() -> None:
    found = recommended(decided(tier([FP16, cell("awq", 8, 2.0, 150)])))
    assert found.variant == "fp16"
    assert found.saving is not None
    assert found.saving.value == 0.0
    assert any("baseline itself" in caution for caution in found.cautions)


def test_without_a_qualifying_baseline_there_is_no_saving() -> None:
    found = recommended(decided(tier([cell("fp16", 8, 1.0, 9000), AWQ])))
    assert (found.saving, found.baseline_cost_per_1m_tokens) == (None, None)
    assert any("no saving to state" in caution for caution in found.cautions)


def test_nothing_qualifies_nothing_is_recommended() -> None:
    assert decided(tier([cell("fp16", 8, 1.0, 9000)])).recommendation is None


def test_a_tie_is_recommended_with_its_rivals() -> None:
    found = recommended(decided(tier([FP16, AWQ, cell("awq+cache", 8, 0.601, 150)])))
    assert found.variant == "awq"
    assert any("awq+cache" in caution for caution in found.cautions)


def test_a_saving_within_the_noise_is_said() -> None:
    found = recommended(decided(tier([FP16, cell("awq", 8, 0.99, 150)])))
    assert any("within the noise" in caution for caution in found.cautions)


def test_a_saving_is_held_against_the_noise_of_its_own_batch_sizes() -> None:
    cells = [FP16, cell("awq", 8, 0.95, 150)]
    told = replace(comparison("fp16", "x", 8, 1.0, "no difference"), noise_floor=0.01)
    calm = recommended(decided(tier(cells, comparisons=[told], noise_floor=0.06)))
    loud = recommended(decided(tier(cells, noise_floor=0.06)))
    assert not any("within the noise" in caution for caution in calm.cautions)
    assert any("within the noise" in caution for caution in loud.cautions)


def test_what_weakens_the_evidence_is_said() -> None:
    weak = replace(
        AWQ,
        ttft_p95_ms=estimate(150, certified=False),
        memory_kind="resident",
        trials=1,
    )
    records = {"fp16": quality("fp16"), "awq": quality("awq", reason="few questions")}
    found = recommended(decided(tier([FP16, weak], quality=records, noise_floor=None)))
    said = "; ".join(found.cautions)
    for part in ("40 requests", "measured on a CPU", "1 trial", "not repeated", "few questions"):
        assert part in said


def test_the_corner_asked_for_is_the_one_recommended_for() -> None:
    cells = [FP16, AWQ, cell("awq", 16, 0.3, 900)]
    found = recommended(decided(tier(cells), recommend_ttft_ms=1000.0, recommend_quality=0.05))
    assert (found.batch_size, found.ttft_target_ms, found.quality_tolerance) == (16, 1000.0, 0.05)


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
    decision = decided(tier([FP16, AWQ, cell("awq+spec", 8, 0.5, 150)]), twins={"awq+spec": "awq"})
    assert decode(Decision, encode(decision)) == decision


@pytest.mark.parametrize(
    ("value", "text"),
    [(11_398.9, "11,400"), (134.86, "134.9"), (0.13, "0.1300"), (0, "0"), (999.96, "1,000.0")],
)
def test_four_figures_without_a_power_of_ten(value: float, text: str) -> None:
    assert significant(value, 4) == text


def test_the_tie_is_told_by_the_matrix_and_not_again_by_the_reasons() -> None:
    decision = decided(tier([FP16, AWQ, cell("awq+cache", 8, 0.601, 150)]))
    found = recommended(decision)
    assert any("cannot be told" in entry.reason for entry in decision.matrix)
    assert not any("cannot be told" in reason for reason in found.reasons)
