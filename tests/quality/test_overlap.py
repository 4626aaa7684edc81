"""Overlap of prose, against published and hand-counted values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.quality.scoring import grade, longest_common_subsequence, right

LETTERS = st.lists(st.sampled_from("abcd"), max_size=12)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("police kill the gunman", 3 / 4),
        ("the gunman kill police", 2 / 4),
        ("the gunman police killed", 2 / 4),
    ],
)
def test_rouge_l_is_the_worked_example_of_lin_2004(answer: str, score: float) -> None:
    assert grade(answer, "police killed the gunman", "rouge_l") == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "expected", "score"),
    [
        ("It's HERE.", "it s here", 1.0),  # words are runs of letters and digits
        ("a b", "a x b y", 2 * 1.0 * 0.5 / 1.5),  # P = 2/2, R = 2/4
        ("", "a", 0.0),
        ("x", "a", 0.0),
        ("straße", "STRASSE", 1.0),
        ("b a", ["a b c", "b a"], 1.0),
    ],
)
def test_rouge_l_by_hand(answer: str, expected: object, score: float) -> None:
    assert grade(answer, expected, "rouge_l") == pytest.approx(score)


@given(LETTERS, LETTERS)
def test_the_common_subsequence_is_the_tables(left: list[str], right: list[str]) -> None:
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            longest = max(table[i][j + 1], table[i + 1][j])
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else longest
    assert longest_common_subsequence(left, right) == table[-1][-1]


def test_half_a_grade_is_right() -> None:
    assert right("the gunman kill police", "police killed the gunman", "rouge_l")
    assert not right("the man", "police killed the old gunman", "rouge_l")
