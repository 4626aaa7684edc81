"""Drift of golden probes: size, power, restarts, and what a comparison cannot say."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.gate_coverage import golden_probes as golden
from benchmarks.gate_coverage import restarts
from numpy.random import Generator

from whet.core.errors import UsageError
from whet.quality.golden_drift import add_start, compare_golden, smallest_p, starts_of


def side(rng: Generator, levels: np.ndarray, noise: float) -> np.ndarray:
    """Four repetitions; noise on a coarse grid and common to a repetition in part, as batches."""
    own = rng.normal(0, noise, (4, len(levels)))
    common = rng.normal(0, noise, (4, 1))
    return levels + np.round((own + common) / noise) * noise


def test_the_same_model_alarms_no_more_often_than_the_level() -> None:
    rng = np.random.default_rng(5)
    levels = rng.uniform(-3, 0, 12)
    p_values = np.array(
        [
            compare_golden(golden(side(rng, levels, 0.01)), golden(side(rng, levels, 0.01))).p_value
            for _ in range(60)
        ],
        dtype=float,
    )
    # Of 60 A/A comparisons at a true rate of 5 % at most 8 alarm, with probability 0.996.
    assert (p_values <= 0.05).sum() <= 8
    assert (p_values <= 0.5).sum() <= 40


def test_a_shift_as_large_as_the_noise_is_seen_and_named() -> None:
    rng = np.random.default_rng(6)
    levels = rng.uniform(-3, 0, 32)
    shift = np.where(np.arange(32) < 16, 0.06, 0.0)
    shift[3] = -0.2
    before = golden(levels + rng.normal(0, 0.01, (5, 32)))
    drift = compare_golden(before, golden(levels + shift + rng.normal(0, 0.01, (5, 32))))
    assert drift.verdict == "fail"
    assert drift.p_value == pytest.approx(2 / 252)
    assert drift.moved[0].id == "p3"
    assert drift.moved[0].now - drift.moved[0].before == pytest.approx(-0.2, abs=0.03)
    assert drift.distance is not None
    assert drift.noise is not None
    assert drift.distance > 2 * drift.noise


def test_two_equal_sides_say_no_less_than_two_deals_of_252() -> None:
    # Every deal of five against five has a mirror image with the same distance.
    drift = compare_golden(golden(np.full((5, 3), -1.0)), golden(np.full((5, 3), -2.0)))
    assert drift.p_value == pytest.approx(2 / 252)
    assert drift.distance == pytest.approx(1.0)
    assert drift.outside == 3
    assert smallest_p(5, 5) == pytest.approx(2 / 252)
    assert smallest_p(5, 4) == pytest.approx(1 / 126)
    assert smallest_p(20, 20) == pytest.approx(1 / 10_000)


def test_a_server_that_repeats_itself_to_the_bit_is_the_same() -> None:
    table = np.tile(np.random.default_rng(7).uniform(-3, 0, 32), (5, 1))
    drift = compare_golden(golden(table), golden(table))
    assert (drift.verdict, drift.p_value, drift.distance, drift.outside) == ("pass", 1.0, 0.0, 0)


def test_another_order_of_additions_is_no_drift() -> None:
    drift = compare_golden(golden(np.full((5, 3), -1.0)), golden(np.full((5, 3), -1.019)))
    assert drift.p_value == pytest.approx(2 / 252)
    assert drift.verdict == "pass"
    assert drift.reason is not None
    assert "rounding" in drift.reason


def test_the_p_value_is_a_count_of_deals_by_hand() -> None:
    # One probe, {0, 1} against {1, 3}: |gaps| of the six deals are 1.5, 1.5, 0.5 (twice), 0.5 …
    # {0,1}|{1,3} 1.5, {0,1'}|{1,3} 1.5, {0,3}|{1,1'} 0.5, and their mirror images.
    drift = compare_golden(golden(np.array([[0.0], [1.0]])), golden(np.array([[1.0], [3.0]])))
    assert drift.p_value == pytest.approx(4 / 6)
    assert drift.noise == pytest.approx((1.5 + 1.5 + 0.5) / 3)
    assert drift.verdict == "unknown"
    assert drift.reason is not None
    assert "at least p = 0.33" in drift.reason


def test_broken_now_is_drift_and_no_answer_is_unknown() -> None:
    before = golden(np.full((5, 2), -1.0))
    empty = replace(before, probes=(), draws=())
    broken = compare_golden(before, replace(empty, broken="NaN"))
    assert (broken.verdict, broken.reason, broken.p_value) == ("fail", "NaN", None)
    missing = compare_golden(before, replace(empty, missing="http_500"))
    assert (missing.verdict, missing.p_value, missing.distance) == ("unknown", None, None)
    assert missing.reason is not None
    assert "now: http_500" in missing.reason


def test_other_prompts_are_refused_and_known_changes_are_said() -> None:
    before = golden(np.full((5, 2), -1.0))
    with pytest.raises(UsageError, match="retake_golden"):
        compare_golden(before, golden(np.full((5, 3), -1.0)))
    now = golden(np.full((5, 2), -1.0), engine_version="0.33.0", model_sha256=None)
    assert compare_golden(before, now).changed == ("engine version was 0.32.0, is 0.33.0",)


@pytest.mark.parametrize("kinds", [0, 2], ids=["own kernels", "two kernels"])
@pytest.mark.parametrize("starts", [1, 3, 5])
def test_restarts_with_other_kernels_drift_in_at_most_one_of_a_hundred(
    starts: int, kinds: int
) -> None:
    rng = np.random.default_rng(8)
    alarms = 0
    for _ in range(100):
        first, *others, now = restarts(rng, rng.uniform(-3, 0, 16), starts + 1, kinds)
        for other in others:
            first = add_start(first, other)
        assert len(starts_of(first)) == starts
        alarms += compare_golden(first, now).verdict != "pass"
    assert alarms <= 1


@pytest.mark.parametrize("starts", [1, 3])
def test_other_weights_drift_after_restarts(starts: int) -> None:
    """The demo's AWQ weights are 0.039 nats from its 16-bit weights."""
    rng = np.random.default_rng(9)
    alarms = 0
    for _ in range(50):
        levels = rng.uniform(-3, 0, 16)
        first, *others = restarts(rng, levels, starts, 2)
        for other in others:
            first = add_start(first, other)
        moved = levels + rng.normal(0, 0.039 * np.sqrt(np.pi / 2), 16)
        alarms += compare_golden(first, golden(np.tile(moved, (5, 1)))).verdict == "fail"
    assert alarms >= 48


def test_starts_far_apart_raise_the_limit() -> None:
    first, second, third = (golden(np.full((5, 2), at)) for at in (-1.0, -1.1, -0.9))
    reference = add_start(add_start(first, second), third)
    # from the mean of the other two: 0, 0.15 and 0.15; t(2, 0.99) = 6.965
    drift = compare_golden(reference, golden(np.full((5, 2), -1.3)))
    assert drift.limit == pytest.approx(0.1 + 6.965 * 0.15 / np.sqrt(3) * np.sqrt(4 / 3), rel=1e-3)
    assert drift.noise == pytest.approx(0.1)
    assert drift.distance == pytest.approx(0.3)
    assert (drift.verdict, drift.p_value, drift.starts) == ("pass", None, 3)
    assert [token.mean for p in reference.probes for token in p.tokens] == pytest.approx([-1, -1])


def test_a_start_of_another_deployment_is_not_added() -> None:
    first = golden(np.full((5, 2), -1.0))
    with pytest.raises(UsageError, match="weights was ab, is cd"):
        add_start(first, golden(np.full((5, 2), -1.0), model_sha256="cd"))
    with pytest.raises(UsageError, match=r"not added.*http_500"):
        add_start(first, replace(first, probes=(), draws=(), missing="http_500"))
