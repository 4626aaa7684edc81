"""The playbook: a row and a function for each move, and configurations that a spec accepts."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import whet.levers  # noqa: F401  # registers the keys that levers add to a variant
from tests.flow.run.search.situations import TARGET, head, situation
from whet.core.errors import UsageError
from whet.core.provenance import Device
from whet.core.spec import SearchSpec, VariantSpec
from whet.flow.run.search import playbook
from whet.flow.run.search.changes import CHANGES, Value
from whet.flow.run.search.playbook import MOVES, options, require_known
from whet.flow.run.situation import Situation
from whet.predict.performance.observe import CHANGES as LIMITS

SPEC = SearchSpec()
DEFAULT: Value = {"prefix_cache": True}
FP8: Value = {**DEFAULT, "weights": "fp8"}
HEAD = {"method": "eagle3", "num_tokens": 4, "draft": "head"}
VALUES: tuple[Value, ...] = (
    DEFAULT,
    FP8,
    {**FP8, "speculation": HEAD},
    {**DEFAULT, "weights": "int4", "kernels": "humming", "speculation": HEAD, "frontend": "rust"},
    {**FP8, "args": {"tensor_parallel_size": 2}},
    {**FP8, "layout": {"replicas": 4}},
)
GPUS = Device(kind="cuda", name="H100", memory_bytes=80 * 10**9, count=4, driver=None)
CPU = Device(kind="cpu", name="CPU", memory_bytes=8 * 10**9, count=1, driver=None)
SITUATIONS = {
    "h100": situation(),
    "four": situation(device=GPUS, target=replace(TARGET, experts=64)),
    "mtp": situation(heads=(head("", "mtp"),)),
    "old": situation(capability=(8, 0)),
    "nothing": situation(recipes={}, heads=(), checkpoints=(), draft=False, nvcc=False),
    "cpu": situation(device=CPU, capability=None, engine="vllm"),
    "sglang": situation(engine="sglang", capability=(9, 0)),
}


def every_option(name: str) -> Iterator[playbook.Option]:
    for value in VALUES:
        yield from options(SITUATIONS[name], value, SPEC)


def test_every_row_has_a_function_and_every_function_a_row() -> None:
    path = Path(playbook.__file__).with_name("moves.csv")
    rows = [row["move"] for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())]
    assert len(rows) == len(set(rows))
    assert set(rows) == set(CHANGES)


def test_a_row_helps_with_limits_that_exist_and_names_a_stored_campaign() -> None:
    root = Path(__file__).parents[4]
    for move in MOVES:
        assert move.helps <= {*LIMITS, "TTFT", "TPOT"}
        assert all(0.5 < gain < 4 for gain in move.gain)
        assert move.campaign is None or (root / move.campaign).is_dir()


def test_gains_are_between_those_of_few_and_of_many_in_flight() -> None:
    fp8 = next(move for move in MOVES if move.name == "fp8")
    few, many = fp8.gain
    assert fp8.expected(1) == few
    assert many < fp8.expected(32) < few
    assert fp8.expected(1000) == pytest.approx(many)


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_configuration_is_a_variant(name: str) -> None:
    for option in every_option(name):
        if option.value is not None:
            VariantSpec.model_validate(option.value)


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_move_is_listed_with_a_reason_on_one_line(name: str) -> None:
    for value in VALUES:
        found = list(options(SITUATIONS[name], value, SPEC))
        assert {each.move.name for each in found} == {move.name for move in MOVES}
    for option in every_option(name):
        assert option.reason.strip() == option.reason
        assert len(option.reason.split()) >= 2
        assert "\n" not in option.reason


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_move_changes_something(name: str) -> None:
    for value in VALUES:
        for option in options(SITUATIONS[name], value, SPEC):
            assert option.value != value


@pytest.mark.parametrize(
    ("device", "value", "size"),
    [
        (1, DEFAULT, None),
        (4, DEFAULT, 4),
        (4, {**DEFAULT, "args": {"tensor_parallel_size": 2}}, 2),
        (4, {**DEFAULT, "args": {"tensor_parallel_size": 4}}, 4),
    ],
)
def test_replicas_use_all_gpus(device: int, value: Value, size: int | None) -> None:
    found = _option(situation(device=replace(GPUS, count=device)), value, "replicas")
    assert (None if found is None else found["layout"]["replicas"]) == size


def _option(facts: Situation, value: Value, name: str) -> Value | None:
    return next(each.value for each in options(facts, value, SPEC) if each.move.name == name)


def test_suffixes_may_draft_as_long_as_a_match_goes_on() -> None:
    found = _option(situation(), DEFAULT, "suffix")
    assert found is not None
    assert found["speculation"]["num_tokens"] == 24


@pytest.mark.parametrize("key", ["always", "never"])
def test_an_unknown_move_is_refused_with_the_nearest(key: str) -> None:
    with pytest.raises(UsageError, match=f"search.{key}: 'rusty' is not a move.*'rust'"):
        require_known(SearchSpec(**{key: ("rusty",)}))


def test_a_move_that_is_both_asked_for_and_excluded_is_refused() -> None:
    with pytest.raises(UsageError, match="both name 'rust'"):
        require_known(SearchSpec(always=("rust",), never=("rust",)))


def test_moves_and_families_are_known() -> None:
    require_known(SearchSpec(always=("fp8", "front end"), never=("speculation",)))
