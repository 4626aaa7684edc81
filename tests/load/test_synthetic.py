"""Prefix structure against counts made by hand, and texts against the tokenizer that reads them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.load.prompts_factory import write_tokenizer
from whet.client import CompletionCall
from whet.core.errors import CheckpointError, UsageError
from whet.core.load import Load
from whet.demo import pair_paths
from whet.load import Draw
from whet.load.lengths import (
    NO_PREFIXES,
    Lengths,
    SharedPrefixes,
    fixed,
    independent,
)
from whet.load.plan import PlannedLoad
from whet.load.sharing import ideal_hit_rate
from whet.load.synthetic import (
    Form,
    IdWriter,
    SyntheticShape,
    TextWriter,
    build_synthetic,
    ordinary_ids,
)
from whet.load.texts import TextTokenizer, load_text_tokenizer
from whet.requests import LoggedRequest

TARGET = pair_paths()[0]
VOCABULARY = tuple(range(100, 4000))
DRAW = Draw(requests=20, load=Load.at(4), trial=0, block_size=16)


def shape(
    *, unique: int = 30, output: int = 8, prefixes: SharedPrefixes = NO_PREFIXES, seed: int = 0
) -> SyntheticShape:
    lengths = independent(fixed(unique), fixed(output))
    return SyntheticShape(lengths=lengths, prefixes=prefixes, seed=seed)


def of_ids(
    made: SyntheticShape, vocabulary: Sequence[int], *, draw: Draw, warmup: int = 0
) -> PlannedLoad:
    return build_synthetic(made, IdWriter(made, vocabulary), draw=replace(draw, warmup=warmup))


def of_text(
    made: SyntheticShape, tokenizer: TextTokenizer, *, draw: Draw, form: Form, warmup: int = 0
) -> PlannedLoad:
    return build_synthetic(
        made, TextWriter(made, tokenizer, form), draw=replace(draw, warmup=warmup)
    )


def prompts(load: PlannedLoad) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids for request in load.workload.requests]


def cold(load: PlannedLoad) -> float:
    """What the prompts find one after another in a cache that was empty."""
    return ideal_hit_rate(prompts(load), block_size=16)


@pytest.fixture(scope="module")
def demo() -> TextTokenizer:
    return load_text_tokenizer(TARGET)


def test_small_vocabularies_are_refused() -> None:
    with pytest.raises(UsageError, match="3 shared prefixes"):
        of_ids(shape(prefixes=SharedPrefixes(count=3, tokens=4)), (5, 6, 7), draw=DRAW)


def test_ordinary_ids_leave_out_special_and_added_tokens_and_what_the_model_lacks(
    tmp_path: Path,
) -> None:
    assert ordinary_ids(TARGET) == tuple(range(6, 4096))
    write_tokenizer(tmp_path)  # 256 bytes and 4 added tokens
    assert ordinary_ids(tmp_path) == tuple(range(256))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 200}))
    assert ordinary_ids(tmp_path) == tuple(range(200))
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 100}}))
    assert ordinary_ids(tmp_path) == tuple(range(100))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 0}))
    with pytest.raises(CheckpointError, match="no ordinary token"):
        ordinary_ids(tmp_path)


def test_lengths_shares_and_names_are_as_described() -> None:
    prefixes = SharedPrefixes(count=3, tokens=40)
    load = of_ids(shape(prefixes=prefixes), VOCABULARY, draw=DRAW)
    requests = load.workload.requests
    assert [request.index for request in requests] == list(range(20))
    used = Counter(request.prefix_id for request in requests)
    assert used == {"prefix-0": 7, "prefix-1": 7, "prefix-2": 6}
    for request in requests:
        assert len(request.prompt_token_ids) == 30 + 40
        assert request.shared_tokens == 32  # two blocks of 16 in 40
        assert request.max_tokens == 8
        assert set(request.prompt_token_ids) <= set(VOCABULARY)
    facts = load.workload.facts
    assert (facts.requests, facts.shared_prefixes, facts.shared_prefix_share) == (20, 3, 1)
    assert facts.input_tokens_mean == 70
    assert facts.output_tokens_mean == 8
    assert load.calls[3].prompt_token_ids == requests[3].prompt_token_ids


def test_the_order_of_kinds_is_mixed() -> None:
    prefixes = SharedPrefixes(count=2, tokens=16)
    load = of_ids(shape(prefixes=prefixes), VOCABULARY, draw=replace(DRAW, requests=60))
    names = [request.prefix_id for request in load.workload.requests]
    assert sum(one != other for one, other in pairwise(names)) > 20


@pytest.mark.parametrize(("tokens", "blocks"), [(15, 0), (16, 1), (40, 2), (48, 3)])
def test_expected_rates_have_their_closed_form(tokens: int, blocks: int) -> None:
    # 40 requests share 3 prefixes: warm, each hits its prefix's whole blocks; cold, the first use
    # of each does not.
    prefixes = SharedPrefixes(count=3, tokens=tokens)
    load = of_ids(shape(unique=20, prefixes=prefixes), VOCABULARY, draw=replace(DRAW, requests=40))
    total = 40 * 20 + 40 * tokens
    assert load.workload.facts.expected_hit_rate == pytest.approx(40 * blocks * 16 / total)
    assert cold(load) == pytest.approx((40 - 3) * blocks * 16 / total)


def test_without_prefixes_nothing_is_expected_to_hit() -> None:
    load = of_ids(shape(), VOCABULARY, draw=DRAW)
    assert (cold(load), load.workload.facts.expected_hit_rate) == (0.0, 0.0)
    assert load.warmup == ()
    assert {request.prefix_id for request in load.workload.requests} == {None}


def test_a_prefix_that_one_request_uses_hits_only_when_warm() -> None:
    prefixes = SharedPrefixes(count=1, tokens=32)
    load = of_ids(shape(unique=32, prefixes=prefixes), VOCABULARY, draw=replace(DRAW, requests=1))
    assert cold(load) == 0.0
    assert load.workload.facts.expected_hit_rate == 0.5


def test_the_warm_up_holds_every_prefix_once_and_then_others() -> None:
    prefixes = SharedPrefixes(count=3, tokens=32)
    one = of_ids(shape(prefixes=prefixes), VOCABULARY, draw=DRAW, warmup=5)
    names = [request.prefix_id for request in one.warmup]
    assert names == ["prefix-0", "prefix-1", "prefix-2", None, None]
    fewer = of_ids(shape(prefixes=prefixes), VOCABULARY, draw=DRAW, warmup=1)
    assert len(fewer.warmup) == len(fewer.warmup_calls) == 3
    heads = {r.prompt_token_ids[:32] for r in one.warmup[:3]}
    assert heads == {ids[:32] for ids in prompts(one)}


def test_trials_share_prefixes_and_nothing_else() -> None:
    prefixes = SharedPrefixes(count=2, tokens=32)
    loads = [
        of_ids(
            shape(prefixes=prefixes),
            VOCABULARY,
            draw=replace(DRAW, trial=trial, load=Load.at(batch)),
            warmup=4,
        )
        for trial, batch in ((0, 4), (1, 4), (0, 8))
    ]
    beginnings = [
        {r.prompt_token_ids[:32] for r in x.workload.requests if r.prefix_id} for x in loads
    ]
    assert beginnings[0] == beginnings[1] == beginnings[2]
    whole = [ids for load in loads for ids in prompts(load)]
    whole += [request.prompt_token_ids for load in loads for request in load.warmup]
    unique = [ids[-30:] for ids in whole]
    assert len(set(unique)) == len(whole)
    assert len({x.workload.facts.sha256 for x in loads}) == 3


def test_the_same_description_gives_the_same_traffic() -> None:
    prefixes = SharedPrefixes(count=2, tokens=32)
    one, again = (of_ids(shape(prefixes=prefixes), VOCABULARY, draw=DRAW) for _ in "ab")
    assert one == again
    other = of_ids(shape(prefixes=prefixes, seed=1), VOCABULARY, draw=DRAW)
    assert prompts(one)[0][:32] != prompts(other)[0][:32]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    unlike = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(unlike, min(len(one), len(other)))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40))
def test_no_two_requests_share_more_than_their_prefix(
    count: int, tokens: int, requests: int
) -> None:
    prefixes = SharedPrefixes(count=count, tokens=tokens)
    lengths = independent(Lengths(low=1, high=40), fixed(1))
    load = of_ids(
        SyntheticShape(lengths=lengths, prefixes=prefixes),
        VOCABULARY[:120],
        draw=replace(DRAW, requests=requests, block_size=8),
        warmup=8,
    )
    every = [*load.workload.requests, *load.warmup]
    for i, one in enumerate(every):
        for other in every[:i]:
            alike = one.prefix_id is not None and one.prefix_id == other.prefix_id
            common = _common(one.prompt_token_ids, other.prompt_token_ids)
            assert common == (tokens if alike else 0)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(100, 101), min_size=1, max_size=9), min_size=1, max_size=12))
def test_the_cold_rate_is_what_one_after_another_finds(rows: list[list[int]]) -> None:
    ids = [tuple(row) for row in rows]
    hits = 0
    for number, one in enumerate(ids):
        best = max((_common(one, other) for other in ids[:number]), default=0)
        hits += min(best, len(one) - 1) // 2 * 2
    assert ideal_hit_rate(ids, block_size=2) == pytest.approx(hits / sum(map(len, ids)))


def test_the_requests_of_a_seed_stay_what_they_were() -> None:
    """Figures of two releases stand for one traffic: the hash is that of the first."""
    load = of_ids(
        replace(
            shape(unique=70, output=3, seed=5),
            prefixes=SharedPrefixes(count=3, tokens=50),
        ),
        tuple(range(1000, 3000)),
        draw=Draw(requests=20, load=Load.at(4), trial=1, block_size=16),
        warmup=6,
    )
    assert load.workload.facts.sha256.startswith("efe5fd5938dda412890b7eb962ed76a9")
    assert Counter(request.shared_tokens for request in load.workload.requests) == {48: 20}


def test_more_requests_than_tokens_repeat_first_tokens_evenly_and_are_counted_as_they_are() -> None:
    load = of_ids(shape(unique=1), (1, 2, 3, 4), draw=replace(DRAW, requests=10, block_size=1))
    first = Counter(ids[0] for ids in prompts(load))
    assert sorted(first.values()) == [2, 2, 3, 3]
    assert cold(load) == 0.0  # a prompt's last token is never a hit


@pytest.mark.parametrize("form", ["text", "chat"])
@pytest.mark.parametrize("tokens", [33, 48, 250])
def test_texts_have_the_stated_tokens_when_the_server_reads_them(
    demo: TextTokenizer, form: Form, tokens: int
) -> None:
    prefixes = SharedPrefixes(count=3, tokens=tokens)
    load = of_text(
        shape(unique=25, prefixes=prefixes),
        demo,
        draw=DRAW,
        form=form,
        warmup=5,
    )
    for request, call in zip(
        (*load.workload.requests, *load.warmup), (*load.calls, *load.warmup_calls), strict=True
    ):
        ids = _read_again(demo, call)
        assert ids == request.prompt_token_ids
        assert len(ids) == 25 + (tokens if request.prefix_id else 0)
        assert call.max_tokens == request.max_tokens
    blocks = tokens // 16 * 16
    total = 20 * 25 + 20 * tokens
    # A chat's own first tokens are fewer than a block: they are no hits.
    assert load.workload.facts.expected_hit_rate == pytest.approx(20 * blocks / total)
    assert cold(load) == pytest.approx((20 - 3) * blocks / total)


def _read_again(tokenizer: TextTokenizer, call: CompletionCall) -> tuple[int, ...]:
    if call.messages is not None:
        return tokenizer.request_ids(LoggedRequest(place="", messages=call.messages))
    assert call.prompt is not None
    return tokenizer.request_ids(LoggedRequest(place="", prompt=call.prompt))


def test_texts_of_trials_share_their_prefixes(demo: TextTokenizer) -> None:
    prefixes = SharedPrefixes(count=1, tokens=40)
    one, other = (
        of_text(shape(prefixes=prefixes), demo, draw=replace(DRAW, trial=trial), form="chat")
        for trial in (0, 1)
    )
    first, second = prompts(one), prompts(other)
    assert _common(first[0], first[1]) == _common(first[0], second[0]) == 40
    assert set(first).isdisjoint(second)


@pytest.mark.parametrize(
    ("unique", "prefix", "complaint"), [(2, 30, "at least"), (30, 1, "at least")]
)
def test_a_text_shorter_than_its_frame_is_refused_with_the_least(
    demo: TextTokenizer, unique: int, prefix: int, complaint: str
) -> None:
    prefixes = SharedPrefixes(count=1, tokens=prefix)
    with pytest.raises(UsageError, match=complaint):
        of_text(shape(unique=unique, prefixes=prefixes), demo, draw=DRAW, form="chat")


def test_texts_work_for_a_tokenizer_of_single_bytes_too(tmp_path: Path) -> None:
    tokenizer = load_text_tokenizer(write_tokenizer(tmp_path))
    prefixes = SharedPrefixes(count=2, tokens=20)
    load = of_text(
        shape(unique=12, prefixes=prefixes), tokenizer, draw=replace(DRAW, requests=6), form="chat"
    )
    assert {len(ids) for ids in prompts(load)} == {32}
