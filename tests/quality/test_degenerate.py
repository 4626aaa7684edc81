"""Text that no healthy model writes, and text that only looks like it."""

import random

import pytest

from whet.quality import degenerate
from whet.quality.degenerate import find_degenerate
from whet.quality.language import read_language


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


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("\n", "empty"),
        ("!" * 64, "one mark"),
        ("\ufffd" * 20 + "abc", "unreadable"),
        ("We ship it. " + "I am sorry. " * 12, "loop"),
        ("Der rote Stuhl kommt leider erst am Freitag aus Porto", "language"),
    ],
)
def test_each_kind_is_told_apart(text: str, kind: str) -> None:
    english = read_language(["the red lamp is on the way and comes from Porto on Friday"] * 9)
    found = find_degenerate(text, english)
    assert found is not None
    assert found.kind == kind


def test_the_language_is_looked_at_only_where_it_is_known() -> None:
    assert find_degenerate("Der rote Stuhl kommt leider erst am Freitag aus Porto") is None


def slow_loop(text: str) -> bool:
    """The definition, tried for every unit: no short cut."""
    for size in range(1, min(160, len(text) // 4) + 1):
        length = size
        while length < len(text) and text[-1 - length] == text[-1 - length + size]:
            length += 1
        if length >= max(48, 4 * size) and 2 * length >= len(text):
            return True
    return False


def test_the_short_cut_finds_what_trying_every_unit_finds() -> None:
    draw = random.Random(7)
    told = []
    for _ in range(400):
        unit = "".join(draw.choice("ab ") for _ in range(draw.randrange(1, 200)))
        head = "".join(draw.choice("abc ") for _ in range(draw.randrange(0, 120)))
        text = (head + unit * draw.randrange(1, 9) + unit[: draw.randrange(len(unit))]).strip()
        if len(set(text) - {" "}) < 2:
            continue
        found = find_degenerate(text)
        assert (found is not None) == slow_loop(text), text
        told.append(found is not None)
    assert 100 < sum(told) < 300


@pytest.mark.parametrize("size", [1, 12, 160])
def test_a_loop_is_one_from_four_whole_turns_on(size: int) -> None:
    unit = "".join(chr(0x4E00 + at) for at in range(size))
    turns = max(4, -(-48 // size))
    head = "x"  # else a single character is one mark
    assert find_degenerate(head + unit * turns) is not None
    assert find_degenerate(head + (unit * turns)[1:]) is None
