"""Conversations against a scripted server: what is sent when, and what the history holds."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.load.prompts_factory import write_tokenizer
from tests.scripted_server import ScriptedServer, scripted_server
from whet.client import StreamClient, read_event, run_async
from whet.core.errors import EngineLostError, UsageError
from whet.core.records.load import RequestEvent
from whet.demo import pair_paths
from whet.load.conversations import (
    Conversations,
    ConversationShape,
    expected_hit_rate,
    plan_conversations,
)
from whet.load.plan import PlannedConversation
from whet.load.texts import TextTokenizer, load_text_tokenizer

MS = 1_000_000
SHAPE = ConversationShape(
    conversations=3,
    turns=3,
    first_tokens=40,
    added_tokens=10,
    output_tokens=4,
)


@pytest.fixture(scope="module")
def demo() -> TextTokenizer:
    return load_text_tokenizer(pair_paths()[0])


@pytest.fixture(scope="module")
def planned(demo: TextTokenizer) -> tuple[PlannedConversation, ...]:
    return plan_conversations(SHAPE, demo, concurrency=2, trial=0)


def run(
    server: ScriptedServer,
    conversations: Sequence[PlannedConversation],
    *,
    slots: int = 2,
    alive: Callable[[], None] = lambda: None,
    timeout_s: float = 5.0,
) -> Conversations:
    loops: list[Conversations] = []

    async def go() -> None:
        async with StreamClient(server.url, "scripted", timeout_s=timeout_s) as client:
            loops.append(Conversations(client, slots=slots, alive=alive))
            await loops[0].run(conversations)

    try:
        run_async(go())
    except EngineLostError:
        loops[0].lost = True  # type: ignore[attr-defined]
    return loops[0]


def events(loop: Conversations) -> list[RequestEvent]:
    found = [read_event(exchange, origin_ns=loop.started_ns) for exchange in loop.sent]
    return sorted(found, key=lambda event: event.index)


def with_extra(conversation: PlannedConversation, turn: int, **script: Any) -> PlannedConversation:
    turns = list(conversation.turns)
    turns[turn] = replace(turns[turn], extra={"script": script})
    return replace(conversation, turns=tuple(turns))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"conversations": 0}, "at least 1 conversation"),
        ({"turns": 0}, "turns"),
        ({"first_tokens": 0}, "first_tokens"),
        ({"added_tokens": 0}, "added_tokens"),
        ({"output_tokens": 0}, "output_tokens"),
        ({"seed": -1}, "seed"),
        ({"system": ""}, "system"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        replace(SHAPE, **wrong)


def test_a_first_prompt_shorter_than_its_frame_and_a_missing_template_are_refused(
    demo: TextTokenizer, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="at least"):
        plan_conversations(replace(SHAPE, first_tokens=3), demo, concurrency=1, trial=0)
    bare = load_text_tokenizer(write_tokenizer(tmp_path, template=None))
    with pytest.raises(UsageError, match="no chat template"):
        plan_conversations(SHAPE, bare, concurrency=1, trial=0)


def test_a_plan_has_the_stated_turns_and_tokens(
    demo: TextTokenizer, planned: tuple[PlannedConversation, ...]
) -> None:
    assert [conversation.index for conversation in planned] == [0, 1, 2]
    indices = [turn.index for conversation in planned for turn in conversation.turns]
    assert indices == list(range(9))
    for conversation in planned:
        first, *later = conversation.turns
        assert len(demo.chat_ids([{"role": "user", "content": first.user}])) == 40
        assert all(len(demo.content_ids(turn.user)) == 10 for turn in later)
        # <|end|> <|user|> … <|end|> <|assistant|> stand around what a turn adds
        assert [turn.prompt_tokens for turn in conversation.turns] == [40, 58, 76]
        assert [turn.max_tokens for turn in conversation.turns] == [4, 4, 4]
        assert len(conversation.first_token_ids) == 40


def test_a_planned_prompt_is_what_the_template_makes_of_the_history(demo: TextTokenizer) -> None:
    [conversation] = plan_conversations(
        replace(SHAPE, conversations=1, system="You help."), demo, concurrency=1, trial=0
    )
    answer = " ".join(demo.words[:4])  # four tokens and the first word's bare form
    added = len(demo.content_ids(answer)) - 4
    messages = [{"role": "system", "content": "You help."}]
    for number, turn in enumerate(conversation.turns):
        messages.append({"role": "user", "content": turn.user})
        assert len(demo.chat_ids(messages)) == turn.prompt_tokens + number * added
        messages.append({"role": "assistant", "content": answer})


def test_a_shared_system_prompt_is_counted_in_blocks(demo: TextTokenizer) -> None:
    system = " ".join(demo.words[:50])
    shape = replace(SHAPE, system=system, first_tokens=120, turns=1)
    conversations = plan_conversations(shape, demo, concurrency=1, trial=0)
    common = len(demo.content_ids(system)) + 4  # <|bos|> <|system|> … <|end|> <|user|>
    assert expected_hit_rate(conversations, block_size=16) == common // 16 * 16 / 120
    assert expected_hit_rate(conversations, block_size=1) == common / 120


def test_plans_are_reproducible_and_fresh_for_every_trial(demo: TextTokenizer) -> None:
    varied = replace(SHAPE, turns=2, conversations=8)
    one, again = (plan_conversations(varied, demo, concurrency=2, trial=0) for _ in "ab")
    assert one == again
    other = plan_conversations(varied, demo, concurrency=2, trial=1)
    said = [{turn.user for c in plan for turn in c.turns} for plan in (one, other)]
    assert said[0].isdisjoint(said[1])
    firsts = [c.turns[0].user.split()[0] for c in one]
    assert len(set(firsts)) == len(firsts)


def test_the_planned_rate_is_tokens_of_the_turn_before_over_tokens_of_this_one(
    planned: tuple[PlannedConversation, ...],
) -> None:
    # Turns of 40, 58 and 76 tokens, answers of 4: held are 43 and 61 tokens, in blocks 32 and 48.
    assert expected_hit_rate(planned, block_size=16) == pytest.approx((32 + 48) / (40 + 58 + 76))
    # In blocks of one the first turns have two tokens in common: <|bos|> and <|user|>.
    assert expected_hit_rate(planned, block_size=1) == pytest.approx((2 + 43 + 61) / (40 + 58 + 76))


def test_history_grows_by_the_answers_that_the_server_gave(
    planned: tuple[PlannedConversation, ...],
) -> None:
    with scripted_server(text="ah ") as server:
        loop = run(server, planned)
        bodies = [body["messages"] for body in server.requests]
    assert len(bodies) == 9
    for conversation in planned:
        own = [b for b in bodies if b[0]["content"] == conversation.turns[0].user]
        assert [len(body) for body in own] == [1, 3, 5]
        for before, after in pairwise(own):
            assert after[: len(before)] == before
            assert after[-2] == {"role": "assistant", "content": "ah ah ah ah "}
        assert [b[-1]["content"] for b in own] == [turn.user for turn in conversation.turns]
    assert all(body["ignore_eos"] and body["max_tokens"] == 4 for body in server.requests)
    assert [event.error for event in events(loop)] == [None] * 9
    assert loop.skipped_turns == 0


def test_the_system_prompt_stands_first_and_other_servers_get_no_vllm_fields(
    demo: TextTokenizer,
) -> None:
    shape = replace(SHAPE, system="Be brief.", ignore_eos=False, conversations=1)
    with scripted_server() as server:
        run(server, plan_conversations(shape, demo, concurrency=1, trial=0))
    assert [b["messages"][0]["role"] for b in server.requests] == ["system"] * 3
    assert not {"ignore_eos", "skip_special_tokens"} & server.requests[0].keys()


def test_a_turn_is_due_when_the_one_before_has_ended_and_was_thought_over(
    demo: TextTokenizer,
) -> None:
    shape = replace(SHAPE, think_ms=30, conversations=2)
    with scripted_server(ttft_s=0.002) as server:
        loop = run(server, plan_conversations(shape, demo, concurrency=2, trial=0))
    found = events(loop)
    for first, second, third in (found[:3], found[3:]):
        assert first.scheduled_ns == 0
        assert second.scheduled_ns == first.ended_ns + 30 * MS
        assert third.scheduled_ns == second.ended_ns + 30 * MS
    assert all(event.sent_ns >= event.scheduled_ns for event in found)
    assert {event.prefix_id for event in found} == {"conversation-0", "conversation-1"}


def test_at_most_c_conversations_run_and_the_next_begins_when_one_is_over(
    planned: tuple[PlannedConversation, ...],
) -> None:
    slow = with_extra(planned[1], 1, ttft_s=0.05)  # two that end at once may be seen in any order
    with scripted_server(ttft_s=0.003) as server:
        loop = run(server, [planned[0], slow, *planned[2:]], slots=2)
    found = events(loop)
    assert [found[0].scheduled_ns, found[3].scheduled_ns] == [0, 0]
    assert found[2].ended_ns < found[5].ended_ns
    assert found[6].scheduled_ns == found[2].ended_ns
    last = min(found[5].ended_ns, found[-1].ended_ns)
    assert loop.drained_ns - loop.started_ns == last  # from here on fewer than 2 are in flight


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ({"status": 500}, "http_500"),
        ({"fault": "sse_error"}, "sse_error"),
        ({"fault": "reset"}, "reset"),
        ({"fault": "done_only"}, "no_tokens"),
    ],
)
def test_a_failed_answer_ends_its_conversation_and_no_other(
    planned: tuple[PlannedConversation, ...], script: dict[str, Any], word: str
) -> None:
    asked: list[int] = []
    broken = with_extra(planned[0], 1, **script)
    with scripted_server() as server:
        loop = run(server, [broken, *planned[1:]], slots=1, alive=lambda: asked.append(1))
    found = events(loop)
    assert [(event.index, event.error) for event in found] == [
        (0, None),
        (1, word),
        *[(i, None) for i in range(3, 9)],
    ]
    assert found[2].scheduled_ns == found[1].ended_ns  # the slot goes on with the next
    assert loop.skipped_turns == 1
    assert asked == [1]


def test_an_engine_that_is_gone_ends_the_run_and_keeps_what_was_sent(
    planned: tuple[PlannedConversation, ...],
) -> None:
    def gone() -> None:
        raise EngineLostError("the engine is gone")

    slow = with_extra(planned[1], 0, ttft_s=30.0)
    with scripted_server() as server:
        loop = run(server, [with_extra(planned[0], 1, status=503), slow], alive=gone)
    assert loop.lost  # type: ignore[attr-defined]
    assert [(e.index, e.error) for e in events(loop)] == [
        (0, None),
        (1, "http_503"),
        (3, "aborted"),
    ]
    assert loop.drained_ns > 0


def test_a_cancelled_run_closes_what_was_open(planned: tuple[PlannedConversation, ...]) -> None:
    loops: list[Conversations] = []
    seen = threading.Event()

    async def go(url: str) -> None:
        async with StreamClient(url, "scripted") as client:
            loops.append(Conversations(client, slots=3, alive=lambda: None))
            task = asyncio.create_task(loops[0].run(planned))
            await asyncio.sleep(0.05)
            seen.set()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    with scripted_server(ttft_s=30.0) as server:
        run_async(go(server.url))
    assert seen.is_set()
    assert [event.error for event in events(loops[0])] == ["aborted"] * 3


def test_nothing_to_send_is_a_run_without_events() -> None:
    with scripted_server() as server:
        loop = run(server, [])
    assert loop.sent == []
    assert loop.drained_ns >= loop.started_ns > 0


def test_a_template_that_fails_is_named(tmp_path: Path) -> None:
    """A sandboxed ``range`` of this length is an OverflowError."""
    folder = write_tokenizer(tmp_path, template="{% for i in range(10**9) %}a{% endfor %}")
    tokenizer = load_text_tokenizer(folder)
    with pytest.raises(
        UsageError, match=r"the chat template does not take .*\(OverflowError: .*; leave out"
    ):
        tokenizer.chat_ids([{"role": "user", "content": "a"}])
