"""Text of messages, white space, and JSON in a text."""

from __future__ import annotations

from typing import Any

import pytest

from whet.prompts.lines import common_length, message_text, tidy, tool_name
from whet.requests import part_text


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


@pytest.mark.parametrize(
    ("text", "tidied"),
    [
        ("a  b \t c", "a b c"),
        ("a \nb\t\n", "a\nb\n"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("a\n\n\n\nb", "a\n\nb"),
        ("x:\n    y  z", "x:\n    y z"),
        ("a\u00a0b\u200bc\ufeff", "a bc"),
        ("a ", "a"),
    ],
)
def test_white_space_has_one_form_and_indentation_stays(text: str, tidied: str) -> None:
    assert tidy(text) == tidied
    assert tidy(tidied) == tidied


@pytest.mark.parametrize(
    ("one", "two", "length"), [("", "a", 0), ("abc", "abd", 2), ("a", "ab", 1)]
)
def test_the_common_prefix(one: str, two: str, length: int) -> None:
    assert common_length(one, two) == length
