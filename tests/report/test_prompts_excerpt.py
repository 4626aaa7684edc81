"""Text of prompts as it is shown: signs for what cannot be seen, no secrets, one line."""

from __future__ import annotations

import pytest

from tests.report.prompts_factory import excerpt
from whet.report.prompts_excerpt import hide_secrets, shown_excerpt, visible

KEY = "sk-abcdefgh12345678"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "a b"),
        ("a  \nb", "a··⏎b"),
        ("a\tb\r\n", "a→b␍⏎"),
        ("\x1b[31m", "␛[31m"),
        ("\u00a0\u200b\ufeff", "⍽⟨U+200B⟩⟨U+FEFF⟩"),
        ("\u202eabc\ufffe\ud800", "⟨U+202E⟩abc⟨U+FFFE⟩⟨U+D800⟩"),
        ("你好 👩\u200d💻", "你好 👩\u200d💻"),
    ],
)
def test_what_cannot_be_seen_gets_a_sign(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_where_blanks_matter_each_has_a_sign() -> None:
    assert visible("a b\u200d", blanks=True) == "a·b⟨U+200D⟩"


def test_an_excerpt_is_one_line_with_both_texts() -> None:
    found = shown_excerpt(excerpt(), "date")
    assert found.title == "log.jsonl:12 and log.jsonl:3 differ after 21 tokens"
    assert found.line == "…You help. Today is [2026-11-20 | 2026-11-19]. Answer⏎briefly…"


def test_blanks_at_the_difference_are_seen_where_white_space_is_the_cause() -> None:
    found = shown_excerpt(excerpt(before="Hi  ", here=" ", there="", after=" \n"), "whitespace")
    assert found.line == "…Hi··[· | (nothing)]·⏎…"


def test_long_parts_are_cut_around_the_difference() -> None:
    long = excerpt(before="b" * 50 + "B", here="h" * 9, there="t", after="A" + "a" * 50)
    assert shown_excerpt(long, "id", room=4).line == "…bbbB[hhhh… | t]Aaaa…"


def test_redacted_says_so_and_nothing_else() -> None:
    found = shown_excerpt(excerpt(before=None, here=None, there=None, after=None), "date")
    assert (found.line, found.before, found.redacted) == ("(redacted)", "", True)


@pytest.mark.parametrize("cut", range(len(KEY) + 1))
def test_a_secret_that_runs_over_the_difference_is_not_shown(cut: int) -> None:
    parts = hide_secrets(f"key {KEY[:cut]}", KEY[cut:], f"{KEY[cut:]}Z", " end")
    assert not any(KEY[-6:] in part for part in parts)
    before, here, there, after = parts
    assert before + here + after == "key [redacted] end"
    assert before + there == "key [redacted]"


def test_texts_without_a_secret_stay_as_they_are() -> None:
    assert hide_secrets("a", "b", "c", "d") == ("a", "b", "c", "d")
