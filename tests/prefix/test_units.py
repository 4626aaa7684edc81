"""Units, their one form of white space, and JSON that stands in a text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.prefix import units
from whet.prefix.forms import json_pieces
from whet.prefix.units import (
    chain,
    find_json,
    hash_text,
    literal,
    masked,
    slot,
    sorted_json,
    split_slots,
    split_units,
    tidy,
)

texts = st.text(alphabet="ab \t\n\r\u00a0\u200b\u3000{}1-", max_size=40)


@given(texts)
def test_units_joined_are_the_text(text: str) -> None:
    row = split_units(text)
    assert "".join(row) == text
    assert all(row)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("one", ["one"]),
        ("one\ntwo\n", ["one\n", "two\n"]),
        ("one\n\n\ntwo", ["one\n\n\n", "two"]),
        ("- a\n  b\n- c", ["- a\n  b\n", "- c"]),
        ("\n\none", ["\n\n", "one"]),
        ("one \n two", ["one \n two"]),
    ],
)
def test_a_unit_ends_with_a_line_end_before_a_character(text: str, expected: list[str]) -> None:
    assert split_units(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("as it is", "as it is"),
        ("two  blanks", "two blanks"),
        ("a\tb\u00a0c \t d", "a b c d"),
        ("end \nend\t\nend \u00a0\nend", "end\nend\nend\nend"),
        ("a\n   \n \n\n\nb", "a\n\nb"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("a\ufeffb\u200bc\u2060d", "abcd"),
        ("if x:\n    y()\n\treturn  0", "if x:\n    y()\n\treturn 0"),  # indents mean something
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),
        ("\U0001f469\u200d\U0001f4bb", "\U0001f469\u200d\U0001f4bb"),  # joiners make up letters
        ("Today is ", "Today is "),  # a slot may follow
    ],
)  # fmt: skip
def test_white_space_has_one_form(text: str, expected: str) -> None:
    assert tidy(text) == expected


@given(texts)
def test_one_form_is_its_own_and_holds_the_same_words(text: str) -> None:
    assert tidy(tidy(text)) == tidy(text)
    assert tidy(text).split() == text.replace("\u200b", "").split()


def test_hashes_are_the_same_in_every_process() -> None:
    # printf hello | b2sum -l 64
    assert hash_text("hello") == int.from_bytes(bytes.fromhex("a7b6eda801e5347d"), "little")
    assert hash_text("\ud83d") != hash_text("\ud83e")


def test_slots_are_cut_out_of_a_text() -> None:
    text = "Today is 2026-11-02.  Ticket TICKET-20417 \nof bob@example.com"
    pieces = split_slots(text)
    assert "".join(piece.text for piece in pieces) == text
    assert [(piece.text, piece.kind) for piece in pieces if piece.moved] == [
        ("2026-11-02", "date"),
        ("TICKET-20417", "id"),
        ("bob@example.com", "name"),
    ]
    assert masked(text) == "Today is \0date. Ticket \0id\nof \0name"
    assert [piece.mended for piece in pieces if not piece.moved] == [
        "Today is ",
        ". Ticket ",
        "\nof ",
    ]
    assert split_slots("") == []


@given(texts)
def test_a_text_is_masked_as_its_pieces_are(text: str) -> None:
    told = (f"\0{piece.kind}" if piece.moved else piece.mended for piece in split_slots(text))
    assert masked(text) == "".join(told)


def test_pieces_are_equal_where_their_one_form_is() -> None:
    one, two = literal("a  b\n"), literal("a b\n")
    assert (one.canon, two.raw, two.canon) == (two.canon, two.canon, hash_text("a b\n"))
    assert one.raw != two.raw
    first, second = slot("Alice", "name"), slot("Bob", "name")
    assert first.canon == second.canon != slot("Bob", "date").canon
    assert first.raw != second.raw


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Say {"a": 1, "b": [2, 3]} now', ['{"a": 1, "b": [2, 3]}']),
        ('x [{"name": "a"}, {"name": "b"}]{"c": {"d": null}}',
         ['[{"name": "a"}, {"name": "b"}]', '{"c": {"d": null}}']),
        ('{"a": 1}', []),  # too short to matter
        ('{"not": json, {"but": "this one is"}', ['{"but": "this one is"}']),
        ('{"torn": {"whole": "inside"}, ', ['{"whole": "inside"}']),
        ('{"twice": 1, "twice": 2}', []),
        ('["a list", "of texts"] {name} {} [] {{"b": 1}}', []),
        ('[[1, 2], [3, 4], [5]]', ['[[1, 2], [3, 4], [5]]']),
        ('{ \n "a": "over lines"\n}', ['{ \n "a": "over lines"\n}']),
    ],
)  # fmt: skip
def test_json_is_found_where_it_stands(text: str, expected: list[str]) -> None:
    told = list(find_json(text))
    assert [text[start:end] for start, end, _ in told] == expected
    assert [value for _, _, value in told] == [json.loads(each) for each in expected]


def test_json_of_too_many_levels_is_none() -> None:
    deep = '{"level":' * 64 + "1" + "}" * 64
    assert len(list(find_json(deep))) == 1
    assert list(find_json('{"level":' + deep + "}")) == []
    assert list(find_json("[" * 100_000 + "]" * 100_000)) == []


class _Counting:
    """Counts the characters that a decoder reads, as told by where it ends."""

    def __init__(self, decoder: json.JSONDecoder) -> None:
        self.decoder, self.read, self.calls = decoder, 0, 0

    def raw_decode(self, text: str, at: int) -> tuple[Any, int]:
        self.calls += 1
        try:
            value, end = self.decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            self.read += error.pos - at
            raise
        except (ValueError, RecursionError):
            self.read += len(text) - at
            raise
        self.read += end - at
        return value, end


@pytest.mark.parametrize(
    "text",
    [
        "[" * 131_072,
        '{"a":' * 26_000,
        '{"a":[' * 20_000,
        "[{" * 65_000,
        '{"a" ' * 26_000,
        '{"a": {"a": 1, "a": 2}, ' * 5_000,
        '{"a": "' + '{"b": 1' * 18_000,
    ],
    ids=lambda text: text[:12],
)
def test_beginnings_without_an_end_are_given_up(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = _Counting(units._DECODER)
    monkeypatch.setattr(units, "_DECODER", counting)
    assert list(find_json(text)) == []
    assert counting.read <= 6 * len(text)
    assert counting.calls <= 66_000


def test_a_long_text_of_good_json_is_read_to_its_end() -> None:
    text = 'Broken {"a: 1} but then {"name": "value", "n": 1}.\n' * 2_000
    told = list(find_json(text))
    assert len(told) == 2_000
    assert {text[start:end] for start, end, _ in told} == {'{"name": "value", "n": 1}'}


def test_keys_in_any_order_have_one_form() -> None:
    texts = ['{"b": 1, "a": {"d": 2, "c": 3}}', '{"a": {"c": 3, "d": 2}, "b": 1}']
    one, two = (json_pieces(text, json.loads(text)) for text in texts)
    assert [piece.canon for piece in one] == [piece.canon for piece in two]
    assert [piece.raw for piece in one] != [piece.raw for piece in two]
    assert "".join(piece.mended for piece in one) == texts[1]
    assert "".join(piece.text for piece in two) == texts[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"b":1,"a":"\u00e9"}', '{"a":"\u00e9","b":1}'),
        ('{"b": 1, "a": [1, 2]}', '{"a": [1, 2], "b": 1}'),
        ('{\n  "b": 1,\n  "a": 2\n}', '{\n  "a": 2,\n  "b": 1\n}'),
    ],
)
def test_sorted_json_is_laid_out_as_it_was(text: str, expected: str) -> None:
    assert sorted_json(text, json.loads(text)) == expected


def test_a_chained_hash_is_of_all_before_it() -> None:
    one, two = chain([1, 2, 3]), chain([1, 2, 4])
    assert one[:2] == two[:2]
    assert one[2] != two[2]
    assert chain([2, 1])[1] != one[1]
    assert chain([3], start=one[1]) == one[2:]
    assert chain([]) == []
    assert all(0 <= each < 2**64 for each in chain([2**64 - 1] * 5))
