"""What holds of every answer: however it is cut, whatever it is, and what follows it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.client.fed import reusable, verdict

EVENTS = (
    {"choices": [{"index": 0, "text": "a"}]},
    {"choices": [{"index": 0, "delta": {"content": "é漢🙂"}}]},
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"name": "f"}}]}}]},
    {"choices": [{"index": 0, "text": "z", "finish_reason": "length"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}},
    {"error": {"message": "out of memory"}},
    {"detail": "busy"},
)
LINES = st.one_of(
    st.sampled_from(EVENTS).map(lambda event: f"data: {json.dumps(event, ensure_ascii=False)}"),
    st.sampled_from(
        ["data: [DONE]", "", ": ping", "event: ping", "event: error", "data:", "\ufeff"]
    ),
    st.text(max_size=8),
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
INTERIM = st.sampled_from(
    [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Hints\r\nA: b\r\n\r\n"]
)
STATUS = st.sampled_from([b"200 OK", b"400 Bad", b"503 Busy", b"204 None", b"307 Go"])
KINDS = st.sampled_from(
    [b"text/event-stream", b"application/json", b"TEXT/Event-Stream; charset=x"]
)
CUTS = st.lists(st.integers(0, 2000), max_size=12)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """A whole answer with a length, in chunks, or up to the end of the connection."""
    end = draw(ENDS)
    body = "".join(f"{line}{end}" for line in draw(st.lists(LINES, max_size=12))).encode(
        errors="replace"
    )
    head = draw(INTERIM) + b"HTTP/1.1 %b\r\nContent-Type: %b\r\n" % (draw(STATUS), draw(KINDS))
    form = draw(st.sampled_from(["length", "chunks", "none"]))
    if form == "length":
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    if form == "none":
        return head + b"\r\n" + body
    size = draw(st.integers(1, 60))
    chunks = (body[at : at + size] for at in range(0, len(body), size))
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


@given(answers(), CUTS, st.booleans(), st.integers(0, 2000))
def test_the_network_cuts_where_it_likes(
    data: bytes, cuts: list[int], closed: bool, length: int
) -> None:
    for part in (data, data[:length]):
        assert verdict(part, cuts, closed=closed) == verdict(part, (), closed=closed)
        assert verdict(part, range(len(part)), closed=closed) == verdict(part, (), closed=closed)


@given(st.binary(max_size=200), answers(), CUTS, st.booleans())
def test_no_input_raises(junk: bytes, data: bytes, cuts: list[int], closed: bool) -> None:
    for each in (junk, data + junk, junk + data, data[: len(data) // 2] + junk):
        verdict(each, cuts, closed=closed)


@given(answers(), st.binary(min_size=1, max_size=40), CUTS)
def test_a_connection_with_something_unread_is_not_used_again(
    data: bytes, junk: bytes, cuts: list[int]
) -> None:
    if junk.strip(b"\r\n"):  # an empty line between two answers is allowed
        assert not reusable(data + junk, ())
        assert not reusable(data + junk, cuts)
        assert not reusable(data + junk, [len(data)])
