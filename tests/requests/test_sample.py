"""A sample keeps conversations whole and the log's make-up; its parts have nothing in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from whet.requests import LoggedRequest
from whet.requests.records import request_line
from whet.requests.sample import PARTS, conversation_of, read_sample, sample_log


def conversations(count: int, *, sessions: bool) -> Iterator[LoggedRequest]:
    """Each of 1 to 5 turns behind one of four system prompts, interleaved ten at a time."""
    rng = np.random.default_rng(7)
    waiting = [
        (number, int(rng.integers(1, 6)), int(rng.choice(4, p=[0.4, 0.3, 0.2, 0.1])))
        for number in range(count)
    ]
    for start in range(0, count, 10):
        group = waiting[start : start + 10]
        for turn in range(5):
            for number, turns, system in group:
                if turn < turns:
                    yield chat(number, turn, system, sessions=sessions)


def chat(number: int, turn: int, system: int, *, sessions: bool) -> LoggedRequest:
    history = [{"role": "system", "content": f"You are desk {system}."}]
    for past in range(turn):
        history.append({"role": "user", "content": f"{number}: question {past}"})
        history.append({"role": "assistant", "content": f"answer {past}"})
    history.append({"role": "user", "content": f"{number}: question {turn}"})
    return LoggedRequest(
        place=f"{number}/{turn}",
        messages=tuple(history),
        session=f"s{number}" if sessions else None,
    )


@pytest.mark.parametrize("sessions", [True, False])
def test_conversations_are_whole_and_the_make_up_is_the_logs(sessions: bool) -> None:
    log = list(conversations(4000, sessions=sessions))
    sample = sample_log(log, capacity=3000)
    assert len(sample.requests) <= 3000 < len(log) == sample.log_requests
    assert not sample.whole
    turns = Counter(each.request.place.split("/")[0] for each in sample.requests)
    all_turns = Counter(request.place.split("/")[0] for request in log)
    assert all(all_turns[number] == count for number, count in turns.items())
    places = [each.place for each in sample.requests]
    assert places == sorted(places)
    systems = Counter(each.request.messages[0]["content"] for each in sample.requests)
    for system, share in enumerate((0.4, 0.3, 0.2, 0.1)):
        count = systems[f"You are desk {system}."]
        assert count / len(sample.requests) == pytest.approx(share, abs=0.05)


def test_a_small_log_is_taken_whole() -> None:
    log = list(conversations(50, sessions=True))
    sample = sample_log(log)
    assert sample.whole
    assert [each.request for each in sample.requests] == log


def test_no_conversation_is_in_two_parts_and_none_moves_with_the_sample() -> None:
    log = list(conversations(3000, sessions=False))
    small, large = sample_log(log, capacity=500), sample_log(log, capacity=5000)
    for part, share in PARTS.items():
        inside = large.part(part)
        assert {each.place for each in small.part(part)} <= {each.place for each in inside}
        assert len(inside) / len(large.requests) == pytest.approx(share, abs=0.05)
    parts = {name: {r.group for r in large.part(name)} for name in PARTS}
    assert sum(map(len, parts.values())) == len(set().union(*parts.values()))


def test_another_seed_takes_other_conversations() -> None:
    log = list(conversations(1000, sessions=True))
    first, second = (sample_log(log, seed=seed, capacity=300) for seed in (0, 1))
    assert {each.place for each in first.requests} != {each.place for each in second.requests}


def test_equal_prompts_are_one_conversation_and_counted_as_repeats() -> None:
    probe = LoggedRequest(place="", prompt="ping")
    log = [probe] * 300 + [LoggedRequest(place="", prompt=f"{i}") for i in range(100)]
    sample = sample_log(log)
    assert sample.repeats == pytest.approx(299 / 400)
    assert len({each.group for each in sample.requests if each.request.prompt == "ping"}) == 1


@pytest.mark.parametrize("uses", [5, 400])
def test_questions_about_one_text_stay_together_where_the_text_is_rare(uses: int) -> None:
    """Rare texts are whole in one part; one that many share is in every part."""
    log = [
        LoggedRequest(
            place=f"{text}/{at}",
            messages=(
                {"role": "system", "content": "Answer from the text."},
                {"role": "user", "content": f"text {text} " * 60 + f"question {at}"},
            ),
        )
        for at in range(uses)
        for text in range(2000 // uses)
    ]
    sample = sample_log(log, capacity=1000)
    groups = {
        text: {each.group for each in sample.requests if each.request.place.startswith(f"{text}/")}
        for text in {each.request.place.split("/")[0] for each in sample.requests}
    }
    sizes = {len(each) for each in groups.values()}
    assert sizes == {1} if uses == 5 else min(sizes) > 100
    counts = Counter(each.request.place.split("/")[0] for each in sample.requests)
    assert uses == 400 or set(counts.values()) == {5}
    assert len({conversation_of(each.request) for each in sample.requests}) == len(sample.requests)


def test_a_stored_sample_is_read_as_it_was() -> None:
    sample = sample_log(list(conversations(300, sessions=True)), capacity=200)
    lines = [replace(each.request, session=f"{each.group:x}", place="") for each in sample.requests]
    assert all("session_id" in request_line(line) for line in lines)
    again = read_sample(lines)
    for part in PARTS:
        texts = [each.request.messages for each in sample.part(part)]
        assert [each.request.messages for each in again.part(part)] == texts


def test_the_times_of_the_whole_log_are_sorted() -> None:
    log = [LoggedRequest(place="", prompt=f"{at}", at_ns=at ^ 1) for at in range(100)]
    assert list(sample_log(log, capacity=10).times_ns) == list(range(100))
