"""A request in the form in which those that should share do."""

from __future__ import annotations

import json

from tests.prefix.planted import tool
from tests.prefix.scenarios import BODY, NAMES
from whet.core.records import LoggedRequest
from whet.prefix.canon import Canoniser
from whet.prefix.learn import Rules, learn


def chat(system: str, user: str = "Hello?", **more: object) -> LoggedRequest:
    messages = ({"role": "system", "content": system}, {"role": "user", "content": user})
    return LoggedRequest(place="", messages=messages, **more)  # type: ignore[arg-type]


def dated(day: int) -> LoggedRequest:
    return chat(f"Today is 2026-11-{day:02d}.\n{BODY}", f"Question {day * 7919}?")


def test_what_varies_goes_to_the_end_and_leaves_a_mark() -> None:
    canoniser = Canoniser(learn(dated(day) for day in range(1, 9)))
    mended = canoniser.apply(dated(9)).mended.messages
    assert mended is not None
    assert mended[0]["content"] == f"Today is [date 1].\n{BODY}"
    assert mended[1]["content"] == f"Question {9 * 7919}?\n\n[date 1]: 2026-11-09"


def test_pieces_differ_raw_and_agree_in_their_one_form() -> None:
    canoniser = Canoniser(learn(dated(day) for day in range(1, 9)))
    one, two = canoniser.apply(dated(1)), canoniser.apply(dated(2))
    differ = [a.kind for a, b in zip(one.pieces, two.pieces, strict=True) if a.raw != b.raw]
    assert differ == ["date", ""]  # the date, and the question
    differ = [a.kind for a, b in zip(one.pieces, two.pieces, strict=True) if a.canon != b.canon]
    assert differ == [""]


def test_without_rules_a_request_is_left_as_it_is() -> None:
    for request in (
        dated(1),
        LoggedRequest(place="", prompt="a  b 2026-01-01"),
        LoggedRequest(place="", prompt_token_ids=(1, 2)),
        LoggedRequest(place="", messages=()),
    ):
        assert Canoniser(Rules()).apply(request).mended is request


def test_tools_get_one_order_of_names_and_keys_only_where_it_varies() -> None:
    tools = tuple(tool(each) for each in NAMES)
    rows = [chat(BODY, tools=tools)] * 4
    assert Canoniser(learn(rows)).apply(rows[0]).mended is rows[0]
    rows += [chat(BODY, tools=tools[::-1])] * 4
    canoniser = Canoniser(learn(rows))
    told = {json.dumps(canoniser.apply(row).mended.tools) for row in rows}
    assert len(told) == 1
