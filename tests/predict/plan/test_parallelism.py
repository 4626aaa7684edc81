"""Layouts: their words, the engine's flags, and the models that they divide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.records import model
from whet.core.errors import UsageError
from whet.core.records.model import ModelFacts
from whet.predict.plan.evaluate import Parallelism, parse_parallel, usual_layouts


def stored(scheme: str = "16bit", group: int | None = None, **shape: Any) -> ModelFacts:
    facts = model(**({"heads": 32, "layers": 32, "intermediate_size": 14336} | shape))
    return replace(facts, stored=replace(facts.stored, scheme=scheme, group_size=group))


def test_words_and_flags() -> None:
    one, tensor, both, experts = parse_parallel("1, TP8,tp2xdp4,dp8xpp1xep")
    assert [each.text for each in (one, tensor, both, experts)] == [
        "TP1",
        "TP8",
        "TP2×DP4",
        "DP8×EP",
    ]
    assert [each.devices for each in (one, tensor, both, experts)] == [1, 8, 8, 8]
    assert one.args == ()
    fronts = {"data_parallel_size": 4, "api_server_count": 4}
    assert dict(both.args) == {"tensor_parallel_size": 2, **fronts}
    assert dict(experts.args) == {
        "data_parallel_size": 8,
        "api_server_count": 8,
        "enable_expert_parallel": True,
    }


@pytest.mark.parametrize(
    "text", ["two", "tp2xtp2", "2x4", "ep", "tp0", "tp2xep4", "", "tp2xepxdp2"]
)
def test_another_word_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not understood; .* such as tp8,tp2xdp4,dp8xep"):
        parse_parallel(text)


def test_every_layout_of_eight_gpus_uses_all_of_them() -> None:
    layouts = list(usual_layouts(8))
    assert {each.devices for each in layouts} == {8}
    assert len(layouts) == len(set(layouts))
    texts = {each.text for each in layouts}
    assert texts >= {"TP8", "TP4×DP2", "TP2×DP4", "DP8", "PP8", "TP4×PP2", "DP8×EP", "TP8×EP"}
    assert "PP8×EP" not in texts  # one GPU a stage shares its experts with none


@pytest.mark.parametrize(
    ("parallel", "facts", "suits"),
    [
        (Parallelism(tensor=8), stored(), True),
        (Parallelism(tensor=8), stored(heads=12), False),
        (Parallelism(pipeline=3), stored(), False),
        (Parallelism(tensor=2, experts=True), stored(), False),
        # 768 columns on 4 GPUs are 1½ groups of 128; whole experts are not cut.
        (Parallelism(tensor=2), stored("W4A16", 128, intermediate_size=768, experts=128), True),
        (Parallelism(tensor=4), stored("W4A16", 128, intermediate_size=768, experts=128), False),
        (Parallelism(data=4), stored("FP8_BLOCK", intermediate_size=768, experts=128), False),
        (
            Parallelism(data=4, experts=True),
            stored("FP8_BLOCK", intermediate_size=768, experts=128),
            True,
        ),
        (Parallelism(data=4), stored("FP8_BLOCK", intermediate_size=768), True),
    ],
)
def test_what_a_layout_divides(parallel: Parallelism, facts: ModelFacts, suits: bool) -> None:
    assert parallel.suits(facts) is suits
