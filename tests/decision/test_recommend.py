"""The recommendation: its saving, its reasons, its cautions."""

from dataclasses import replace

import pytest

from tests.decision.cells import cell, comparison, decided, estimate, quality, tier, timed
from whet.core.format import significant
from whet.core.records import (
    Decision,
    Estimate,
    GreedyParity,
    LosslessCheck,
    QualityRecord,
    Recommendation,
    StructuredScore,
    TokenIdentity,
    decode,
    encode,
)
from whet.decision.ratios import ratio

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


def test_what_is_saved_of_the_baseline_with_the_prefix_cache_is_a_reason() -> None:
    usual = cell("fp16+cache", 8, 0.75, 100)
    run = tier([FP16, usual, AWQ])
    assert not any("by default" in reason for reason in recommended(decided(run)).reasons)
    found = recommended(decided(run, cached="fp16+cache"))
    assert found.saving is not None
    assert found.saving.value == pytest.approx(0.4), "the baseline's all the same"
    [reason] = [reason for reason in found.reasons if "by default" in reason]
    assert reason.startswith("saves 20.0%")
    assert "fp16+cache at batch size 8" in reason
    cheapest = tier([FP16, cell("fp16+cache", 8, 0.5, 100), AWQ])
    own = recommended(decided(cheapest, cached="fp16+cache"))
    assert (own.variant, any("by default" in each for each in own.reasons)) == ("fp16+cache", False)


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
        starts=1,
    )
    records = {"fp16": quality("fp16"), "awq": quality("awq", reason="few questions")}
    found = recommended(decided(tier([FP16, weak], quality=records, noise_floor=None)))
    said = "; ".join(found.cautions)
    for part in (
        "40 requests",
        "measured on a CPU",
        "one start per configuration",
        "not repeated",
        "few questions",
    ):
        assert part in said


def test_the_recommendation_is_for_the_requested_point() -> None:
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
    decision = decided(
        tier([FP16, AWQ, cell("awq+spec", 8, 0.5, 150)]), speculation_pairs={"awq+spec": "awq"}
    )
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
    assert any("does not differ significantly" in entry.reason for entry in decision.matrix)
    assert not any("does not differ significantly" in reason for reason in found.reasons)


def test_degenerate_timed_text_excludes_every_cell_of_its_variant() -> None:
    cells = [FP16, AWQ, cell("awq", 16, 0.3, 150), cell("other", 8, 0.9, 150)]
    found = {
        "awq": timed("awq", "fail", "12 of 80 timed answers are degenerate text"),
        "other": timed("other", "pass", None),
    }
    decision = decided(tier(cells, degenerate=found))
    assert recommended(decision).variant == "other"
    told = {(item.variant, item.batch_size): item.reason for item in decision.excluded}
    assert set(told) == {("awq", 8), ("awq", 16)}
    said = "its timed answers are degenerate text: 12 of 80 timed answers are degenerate text"
    assert set(told.values()) == {said}
    assert "awq" not in {variant for variant, _ in decision.pareto}


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


def cautions(record: QualityRecord, *, speculates: bool = False) -> tuple[str, ...]:
    """What is said beside the recommendation of a variant of this quality."""
    own = replace(AWQ, acceptance_length=2.5) if speculates else AWQ
    records = {"fp16": quality("fp16"), "awq": record}
    known = {"awq": timed("awq", "pass", None)}
    found = recommended(decided(tier([FP16, own], quality=records, degenerate=known)))
    assert found.variant == "awq"
    return found.cautions


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
    assert cautions(whole, speculates=True) == (
        "speculation: whether it changes answers was not checked",
    )
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


def test_a_schema_that_no_server_enforced_is_said_once() -> None:
    score = StructuredScore(
        task="a",
        n=9,
        free_valid=9,
        free_right=9,
        valid=None,
        right=None,
        lost=None,
        gained=None,
        p_value=None,
        missing="the server takes no schema",
    )
    record = replace(quality("awq"), structured=(score, replace(score, task="b")))
    assert cautions(record) == ("structured output: the server takes no schema",)


def test_speculation_that_was_checked_is_a_reason() -> None:
    parity = GreedyParity(
        prompts=16,
        same=15,
        aa_same=14,
        common=estimate(0.99),
        p_value=1.0,
        divergences=(),
    )
    record = replace(quality("awq"), lossless=lossless("pass", parity=parity))
    found = recommended(
        decided(tier([FP16, AWQ], quality={"fp16": quality("fp16"), "awq": record}))
    )
    assert any(
        "15 of 16 greedy continuations equal the plain server's, whose own repeat gives 14"
        in reason
        for reason in found.reasons
    )


@pytest.mark.parametrize(
    ("held_up", "told"),
    [
        (("awq", 8), "another process slowed its cell down"),
        (("fp16", 8), "another process slowed the baseline's cell down"),
        (("awq", 1), None),
    ],
)
def test_a_cell_that_was_held_up_is_a_caution(held_up: tuple[str, int], told: str | None) -> None:
    found = recommended(decided(tier([FP16, AWQ], disturbed={held_up})))
    heard = [caution for caution in found.cautions if "another process" in caution]
    assert len(heard) == (told is not None)
    assert told is None or told in heard[0]
