"""The paced server: what it says it did is what a client saw."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from benchmarks.chunk_server import PROMPT_TOKENS, Pace, Served
from benchmarks.instrument_loop import stamps
from benchmarks.instrument_truth import paced_server, reset, truth

from whet.client import CompletionCall, HttpError, StreamClient, get_text, post_json, run_async
from whet.core.records import RequestEvent


def _ask(url: str, calls: Sequence[CompletionCall]) -> list[RequestEvent]:
    async def ask() -> list[RequestEvent]:
        async with StreamClient(url, "paced") as client:
            return [await client.complete(call) for call in calls]

    return run_async(ask())


def _check(event: RequestEvent, one: Served, tokens: int) -> None:
    written = stamps(event.text)
    assert event.error is None
    assert (event.output_tokens, event.prompt_tokens) == (tokens, PROMPT_TOKENS)
    assert event.finish_reason == "length"
    assert len(written) == len(event.chunk_ns) == one.pieces == one.asked == tokens
    assert (written[0], written[-1]) == (one.first_ns, one.last_ns)
    assert event.sent_ns < one.read_ns < written[0] < event.chunk_ns[0]
    assert all(before < after for before, after in pairwise(written))


def test_both_forms_give_their_own_clock_and_the_truth_agrees() -> None:
    with paced_server(Pace(ttft_s=0.02, gap_s=0.002, tokens=9)) as url:
        text = CompletionCall(prompt="a", max_tokens=5)
        chat = CompletionCall(messages=({"role": "user", "content": "a"},), max_tokens=50)
        events = _ask(url, [text, chat])
        served = truth(url)
        assert len(served) == 2
        _check(events[0], served[0], 5)
        _check(events[1], served[1], 9)  # never more than the server's own
        for one in served:
            assert one.first_ns is not None
            assert one.first_ns - one.read_ns >= 18e6  # its timer rounds to milliseconds
        reset(url)
        assert truth(url) == []


def test_without_a_gap_every_piece_comes_and_counts() -> None:
    with paced_server(Pace(tokens=3000)) as url:
        (event,) = _ask(url, [CompletionCall(prompt="a", max_tokens=3000)])
        (one,) = truth(url)
    assert event.error is None
    assert (event.output_tokens, len(event.chunk_ns), one.pieces) == (3000, 3000, 3000)


def test_it_answers_what_tools_ask_first_and_404_to_the_rest() -> None:
    with paced_server(Pace()) as url:
        assert '"paced"' in get_text(url, "/v1/models")
        assert get_text(url, "/health") == "{}"
        with pytest.raises(HttpError) as missing:
            get_text(url, "/metrics")
        assert missing.value.status == 404
        with pytest.raises(HttpError) as whole:
            post_json(url, "/v1/completions", {"prompt": "a"})
        assert whole.value.status == 501
