"""Closed forms of the best hit rate against a count over the token ids, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, permutations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.load.prompts_factory import write_tokenizer
from whet.core.errors import UsageError
from whet.demo import pair_paths
from whet.load.shapes import (
    SHAPES,
    AgentLoop,
    FewShot,
    MultiTurn,
    Rag,
    Shape,
    SingleSystem,
    best_hit_tokens,
    expected_hit_tokens,
    shape_named,
)
from whet.load.shapes_prompts import ShapedRequest, build_shape, build_shape_text, load_shape
from whet.load.texts import TextTokenizer, load_text_tokenizer

IDS = tuple(range(100, 4000))
SIZES = (1, 8, 16, 32, 64, 128)


@pytest.fixture(scope="module")
def demo() -> TextTokenizer:
    return load_text_tokenizer(pair_paths()[0])


def counted(prompts: Sequence[tuple[int, ...]], size: int) -> int:
    """Tokens in full blocks, each known by all before it, that an earlier prompt left."""
    seen: dict[tuple[int, tuple[int, ...]], int] = {}
    hits = 0
    for ids in prompts:
        place, found, held = 0, 0, len(seen)
        for end in range(size, len(ids) + 1, size):
            place = seen.setdefault((place, ids[end - size : end]), len(seen) + 1)
            found += size * (place <= held and end < len(ids))
        hits += found
    return hits


def ids_of(requests: Sequence[ShapedRequest]) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids for request in requests]


def small(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


SMALL = st.one_of(
    st.builds(
        SingleSystem, requests=small(1, 6), system_tokens=small(0, 40), question_tokens=small(1, 20)
    ),
    st.builds(
        FewShot,
        tasks=small(1, 4),
        examples=small(1, 3),
        example_tokens=small(1, 20),
        requests_per_task=small(1, 4),
        question_tokens=small(1, 20),
    ),
    st.builds(
        Rag,
        requests=small(1, 12),
        system_tokens=small(1, 20),
        corpus=small(3, 5),
        chunks=small(1, 3),
        chunk_tokens=small(1, 20),
        question_tokens=small(1, 20),
        order=st.sampled_from(["as_retrieved", "sorted"]),
        seed=small(0, 9),
    ),
    st.builds(
        MultiTurn,
        conversations=small(1, 5),
        turns=small(1, 5),
        system_tokens=small(0, 30),
        question_tokens=small(1, 20),
        answer_tokens=small(1, 20),
        in_flight=small(1, 6),
    ),
    st.builds(
        AgentLoop,
        agents=small(1, 5),
        steps=small(1, 5),
        system_tokens=small(0, 30),
        task_tokens=small(1, 20),
        call_tokens=small(1, 10),
        result_tokens=small(1, 20),
        in_flight=small(1, 6),
    ),
)


@given(SMALL, st.integers(1, 24))
@settings(max_examples=150, deadline=None)
def test_the_closed_form_is_what_the_ids_have_in_common(shape: Shape, size: int) -> None:
    assert best_hit_tokens(shape, size) == counted(ids_of(build_shape(shape, IDS)), size)


@pytest.mark.parametrize("name", SHAPES)
def test_the_defaults_fit_a_demo_model_and_hit_what_they_say(name: str) -> None:
    shape = shape_named(name)
    requests = build_shape(shape, IDS)
    assert [request.index for request in requests] == list(range(len(requests)))
    assert max(len(r.prompt_token_ids) + r.max_tokens for r in requests) <= 2048
    for size in SIZES:
        assert best_hit_tokens(shape, size) == counted(ids_of(requests), size) > 0
    assert sum(request.shared_tokens for request in requests) == best_hit_tokens(shape, 1)


@pytest.mark.parametrize(
    ("shape", "tokens"),
    [
        # 2 of 3 requests find 32 of 40 tokens.
        (SingleSystem(requests=3, system_tokens=40, question_tokens=9), 64),
        # Each of 2 tasks: 2 of 3 requests find 48 of 3 × 17 tokens.
        (FewShot(tasks=2, examples=3, example_tokens=17, requests_per_task=3), 192),
        # Prompts of 30, 50 and 70 tokens: 16 + 48 a conversation, and 16 for the second's first.
        (
            MultiTurn(
                conversations=2, turns=3, system_tokens=20, question_tokens=10, answer_tokens=10
            ),
            144,
        ),
        # Prompts of 35, 50 and 65 tokens: 32 + 48 an agent, and 16 for the second's first.
        (
            AgentLoop(
                agents=2,
                steps=3,
                system_tokens=31,
                task_tokens=4,
                call_tokens=5,
                result_tokens=10,
            ),
            176,
        ),
    ],
)
def test_hits_counted_by_hand_at_16_tokens_a_block(shape: Shape, tokens: int) -> None:
    assert best_hit_tokens(shape, 16) == tokens


@pytest.mark.parametrize("size", [1, 8, 16])
@pytest.mark.parametrize(("corpus", "chunks", "requests"), [(4, 2, 3), (3, 3, 3), (4, 3, 2)])
def test_the_expected_hits_are_the_mean_over_every_draw(
    corpus: int, chunks: int, requests: int, size: int
) -> None:
    shape = Rag(requests=requests, system_tokens=10, corpus=corpus, chunks=chunks, chunk_tokens=7)
    ways = {"as_retrieved": permutations, "sorted": combinations}
    for order, draws in ways.items():
        every = list(product(draws(range(corpus), chunks), repeat=requests))
        hits = 0
        for drawn in every:
            prompts = [
                (*[-1] * 10, *(k for k in row for _ in range(7)), 100 + i)
                for i, row in enumerate(drawn)
            ]
            hits += counted(prompts, size)
        mean = float(Fraction(hits, len(every)))
        assert expected_hit_tokens(replace(shape, order=order), size) == pytest.approx(mean)


def test_the_expected_hits_of_a_large_corpus_are_those_of_its_first_chunk() -> None:
    """400 chunks in 20 000 retrievals: about 19 600 have a first chunk that came before."""
    shape = Rag(requests=20_000, system_tokens=16, corpus=400, chunks=200, chunk_tokens=16)
    firsts = 20_000 - 400 * (1 - (1 - 1 / 400) ** 20_000)
    tokens = expected_hit_tokens(shape, 16)
    assert 16 * (19_999 + firsts) < tokens < 16 * (19_999 + firsts) * 1.1


def test_sorting_chunks_finds_more() -> None:
    shape = Rag()
    assert expected_hit_tokens(replace(shape, order="sorted"), 16) > expected_hit_tokens(shape, 16)


def test_a_chunk_is_the_same_text_wherever_it_stands() -> None:
    shape = Rag(requests=20, system_tokens=3, corpus=3, chunks=2, chunk_tokens=5, question_tokens=1)
    prompts = ids_of(build_shape(shape, IDS))
    assert len({ids[3 + 5 * k : 8 + 5 * k] for ids in prompts for k in range(2)}) == 3


def test_every_turn_extends_the_one_before_and_streams_interleave() -> None:
    shape = MultiTurn(conversations=3, turns=2, in_flight=2)
    requests = build_shape(shape, IDS)
    names = [request.prefix_id.removeprefix("conversation-") for request in requests]
    assert "".join(names) == "010122"
    assert requests[2].prompt_token_ids[: 256 + 48] == requests[0].prompt_token_ids


def test_fresh_tokens_keep_the_structure() -> None:
    shape = Rag(requests=30, corpus=4, chunks=2)
    one, other = build_shape(shape, IDS), build_shape(shape, IDS, fresh="2")
    assert one == build_shape(shape, IDS)
    assert [r.shared_tokens for r in one] == [r.shared_tokens for r in other]
    assert counted([*ids_of(one), *ids_of(other)], 16) == 2 * best_hit_tokens(shape, 16)


@pytest.mark.parametrize(
    "shape",
    [
        SingleSystem(requests=12),
        FewShot(requests_per_task=3),
        Rag(requests=12, corpus=4, chunks=2, chunk_tokens=40),
        MultiTurn(conversations=3, turns=3),
        MultiTurn(conversations=3, turns=2, system_tokens=0),
        AgentLoop(agents=2, steps=3),
    ],
    ids=lambda shape: type(shape).__name__,
)
def test_texts_read_back_as_their_ids_and_hit_as_much(shape: Shape, demo: TextTokenizer) -> None:
    requests = build_shape_text(shape, demo)
    assert ids_of(requests) == [demo.ids(request.text or "") for request in requests]
    assert [(len(r.prompt_token_ids), r.max_tokens, r.shared_tokens) for r in requests] == [
        (len(r.prompt_token_ids), r.max_tokens, r.shared_tokens) for r in build_shape(shape, IDS)
    ]
    for size in (1, 16, 64):
        assert best_hit_tokens(shape, size) == counted(ids_of(requests), size)


def test_a_tokenizer_without_words_that_begin_apart_is_refused(tmp_path: Path) -> None:
    letters = load_text_tokenizer(write_tokenizer(tmp_path))
    with pytest.raises(UsageError, match="needs 64 words to begin its pieces apart"):
        build_shape_text(SingleSystem(), letters)


def test_a_load_states_what_its_requests_find(demo: TextTokenizer) -> None:
    shape = SingleSystem(requests=3, system_tokens=40, question_tokens=9, output_tokens=5)
    load = load_shape(shape, build_shape(shape, IDS), block_size=16)
    assert load.best_hit_tokens == 64
    assert load.cold_hit_rate == load.workload.facts.expected_hit_rate == 64 / (3 * 49)
    assert [call.prompt_token_ids for call in load.calls] == [
        request.prompt_token_ids for request in load.workload.requests
    ]
    assert {request.prefix_id for request in load.workload.requests} == {"system"}
    written = build_shape_text(shape, demo)
    texts = load_shape(shape, written, block_size=16)
    assert [call.prompt for call in texts.calls] == [request.text for request in written]
    assert {call.max_tokens for call in (*texts.calls, *load.calls)} == {5}
    assert texts.best_hit_tokens == load.best_hit_tokens


@pytest.mark.parametrize("name", SHAPES)
def test_a_load_of_every_shape_agrees_with_its_closed_form(name: str) -> None:
    shape = shape_named(name)
    load = load_shape(shape, build_shape(shape, IDS), block_size=16)
    tokens = sum(len(request.prompt_token_ids) for request in load.workload.requests)
    assert load.cold_hit_rate == load.best_hit_tokens / tokens


@pytest.mark.parametrize("name", SHAPES)
def test_no_parameter_may_be_nothing(name: str) -> None:
    kind = SHAPES[name]
    numbers = [n for n in kind.__slots__ if n not in ("seed", "order", "system_tokens")]
    for field in numbers:
        with pytest.raises(UsageError, match=f"{field} is 0"):
            kind(**{field: 0})
    with pytest.raises(UsageError, match="seed is -1"):
        kind(seed=-1)


def test_words_set_parameters_of_a_shape() -> None:
    assert shape_named("few-shot:tasks=4, examples=8") == FewShot(tasks=4, examples=8)
    assert shape_named("rag:order=sorted", seed=3) == Rag(order="sorted", seed=3)
    assert shape_named("rag:seed=2") == Rag(seed=2)
    assert shape_named("multi-turn:system_tokens=0") == MultiTurn(system_tokens=0)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="5 different chunks cannot come from a corpus of 4"):
        Rag(corpus=4, chunks=5)
    with pytest.raises(UsageError, match="system_tokens is 0"):
        Rag(system_tokens=0)
    with pytest.raises(UsageError, match="no order 'shuffled'"):
        Rag(order="shuffled")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="did you mean 'few-shot'"):
        shape_named("fewshot")
    with pytest.raises(UsageError, match="a block of 0 tokens"):
        best_hit_tokens(Rag(), 0)
    with pytest.raises(UsageError, match="needs 64 token ids"):
        build_shape(SingleSystem(), IDS[:63])
