"""Text that no healthy model writes, and text that only looks like it."""

import pytest

from whet.quality import degenerate


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n ",
        "!" * 64,
        "!!!!!!!! !!!!!!!!",
        "the " * 40,
        "We ship it. " + "I am sorry to hear that. " * 12,
        "answer: " + "0" * 100,
        "\ufffd" * 20 + "abc",
    ],
)
def test_garbage_is_named(text: str) -> None:
    assert degenerate(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "no",
        "1111",
        "The red lamp costs 19.90 EUR and ships in three days from Porto.",
        '{"items": [{"n": 0}, {"n": 0}, {"n": 0}, {"n": 0}, {"n": 0}, {"n": 0}], "total": 0}',
        "A table\n" + "-" * 60 + "\nlamp | 19.90 EUR | three days\nchair | 49.90 EUR | five days\n"
        "and a good deal of prose that follows it, so that the line is not most of the text",
        "ha ha ha, very funny",
    ],
)
def test_an_answer_is_left_alone(text: str) -> None:
    assert degenerate(text) is None


def test_the_loop_and_its_length_are_told() -> None:
    assert degenerate("So: " + "yes, " * 30) == "'yes,' repeated 30 times"
