"""Tool calls in the forms that models write."""

import json
from typing import Any

import pytest

from whet.quality.scoring import refuse_calls, right

CALL = {"name": "track", "arguments": {"order": "A-12345", "days": 2}}
ARGUMENTS = json.dumps(CALL["arguments"])
OPENAI = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": ARGUMENTS}}


def judged(answer: str, expected: Any = CALL) -> bool:
    return right(answer, expected, "tool_call")


@pytest.mark.parametrize(
    "answer",
    [
        f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>",
        f"I look it up.\n<tool_call>{json.dumps(CALL)}",
        f'{{"name": "track", "parameters": {ARGUMENTS}}}',
        f'<|python_tag|>{{"name": "track", "parameters": {ARGUMENTS}}}',
        f"[TOOL_CALLS] [{json.dumps(CALL)}]",
        f"[{json.dumps(CALL)}]",
        json.dumps([OPENAI]),
        json.dumps({"role": "assistant", "content": None, "tool_calls": [OPENAI]}),
        json.dumps({"name": "track", "arguments": ARGUMENTS}),
        '{"arguments": {"days": 2.0, "order": "A-12345"}, "name": "track"}',
    ],
)
def test_every_form_is_read(answer: str) -> None:
    assert judged(answer)
    assert judged(answer, {"arguments": CALL["arguments"]})


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "track A-12345",
        ARGUMENTS,  # a name was asked for
        json.dumps(CALL | {"name": "trace"}),
        '{"name": "track", "arguments": {"order": "A-12345", "days": "2"}}',
        '{"name": "track", "arguments": {"order": "A-12345"}}',
        '{"name": "track", "arguments": "days 2"}',
        f"{json.dumps(CALL)} done",
        f"<tool_call>{json.dumps(CALL)[:-1]}</tool_call>",
        f"<tool_call>{json.dumps(CALL)}</tool_call>" * 2,
        "<tool_call>3</tool_call>",
        "[TOOL_CALLS]",
        '{"tool_calls": 3}',
        ";",
        "[" * 100_000,
    ],
)
def test_another_call_is_wrong_and_never_a_crash(answer: str) -> None:
    assert not judged(answer)


def test_bare_arguments_suffice_where_no_name_is_expected() -> None:
    assert judged(ARGUMENTS, {"arguments": CALL["arguments"]})
    assert not judged('{"order": "A-12345"}', {"arguments": CALL["arguments"]})


def test_arguments_may_be_called_name_and_arguments() -> None:
    inner = {"name": "Ada", "arguments": {"x": 1}}
    assert judged(json.dumps(inner), {"arguments": inner})
    assert judged('{"name": "Ada"}', {"arguments": {"name": "Ada"}})


def test_a_marked_call_without_arguments_has_none() -> None:
    assert judged('<tool_call>{"name": "now"}</tool_call>', {"name": "now", "arguments": {}})


@pytest.mark.parametrize(
    "form",
    [
        "<tool_call>{}</tool_call>\n<tool_call>{}</tool_call>",
        "[TOOL_CALLS] [{}, {}]",
        "[TOOL_CALLS][{}][TOOL_CALLS][{}]",
        "<|python_tag|>{}; {}",
        "{}; {}",
        "[{}, {}]",
    ],
)
def test_several_calls_are_compared_in_order(form: str) -> None:
    first, second = CALL, {"name": "refund", "arguments": {}}
    answer = form.replace("{}", "%s") % (json.dumps(first), json.dumps(second))
    assert judged(answer, [first, second])
    assert not judged(answer, [second, first])
    assert not judged(answer, first)


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ("{", "Expecting"),
        ([], "empty list"),
        ({"name": "track"}, "a call is"),
        ({"name": 3, "arguments": {}}, "a call is"),
        ({"arguments": [1]}, "a call is"),
        ("track", "Expecting"),
    ],
)
def test_what_describes_no_call_is_refused(expected: Any, said: str) -> None:
    assert said in (refuse_calls(expected) or "")


def test_an_expected_call_may_be_text() -> None:
    assert refuse_calls(json.dumps(CALL)) is None
    assert judged(json.dumps(CALL), json.dumps(CALL))
