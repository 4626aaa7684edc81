"""The search for the highest load, against hidden thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.core.errors import MeasurementError, UsageError
from whet.core.records.codec import decode, encode
from whet.core.records.objective import Answer, ObjectiveVerdict, Saturation
from whet.metrics.saturation import SearchPlan, find_saturation


def answer(verdict: Answer) -> ObjectiveVerdict:
    return ObjectiveVerdict(verdict=verdict, judgements=())


def threshold(highest: float) -> Callable[[float, int], ObjectiveVerdict]:
    return lambda level, _: answer("met" if level <= highest else "missed")


def plan(**given: float) -> SearchPlan:
    """From 1 within 1 to 64 by whole numbers, unless told otherwise."""
    return SearchPlan(**{"start": 1, "lowest": 1, "limit": 64, "integer": True, **given})  # type: ignore[arg-type]


def levels(found: Saturation) -> list[float]:
    return [measured.level for measured in found.measurements]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lowest": 0}, "0 < lowest"),
        ({"lowest": -1}, "0 < lowest"),
        ({"start": 2, "lowest": 3}, "no order"),
        ({"start": 65}, "no order"),
        ({"limit": math.inf}, "no order"),
        ({"start": math.nan}, "no order"),
        ({"start": 1.5}, "whole number"),
        ({"limit": 8.5}, "whole number"),
    ],
)
def test_a_plan_that_cannot_be_searched_is_refused(given: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(**given)


def test_concurrency_doubles_then_bisects() -> None:
    found = find_saturation(threshold(11), plan())
    assert levels(found) == [1, 2, 4, 8, 16, 12, 10, 11]
    assert (found.highest_met, found.lowest_missed, found.stopped) == (11, 12, "found")
    assert found.undecided_levels == ()
    assert all(isinstance(level, int) for level in levels(found))


def test_a_wide_tolerance_ends_the_bisection_early() -> None:
    found = find_saturation(threshold(11), plan(tolerance=0.5))
    assert levels(found) == [1, 2, 4, 8, 16, 12]
    assert (found.highest_met, found.lowest_missed, found.stopped) == (8, 12, "found")


def test_a_start_that_is_missed_goes_down() -> None:
    found = find_saturation(threshold(3), plan(start=32))
    assert levels(found) == [32, 16, 8, 4, 2, 3]
    assert (found.highest_met, found.lowest_missed) == (3, 4)


def test_never_met_even_at_the_lowest() -> None:
    found = find_saturation(threshold(0.5), plan(start=4))
    assert levels(found) == [4, 2, 1]
    assert (found.highest_met, found.lowest_missed, found.stopped) == (None, 1, "never met")


def test_never_missed_up_to_the_limit() -> None:
    found = find_saturation(threshold(1000), plan(limit=50))
    assert levels(found) == [1, 2, 4, 8, 16, 32, 50]
    assert (found.highest_met, found.lowest_missed, found.stopped) == (50, None, "never missed")


@pytest.mark.parametrize(
    ("budget", "ends"), [(1, (1, None)), (5, (8, 16)), (6, (8, 12)), (7, (10, 12))]
)
def test_a_spent_budget_leaves_the_bracket_as_it_is(
    budget: int, ends: tuple[int, int | None]
) -> None:
    found = find_saturation(threshold(11), plan(budget=budget))
    assert (found.highest_met, found.lowest_missed) == ends
    assert (found.stopped, len(found.measurements)) == ("budget", budget)


def test_an_undecided_level_is_measured_with_more_effort() -> None:
    asked: list[tuple[float, int]] = []

    def measure(level: float, effort: int) -> ObjectiveVerdict:
        asked.append((level, effort))
        if level == 2 and effort < 3:
            return answer("undecided")
        return answer("met" if level <= 2 else "missed")

    found = find_saturation(measure, plan())
    assert asked == [(1, 1), (2, 1), (2, 2), (2, 3), (4, 1), (3, 1)]
    assert (found.highest_met, found.lowest_missed, found.undecided_levels) == (2, 3, ())


def test_a_level_that_stays_undecided_counts_as_missed_and_is_named() -> None:
    def measure(level: float, _: int) -> ObjectiveVerdict:
        return answer("met" if level < 2 else "undecided")

    found = find_saturation(measure, plan(max_effort=2))
    assert [(m.level, m.effort) for m in found.measurements] == [(1, 1), (2, 1), (2, 2)]
    assert (found.highest_met, found.lowest_missed, found.undecided_levels) == (1, 2, (2,))


def test_a_budget_that_ends_between_efforts_decides_nothing_about_the_level() -> None:
    found = find_saturation(lambda *_: answer("undecided"), plan(budget=2))
    assert (found.highest_met, found.lowest_missed, found.stopped) == (None, None, "budget")
    assert found.undecided_levels == ()


def test_what_a_measurement_raises_passes_through() -> None:
    def measure(_: float, __: int) -> ObjectiveVerdict:
        raise MeasurementError("the client was late")

    with pytest.raises(MeasurementError, match="late"):
        find_saturation(measure, plan())


def test_a_result_is_stored_and_read_again() -> None:
    found = find_saturation(threshold(11), plan())
    assert decode(Saturation, encode(found)) == found


@given(
    hidden=st.floats(0.01, 200),
    start=st.floats(0.1, 50),
    tolerance=st.floats(0.001, 1),
)
def test_a_rate_s_bracket_holds_the_hidden_threshold(
    hidden: float, start: float, tolerance: float
) -> None:
    search = SearchPlan(start=start, lowest=0.1, limit=100, tolerance=tolerance, budget=99)
    found = find_saturation(threshold(hidden), search)
    if hidden < 0.1:
        assert (found.stopped, found.highest_met) == ("never met", None)
    elif hidden >= 100:
        assert (found.stopped, found.highest_met) == ("never missed", 100)
    else:
        assert found.stopped == "found"
        assert found.highest_met is not None
        assert found.lowest_missed is not None
        assert found.highest_met <= hidden < found.lowest_missed
        assert found.lowest_missed - found.highest_met <= tolerance * found.highest_met


@given(
    hidden=st.integers(0, 300), start=st.integers(1, 256), budget=st.integers(1, 40), data=st.data()
)
def test_a_concurrency_s_bracket_holds_the_hidden_threshold_within_any_budget(
    hidden: int, start: int, budget: int, data: st.DataObject
) -> None:
    """Undecided at the first effort wherever chance says so: the answer comes all the same."""

    def measure(level: float, effort: int) -> ObjectiveVerdict:
        if effort == 1 and data.draw(st.booleans()):
            return answer("undecided")
        return threshold(hidden)(level, effort)

    search = plan(start=start, limit=256, tolerance=1e-9, budget=budget)
    found = find_saturation(measure, search)
    assert len(found.measurements) <= budget
    assert found.highest_met is None or found.highest_met <= hidden
    assert found.lowest_missed is None or found.lowest_missed > hidden
    if found.stopped == "found":
        assert (found.highest_met, found.lowest_missed) == (hidden, hidden + 1)
