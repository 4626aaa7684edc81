"""What looks like a date, an id, a version or an address, and what does not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.prompts import lines as masks
from whet.prompts.lines import find_spans

UUID = "3f2b8c1e-0000-4bbb-8ccc-1234567890ab"

DATES = [
    "2026-11-02",
    "2026/11/02",
    "02/11/2026",
    "2.11.2026",
    "02-11-2026",
    "11/2/26",
    "2026年11月2日",
    "2 November 2026",
    "2nd of November 2026",
    "2 Nov. 2026",
    "2 November",
    "November 2",
    "Nov. 2nd",
    "November 2, 2026",
    "Nov 2nd, 2026",
    "November 2026",
    "May 5",
    "02/Nov/2026:09:00:00 +0000",
    "2-Nov-2026",
    "Monday, 2 November 2026 at 14:30",
    "Mon, 02 Nov 2026 09:00:00 GMT",
    "Mon Nov  2 09:00:00 UTC 2026",
    "Thursday, November 5th, 2026, 9:05 pm CET",
    "2026-11-02T09:00:00Z",
    "2026-11-02 09:00:00.123456+01:00",
    "2026-11-02 at 9:00",
    "20261102T090000Z",
    "14:30",
    "9:05:07",
    "23:59:59,999",
    "9:05 a.m.",
    "11:05PM EST",
    "9 am",
    "12 pm UTC",
    "Thu 14:30",
    "14:30 UTC+2",
    "14:30 GMT+01:00",
    "14:30 +0100",
]
IDS = [
    UUID,
    UUID.upper(),
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",  # a ULID
    "2ArTgHv0RsWjFqYzXcVbNmKlP3d",  # a KSUID
    "d41d8cd98f00b204e9800998ecf8427e",
    "4bf92f3577b34da6",  # a span of a trace
    "deadbeef01",
    "0xDEADBEEF",
    "req_8f3k2",
    "call_Ab12Cd",
    "chatcmpl-9abcDEF",
    "toolu_01A09q90qw90lq917835",
    "TICKET-20417",
    "INV-2026-00417",
    "ORD-4821",
    "user_12345",
    "20417",
    "#4711",
]
VERSIONS = ["2.14.3", "v2.14.3", "v2.1", "1.2.3.4", "v1.2.3-rc.1", "1.0.0+b5", "v1.2.3-rc.1+b5"]
NAMES = ["bob@example.com", "alice.brown+x@mail.example.co.uk", "a_b-c@x-y.io"]
ALL = [
    *((text, "date") for text in DATES),
    *((text, "id") for text in IDS),
    *((text, "version") for text in VERSIONS),
    *((text, "name") for text in NAMES),
]

NOTHING = [
    "",
    "It costs 1,234.50 or 3.5 or 12345.67 EUR, 1.23456 less, 99 in all, 50%.",
    "gpt-4o, gpt-4-0613, Llama-3, Llama-3.1-8B-Instruct, Qwen2-7B, text-davinci-003",
    "top-5, UTF-8, UTF-16LE, ISO-8859-1, ISO-27001, ISO 27001, RFC-2616, SHA-256,",
    "COVID-19, mid-2024",
    "May I march? The cat sat. Sun, Sat, wed. Mar. Dec. August.",
    "A phone: +1 415 555 0132, (555) 010-4477, 0171 5550 12.",  # it may well be the firm's own
    "Open Monday to Friday evening, a workday, midday, Sundays.",
    "deadbeef facade decade, base64 utf8 x86_64 s3 r2d2, word_word_12, max_tokens_4096",
    "16:9 and 99:99 and 12:345 and ab:12:34:56:cd and localhost:8080",
    "foo@bar and @home and a@",
    "In 2026 there were 1234 of them; section 3.5, figure 12.",
]


def found(text: str) -> list[tuple[str, str]]:
    return [(text[span.start : span.end], span.kind) for span in find_spans(text)]


@pytest.mark.parametrize(("text", "kind"), ALL)
def test_what_changes_is_found_whole(text: str, kind: str) -> None:
    assert found(text) == [(text, kind)]
    assert found(f"The words before {text}, and those after.") == [(text, kind)]
    assert found(f"({text})\n") == [(text, kind)]
    assert found(f"{'a word ' * 40}{text}{' a word' * 40}") == [(text, kind)]


@pytest.mark.parametrize("text", ["2026-11-02", "14:30", "20417", UUID, "v2.1", "bob@example.com"])
def test_what_changes_is_found_between_letters_of_other_scripts(text: str) -> None:
    assert [each for each, _ in found(f"今天是{text}。")] == [text]


@pytest.mark.parametrize("text", NOTHING)
def test_what_does_not_change_is_left(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Today is Monday.", ["Monday"]),
        ("Today: Friday", ["Friday"]),
        ("(Wednesday)", ["Wednesday"]),
        ("Monday, 2 November 2026; Tuesday", ["Monday, 2 November 2026", "Tuesday"]),
        ("Tuesday, then Monday, 2 Nov", ["Tuesday", "Monday, 2 Nov"]),
        ("from 9:00-17:30", ["9:00-17:30"]),
        ("Version 2.14 of it", ["2.14"]),
        ("claude-3-5-sonnet-20241022", ["sonnet-20241022"]),
        (f"{UUID} {UUID}", [UUID, UUID]),
        ("req_8f3k2, req_8f3k3", ["req_8f3k2", "req_8f3k3"]),
        ("+14155550132", ["14155550132"]),
        ("3:16", ["3:16"]),  # a verse or a time: only one of them changes
    ],
)
def test_what_is_decided_by_what_stands_around(text: str, expected: list[str]) -> None:
    assert [each for each, _ in found(text)] == expected


word = st.sampled_from([*(text for text, _ in ALL), "Monday", "a", "the", ",", "-", "@", "1", "_"])


@given(st.lists(word, max_size=12), st.sampled_from(["", " ", "\n", "  word " * 12]))
def test_spans_are_in_order_and_none_overlap(words: list[str], between: str) -> None:
    text = between.join(words)
    spans = find_spans(text)
    ends = [0, *(span.end for span in spans)]
    assert all(end <= span.start < span.end for end, span in zip(ends, spans, strict=False))
    assert ends[-1] <= len(text)


@given(st.lists(word, max_size=12), st.integers(1, 3))
def test_looking_around_hints_alone_finds_the_same(words: list[str], blanks: int) -> None:
    """What stands far from any digit is not looked at: the whole text has nothing more."""
    text = (" " * blanks + "word " * 20).join(words)
    with pytest.MonkeyPatch.context() as patch:
        near = find_spans(text)
        patch.setattr(masks, "_windows", lambda text: [(0, len(text))])
        assert find_spans(text) == near


def test_prose_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    class Counting:
        def finditer(self, text: str, start: int, end: int) -> list[re.Match[str]]:
            looked.append(min(end, len(text)) - start)
            return []

    monkeypatch.setattr(masks, "_ANY", Counting())
    prose = "Could you tell me on Sunday evening what the weather may be like in March? " * 20
    find_spans(prose)
    assert looked == []
    find_spans(f"{prose} Order 17 is late. {prose}")
    assert sum(looked) < 200


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "unit",
    ["1a-", "a-1111", "a_1111_", "a.", "x@", "a@b.", "1.", "v1.", "12:", "0x1", "a", "1", "f1-",
     "Mon 1 ", "Monday", "day", "Nov 2 ", "2/", "#12", "@", "-", "1111-11-"],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", "_", "!"])
def test_a_long_unbroken_word_takes_no_longer_than_its_length(unit: str, end: str) -> None:
    # With time that grows by the square, 24,000 characters took 3 s: these would take minutes.
    find_spans(unit * (120_000 // len(unit)) + end)
