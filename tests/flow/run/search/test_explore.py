"""What a search tries next, from what it has measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.flow.run.search.situations import head, situation
from whet.core.load import Load
from whet.core.names import require_name
from whet.core.spec import SearchSpec
from whet.flow.run.search.changes import Value
from whet.flow.run.search.explore import Candidate, next_loads, next_wave
from whet.flow.run.search.outcomes import Outcome, incumbent, standing, worths
from whet.flow.run.search.playbook import MOVES
from whet.flow.run.search.values import key_of

DEFAULT: Value = {"prefix_cache": True}
FP8: Value = {"prefix_cache": True, "weights": "fp8"}
HEAD = {"method": "eagle3", "num_tokens": 4, "draft": "head"}
BOTH: Value = {**FP8, "speculation": HEAD}
POINTS = [Load.at(count) for count in (1, 4, 16, 64, 128, 256)]
SPEC = SearchSpec()
NO_PUBLISHED = situation(checkpoints=())


def outcome(name: str, value: Value, usd: float | None = 1.0, **more: Any) -> Outcome:
    load = None if usd is None else Load.at(128)
    return Outcome(name=name, value=value, usd=usd, load=load, in_flight=128.0, **more)


START = outcome("default", DEFAULT)


def opened(**of_both: Any) -> list[Outcome]:
    """The default, FP8, and FP8 with the head, which leads."""
    return [
        START,
        outcome("fp8", FP8, 0.8, move="fp8", base="default"),
        replace(outcome("fp8+eagle3.k4", BOTH, 0.5, move="head", base="fp8"), **of_both),
    ]


def wave(history: list[Outcome], width: int = 3, spec: SearchSpec = SPEC) -> list[Candidate]:
    return next_wave(NO_PUBLISHED, history, spec, width)[0]


def explored(costs: Any) -> list[Outcome]:
    """Search to the end, with ``costs(value)`` as what each configuration costs."""
    history = [replace(START, usd=costs(DEFAULT))]
    while batch := wave(history):
        history += (
            outcome(each.name, each.value, costs(each.value), move=each.move, base=each.base)
            for each in batch
        )
        assert len(history) < 200
    return history


def costs(value: Value) -> float:
    cost = 1.0
    cost *= 0.8 if value.get("weights") == "fp8" else 1.0
    cost *= 0.6 if value.get("speculation", {}).get("method") == "eagle3" else 1.0
    return cost * (0.96 if value.get("frontend") == "rust" else 1.0)


def test_a_search_opens_with_weights_and_with_speculation_on_top_of_them() -> None:
    first, second = (each.value for each in wave([START])[:2])
    assert first == FP8
    assert {name: item for name, item in second.items() if name != "args"} == BOTH


def test_steps_longer_than_the_usual_graphs_have_graphs_of_their_own() -> None:
    few = replace(NO_PUBLISHED, in_flight=32)
    for shape, long in ((NO_PUBLISHED, True), (few, False)):
        with_head = next_wave(shape, [START], SPEC, 2)[0][1].value
        assert ("compilation_config" in with_head.get("args", {})) is long


def test_a_published_checkpoint_opens_in_place_of_a_recipe() -> None:
    candidates, _ = next_wave(situation(recipes={}), [START], SPEC, 2)
    assert [each.value["weights"] for each in candidates] == ["owner/model-fp8"] * 2


def test_four_bits_open_with_few_in_flight_and_eight_bits_with_the_head_beside_them() -> None:
    few = replace(START, load=Load.at(1), in_flight=1.0)
    weights = [(each.value["weights"], "speculation" in each.value) for each in wave([few])]
    assert weights == [("w4a8", False), ("w4a8", True), ("fp8", True)]


def test_the_next_wave_goes_on_from_what_leads() -> None:
    for each in wave(opened()):
        assert each.value["speculation"]["method"] == "eagle3"
        assert each.base in ("fp8+eagle3.k4", wave(opened())[0].name)


def test_the_second_server_of_a_wave_has_the_first_ones_change_and_one_more() -> None:
    first, second = wave(opened())[:2]
    assert second.base == first.name
    assert second.value != first.value


def test_what_the_measurement_calls_for_comes_first() -> None:
    front = wave(opened(limit="front end"))[0]
    assert front.move in ("rust", "api-servers")


@pytest.mark.parametrize(("accepted", "move"), [(0.95, "k-up"), (0.2, "k-down")])
def test_the_share_of_accepted_drafts_decides_the_direction_of_k(
    accepted: float, move: str
) -> None:
    moves = [each.move for each in wave(opened(accepted=accepted), 50)]
    other = {"k-up": "k-down", "k-down": "k-up"}[move]
    assert move in moves
    assert other not in moves[: moves.index(move)]


def test_a_limit_that_the_cheapest_misses_leads_to_what_shortens_it() -> None:
    history = opened(usd=None, load=None, lowest_usd=0.5, missed=frozenset({"TTFT"}))
    first = wave(history)[0]
    assert (first.move, first.base) == ("rust", "fp8+eagle3.k4")


def test_a_failed_gate_ends_the_family_and_what_has_its_weights() -> None:
    history = opened()
    history[1] = replace(history[1], answers="fail")
    assert incumbent(history) == history[0]
    batch, left_out = next_wave(situation(), history, SPEC, 50)
    families = {move.name: move.family for move in MOVES}
    assert all(families.get(each.move) != "8-bit weights" for each in batch)
    assert any("failed the gate" in each.reason for each in left_out if each.move.name == "fp8")


def test_what_fails_its_answers_is_never_the_best() -> None:
    history = opened(answers="fail")
    best = incumbent(history)
    assert best is not None
    assert best.name == "fp8"


def test_a_tie_goes_to_the_fewer_changes() -> None:
    history = [START, outcome("fp8", FP8, 0.99, move="fp8", base="default")]
    assert incumbent(history) == START


def test_every_change_of_the_best_is_undone_once_and_worth_what_its_neighbour_shows() -> None:
    history = explored(costs)
    best = incumbent(history)
    assert best is not None
    found = {each.change: each.ratio for each in worths(best, history)}
    assert found["weights=fp8"] == pytest.approx(1 / 0.8)
    assert found["eagle3 K=4"] == pytest.approx(1 / 0.6)
    assert found["frontend=rust"] == pytest.approx(1 / 0.96)


def test_an_undone_change_is_named_after_it() -> None:
    history = [START, outcome("fp8+eagle3.k4", BOTH, 0.5, move="head", base="default")]
    undone = {each.move: each.value for each in wave(history, 50) if each.move.startswith("undo")}
    # Without the head it is FP8, without FP8 the head.
    assert undone["undo weights=fp8"] == {**DEFAULT, "speculation": HEAD}


def test_a_search_finds_the_best_tries_nothing_twice_and_stops() -> None:
    history = explored(costs)
    best = incumbent(history)
    assert best is not None
    assert best.usd == min(each.usd for each in history if each.usd)
    keys = [key_of(each.value) for each in history]
    assert len(keys) == len(set(keys))


def test_names_are_safe_and_no_two_configurations_share_one() -> None:
    history = explored(costs)
    assert len({each.name for each in history}) == len(history)
    for each in history:
        require_name(each.name, "variant")


def test_a_name_that_the_spec_gave_to_something_else_is_not_reused() -> None:
    listed = outcome("fp8", {**FP8, "args": {"max_num_seqs": 8}}, 2.0)
    first, second = wave([START, listed])[:2]
    assert first.value == FP8
    assert first.name != "fp8"
    assert second.base == first.name


def test_two_checkpoints_of_one_name_are_two_variants() -> None:
    value = {**DEFAULT, "weights": "one/model-fp8"}
    listed = outcome("model-fp8", value, 2.0)
    (candidate,) = next_wave(situation(recipes={}, heads=()), [START, listed], SPEC, 1)[0]
    assert candidate.value["weights"] == "owner/model-fp8"
    assert candidate.name != "model-fp8"


def test_the_same_history_leads_to_the_same_wave() -> None:
    assert wave(opened(), 9) == wave(opened(), 9)


def test_never_leaves_a_family_out_and_says_so() -> None:
    spec = SearchSpec(never=("speculation", "rust"))
    batch, left_out = next_wave(situation(), [START], spec, 50)
    assert all("speculation" not in each.value and "frontend" not in each.value for each in batch)
    assert {"head", "rust"} <= {
        each.move.name for each in left_out if each.reason == "search.never names it"
    }


def test_always_comes_first_whatever_it_promises() -> None:
    assert wave([START], 1, SearchSpec(always=("attention",)))[0].move == "attention"


def test_a_configuration_that_cannot_run_is_left_out_with_the_reason() -> None:
    def refuse(value: Value) -> str | None:
        return "no memory" if value.get("weights") == "fp8" else None

    batch, left_out = next_wave(NO_PUBLISHED, [START], SPEC, 50, refuse)
    assert all(each.value.get("weights") != "fp8" for each in batch)
    assert "no memory" in {each.reason for each in left_out if each.move.name == "fp8"}


def test_another_head_is_tried_with_the_same_k() -> None:
    history = opened(value={**BOTH, "speculation": {**HEAD, "num_tokens": 2}})
    two = situation(heads=(head(), head("other")), checkpoints=())
    drafts = [
        each.value["speculation"]
        for each in next_wave(two, history, SPEC, 50)[0]
        if each.value.get("speculation", {}).get("draft") == "other" and each.move == "head"
    ]
    assert {"method": "eagle3", "num_tokens": 2, "draft": "other"} in drafts


def test_no_wave_is_wider_than_asked() -> None:
    for width in (1, 2, 3):
        assert len(wave([START], width)) == width


def test_all_loads_are_measured_first_then_those_around_the_cheapest() -> None:
    assert next_loads([], POINTS) == tuple(POINTS)
    assert next_loads([START], POINTS) == tuple(POINTS[3:])
    assert next_loads(opened(), POINTS) == tuple(POINTS[4:])
    assert next_loads([replace(START, load=Load.at(1))], POINTS) == tuple(POINTS[1::2])
    assert next_loads(opened(), []) == ()


def test_standing_compares_with_the_configuration_that_it_came_from() -> None:
    history = [*opened(), outcome("worse", {**BOTH, "frontend": "rust"}, 0.6, base="fp8+eagle3.k4")]
    words = [standing(each, history)[0] for each in history]
    assert words == ["start", "adopted", "adopted", "worse"]
    missing = replace(history[1], usd=None)
    assert standing(missing, history) == ("misses", None)
    assert standing(replace(missing, failed="out of memory"), history) == ("failed", None)
