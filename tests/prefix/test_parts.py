"""Which messages may hold instructions, which are examples, which are the rest."""

from __future__ import annotations

from typing import Any

import pytest

from whet.core.records import LoggedRequest
from whet.prefix.parts import message_text, part_text, split_parts, tool_name


def parts_of(roles: str) -> tuple[str, list[str], str]:
    """The roles of head, pairs and rest, by their first letters."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "d": "developer"}
    messages = tuple({"role": names[each], "content": each} for each in roles)
    found = split_parts(LoggedRequest(place="", messages=messages))
    head, rest = ("".join(text for _, text in row) for row in (found.head, found.rest))
    return head, ["".join(text for _, text in pair) for pair in found.pairs], rest


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("su", ("su", [], "")),
        ("suu", ("suu", [], "")),
        ("u", ("u", [], "")),
        ("suau", ("s", ["ua"], "u")),
        ("suauau", ("s", ["ua", "ua"], "u")),
        ("duauau", ("d", ["ua", "ua"], "u")),
        ("suuau", ("su", ["ua"], "u")),
        ("sua", ("s", ["ua"], "")),
        ("sau", ("s", [], "au")),
        ("au", ("", [], "au")),
        ("suatau", ("s", ["ua"], "tau")),
        ("suausua", ("s", ["ua"], "usua")),
    ],
)
def test_messages_are_parted(roles: str, expected: tuple[str, list[str], str]) -> None:
    assert parts_of(roles) == expected


def test_nothing_is_lost_and_tools_stay() -> None:
    tools = ({"name": "a"},)
    messages = ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"})
    for row in (messages, messages[:1]):
        found = split_parts(LoggedRequest(place="", messages=row, tools=tools))
        assert found.tools == tools
        told = [*found.head, *(each for pair in found.pairs for each in pair), *found.rest]
        assert told == [(each["role"], each["content"]) for each in row]


def test_a_plain_prompt_is_one_message_and_token_ids_are_none() -> None:
    assert split_parts(LoggedRequest(place="", prompt="x")).head == (("prompt", "x"),)
    assert split_parts(LoggedRequest(place="", prompt="")).head == (("prompt", ""),)
    assert split_parts(LoggedRequest(place="", prompt_token_ids=(1,))).head == ()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", {"text": "b"}, {"type": "text", "text": ""}], "a\nb"),
        ([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "b"}],
         "[media]\nb"),
        ([{"type": "refusal", "refusal": "No."}], "No."),
        ([{"type": "input_audio", "text": "a caption"}], "[media]"),
        ([{"type": "text", "text": None}, 3], "[media]\n[media]"),
    ],
)  # fmt: skip
def test_the_text_of_a_message(content: Any, text: str) -> None:
    assert message_text({"role": "user", "content": content}) == text


def test_calls_of_tools_are_text_too() -> None:
    calls = [{"function": {"name": "caf\u00e9", "arguments": "{}"}}]
    text = message_text({"role": "assistant", "content": None, "tool_calls": calls})
    assert text == '[{"function": {"name": "caf\u00e9", "arguments": "{}"}}]'
    assert message_text({"role": "assistant", "content": "x", "tool_calls": []}) == "x"


def test_a_part_without_text_is_none() -> None:
    assert part_text({"type": "image_url"}) is None
    assert part_text("x") == "x"


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ({"type": "function", "function": {"name": "find"}}, "find"),
        ({"name": "find", "input_schema": {}}, "find"),
        ({"type": "web_search"}, ""),
        ({"function": "find", "name": "other"}, "other"),
        ({"function": {"name": None}}, ""),
    ],
)
def test_the_name_of_a_tool(tool: dict[str, Any], name: str) -> None:
    assert tool_name(tool) == name
