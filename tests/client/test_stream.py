"""What a healthy stream becomes."""

from __future__ import annotations

from tests.scripted_server import scripted_server
from whet.client import CompletionCall, StreamClient, run_async
from whet.client.sse import read_stream
from whet.core.records.load import RequestEvent

PIECE = b'data: {"choices":[{"index":0,"text":"%b"}]}\n\n'


def complete(url: str, *calls: CompletionCall) -> list[RequestEvent]:
    async def go() -> list[RequestEvent]:
        async with StreamClient(url, "scripted", timeout_s=5) as client:
            return [await client.complete(call) for call in calls]

    return run_async(go())


def test_several_tokens_in_a_piece_are_counted_by_usage() -> None:
    with scripted_server(tokens_per_chunk=3, cached_tokens=2) as server:
        call = CompletionCall(prompt_token_ids=(5, 6, 7), max_tokens=8)
        (event,) = complete(server.url, call)
    assert (event.output_tokens, len(event.chunk_ns), event.error) == (8, 3, None)
    assert (event.prompt_tokens, event.cached_tokens, event.finish_reason) == (3, 2, "length")
    assert event.scheduled_ns <= event.sent_ns <= event.chunk_ns[0] <= event.ended_ns


def test_a_server_without_usage_gives_none_and_not_a_count_of_pieces() -> None:
    with scripted_server(usage=False) as server:
        (event,) = complete(server.url, CompletionCall(prompt="a"))
    assert event.error is None
    assert event.output_tokens is None


def test_one_socket_serves_request_after_request() -> None:
    with scripted_server() as server:
        complete(server.url, *[CompletionCall(prompt="a")] * 5)
        assert server.connections == 1


def test_a_kept_socket_that_the_server_closed_is_replaced_not_reported() -> None:
    with scripted_server(fault="close_after") as server:
        events = complete(server.url, *[CompletionCall(prompt="a")] * 3)
        assert [event.error for event in events] == [None] * 3


def test_a_character_cut_in_two_by_the_network_is_whole_again() -> None:
    with scripted_server(fault="split_utf8") as server:
        (event,) = complete(server.url, CompletionCall(prompt="a", max_tokens=3))
    assert event.text == "t é😀t t "
    with scripted_server(fault="invalid_utf8") as server:
        (event,) = complete(server.url, CompletionCall(prompt="a", max_tokens=3))
    assert event.text == "t \ufffd\ufffdt t "


def test_a_piece_has_the_time_of_the_read_that_ended_its_line() -> None:
    first, second = PIECE % b"a", PIECE % b"b"
    parts = [first[:9], first[9:] + second, b"data: [DO", b"NE]\n\n"]
    outcome = read_stream([100, 200, 300, 400], parts)
    assert (outcome.chunk_ns, outcome.texts, outcome.done) == ([200, 200], ["a", "b"], True)


def test_pieces_without_output_are_no_first_token() -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\r\n\r\n'
    thought = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\r\n\r\n'
    ping = b": ping\n\n"
    outcome = read_stream([1, 2, 3], [role, ping, thought])
    assert (outcome.chunk_ns, outcome.texts) == ([3], ["hm"])


def test_an_answer_that_the_engine_gave_up_is_an_error() -> None:
    gone = b'data: {"choices":[{"text":"","finish_reason":"abort"}]}\n\ndata: [DONE]\n\n'
    assert read_stream([1, 2], [PIECE % b"a", gone]).error == "sse_error"


def test_nothing_after_done_counts() -> None:
    outcome = read_stream([1, 2], [PIECE % b"a" + b"data: [DONE]\n\n", PIECE % b"late"])
    assert outcome.texts == ["a"]
