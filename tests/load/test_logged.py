"""Trials of a user's log: whole conversations, with the log's answer lengths and sampling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.load.prompts_factory import write_tokenizer
from whet.checkpoint.encoder import PromptEncoder, load_encoder
from whet.core.errors import UsageError
from whet.core.load import Load
from whet.load import Draw
from whet.load.logged import build_logged
from whet.requests import LoggedRequest
from whet.requests.sample import SampledRequest, sample_log

BLOCK = 16


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    return load_encoder(write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def log(conversations: int = 40, turns: int = 2) -> Iterator[LoggedRequest]:
    """Conversations of ``turns`` behind two system prompts of 160 bytes, one token a byte."""
    for number in range(conversations):
        messages = [{"role": "system", "content": f"{number % 2}" * 160}]
        for turn in range(turns):
            messages = [*messages, {"role": "user", "content": f"question {number}/{turn}"}]
            yield LoggedRequest(
                place=f"log:{number}/{turn}",
                messages=tuple(messages),
                output_tokens=5 + turn,
                sampling={"temperature": 0.7, "top_p": 0.9, "response_format": {"type": "json"}},
            )
            messages = [*messages, {"role": "assistant", "content": "well"}]


@pytest.fixture
def sample() -> tuple[SampledRequest, ...]:
    return sample_log(list(log())).requests


def draw(requests: int, **more: Any) -> Draw:
    return Draw(requests=requests, load=Load.at(8), block_size=BLOCK, **{"trial": 0, **more})


def test_equal_prompts_have_one_source_in_every_trial(encoder: PromptEncoder) -> None:
    """The 6 questions are asked twice in the log, and once more under another mark."""
    twice = sample_log([*log(6, turns=1), *log(6, turns=1)]).requests
    sources = []
    for trial in range(2):
        load = build_logged(twice, encoder, draw=draw(18, trial=trial, warmup=0))
        sources.append(load.workload.facts.sources)
    assert sources[0] != sources[1], "another order"
    assert {len(each) for each in sources} == {18}
    assert len({*sources[0]} | {*sources[1]}) == 6


def test_requests_are_the_logs_own_after_a_mark(
    sample: tuple[SampledRequest, ...], encoder: PromptEncoder
) -> None:
    load = build_logged(sample, encoder, draw=draw(10, warmup=4))
    assert len(load.workload.requests) == len(load.calls) == 10
    texts = [encoder.decode(encoder_ids(each)) for each in load.workload.requests]
    assert all(text.startswith("<|system|>[b8-t0] ") for text in texts)
    assert all("<|user|>question " in text and text.endswith("<|assistant|>") for text in texts)
    assert {each.max_tokens for each in load.workload.requests} == {5, 6}
    call = load.calls[0]
    assert (call.temperature, call.extra["top_p"], call.ignore_eos) == (0.7, 0.9, True)
    assert "response_format" not in call.extra


def encoder_ids(request: object) -> object:
    import numpy as np

    return np.asarray(request.prompt_token_ids)  # type: ignore[attr-defined]


def test_conversations_come_whole_and_their_history_is_found(
    sample: tuple[SampledRequest, ...], encoder: PromptEncoder
) -> None:
    """Of each pair of turns both are there; a second turn's history is a prefix of it."""
    requests = build_logged(sample, encoder, draw=draw(20, warmup=4)).workload.requests
    second = [each for each in requests if each.max_tokens == 6]
    assert len(second) == 10
    assert all(each.shared_tokens > 160 for each in second)
    assert all(each.shared_tokens >= 160 for each in requests)


def test_a_turn_comes_after_the_answer_to_the_one_before(encoder: PromptEncoder) -> None:
    """With 8 in flight a turn is 16 requests later, and finds its history in the cache."""
    sample = sample_log(list(log(conversations=60, turns=4))).requests
    load = build_logged(sample, encoder, draw=draw(200, warmup=2))
    texts = [encoder.decode(encoder_ids(each)) for each in load.workload.requests]
    places = {text.split("question ")[-1].split("<")[0]: at for at, text in enumerate(texts)}
    apart = [
        places[f"{talk}/{turn + 1}"] - places[f"{talk}/{turn}"]
        for talk in range(60)
        for turn in range(3)
        if f"{talk}/{turn + 1}" in places
    ]
    assert min(apart) > 0
    assert np.median(apart) >= 16
    history = [each.shared_tokens > 160 for each in load.workload.requests if each.max_tokens > 5]
    assert all(history)
    facts = load.workload.facts
    assert facts.least_hit_rate == pytest.approx(facts.expected_hit_rate, rel=0.05)


def test_a_next_turn_may_hit_the_answer_before_it(encoder: PromptEncoder) -> None:
    """An engine that answers as logged holds the answer's tokens too; those never lower a rate."""
    talks = [replace(each, output_tokens=60) for each in log(turns=3)]
    talks = [
        replace(each, messages=tuple(_longer(message) for message in each.messages or ()))
        for each in talks
    ]
    facts = build_logged(
        sample_log(talks).requests, encoder, draw=draw(60, warmup=2)
    ).workload.facts
    assert facts.most_hit_rate is not None
    answers = 40 * 64 / facts.input_tokens_mean / 60  # 60 tokens end in one block more
    assert facts.most_hit_rate - facts.expected_hit_rate == pytest.approx(answers, rel=0.07)
    single = sample_log(list(log(turns=1))).requests
    facts = build_logged(single, encoder, draw=draw(20, warmup=2)).workload.facts
    assert facts.most_hit_rate == facts.expected_hit_rate


def _longer(message: Mapping[str, object]) -> dict[str, object]:
    return {**message, "content": "w" * 60} if message["role"] == "assistant" else dict(message)


def test_requests_in_flight_together_may_miss_each_other(encoder: PromptEncoder) -> None:
    same = [LoggedRequest(place="", prompt="x" * 100, output_tokens=3)] * 20
    facts = build_logged(sample_log(same).requests, encoder, draw=draw(20, warmup=0)).workload.facts
    block = 96 / facts.input_tokens_mean
    assert facts.expected_hit_rate == pytest.approx(block * 19 / 20)
    assert facts.least_hit_rate == pytest.approx(block * 12 / 20)


def test_the_warm_up_has_each_shared_beginning_and_no_timed_request(
    sample: tuple[SampledRequest, ...], encoder: PromptEncoder
) -> None:
    load = build_logged(sample, encoder, draw=draw(20, warmup=1))
    warm = {each.prompt_token_ids[:100] for each in load.warmup}
    timed = {each.prompt_token_ids for each in load.workload.requests}
    assert warm == {ids[:100] for ids in timed}
    assert timed.isdisjoint(each.prompt_token_ids for each in load.warmup)
    assert build_logged(sample, encoder, draw=draw(20, warmup=0)).warmup == ()


def test_trials_differ_and_one_trial_is_the_same_for_every_variant(
    sample: tuple[SampledRequest, ...], encoder: PromptEncoder
) -> None:
    first, same = (build_logged(sample, encoder, draw=draw(20, warmup=4)) for _ in range(2))
    assert first.workload.facts.sha256 == same.workload.facts.sha256
    other = build_logged(sample, encoder, draw=draw(20, trial=1, warmup=4))
    fresh = build_logged(sample, encoder, draw=draw(20, attempt="x", warmup=4))
    ids = {each.prompt_token_ids for each in first.workload.requests}
    assert ids.isdisjoint(each.prompt_token_ids for each in other.workload.requests)
    assert ids.isdisjoint(each.prompt_token_ids for each in fresh.workload.requests)


def test_a_short_log_is_played_again_with_other_questions(
    sample: tuple[SampledRequest, ...], encoder: PromptEncoder
) -> None:
    """80 requests make 200; what conversations share stays shared, and no prompt comes twice."""
    requests = build_logged(sample, encoder, draw=draw(200, warmup=2)).workload.requests
    assert len({each.prompt_token_ids for each in requests}) == 200
    systems = {encoder.decode(encoder_ids(each)).split("<|user|>")[0] for each in requests}
    assert len(systems) == 2
    assert all(each.shared_tokens >= 160 for each in requests)


def test_answers_without_a_length_take_a_measured_one(encoder: PromptEncoder) -> None:
    unknown = [replace(each, output_tokens=None, max_tokens=20) for each in log()]
    sample = sample_log(unknown).requests
    load = build_logged(sample, encoder, draw=draw(40, warmup=2), lengths=[7, 30])
    assert {each.max_tokens for each in load.workload.requests} == {7, 20}
    with pytest.raises(UsageError, match="no length"):
        build_logged(sample, encoder, draw=draw(40, warmup=0))


def test_plain_prompts_and_token_ids_are_sent_as_well(encoder: PromptEncoder) -> None:
    plain = [
        LoggedRequest(place=f"{at}", prompt=f"Once {at}", output_tokens=3) for at in range(5)
    ] + [
        LoggedRequest(place=f"{at}", prompt_token_ids=(at, 70, 71), output_tokens=3)
        for at in range(5)
    ]
    load = build_logged(sample_log(plain).requests, encoder, draw=draw(10, warmup=0))
    texts = {encoder.decode(encoder_ids(each)) for each in load.workload.requests}
    assert "[b8-t0] Once 3" in texts
    assert len(texts) == 10
