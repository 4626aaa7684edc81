"""The lock tells that a prompt changed, where, and what of its prefix is lost."""

from __future__ import annotations

import hashlib
import json

import pytest

from whet.core.errors import UsageError
from whet.prefix.lint import read_prompts
from whet.prefix.lock import (
    Change,
    Lock,
    Prompt,
    compare,
    dump_lock,
    estimate_tokens,
    load_lock,
    make_entry,
)

LINES = [f"line {i:02d} {'abcdefg ' * 3}" + "\n" for i in range(20)]
SLOT = "{{ now }}\n"


def prompt(text: str, path: str = "a.jinja") -> Prompt:
    return read_prompts(text, path)[0]


def change(old: str, new: str) -> Change | None:
    entry = make_entry(prompt(old), estimate_tokens, 16)
    return compare(entry, prompt(new), estimate_tokens, 16)


def test_an_entry_counts_and_hashes() -> None:
    assert {len(line) for line in LINES} == {33}
    text = "abcd" * 40 + "{{ now }}" + "efgh" * 10
    entry = make_entry(prompt(text), estimate_tokens, 16)
    assert (entry.characters, entry.tokens) == (209, 50)
    assert (entry.prefix_characters, entry.prefix_tokens) == (160, 40)
    assert entry.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert entry.prefix_sha256 == hashlib.sha256(b"abcd" * 40).hexdigest()
    # 40 tokens have two full blocks of 64 characters; the second chains the first.
    first = hashlib.sha256(b"abcd" * 16).digest()
    assert entry.first_block == first.hex()[:12]
    assert entry.last_block == hashlib.sha256(first + b"abcd" * 16).hexdigest()[:12]
    pieces = [text[at : at + 64] for at in range(0, 209, 64)]
    assert entry.lines == (
        " ".join(hashlib.sha256(piece.encode()).hexdigest()[:12] for piece in pieces),
    )


def test_the_same_text_is_no_change() -> None:
    assert change("".join(LINES), "".join(LINES)) is None


def test_a_changed_byte_names_its_line_and_its_cost() -> None:
    new = LINES.copy()
    new[10] = new[10].replace("abc", "abC", 1)
    # 660 characters are 165 tokens, 160 in full blocks. Line 11 begins at character 330, behind
    # 82 tokens (80 in full blocks), and ends at 363, behind 90 (80).
    assert change("".join(LINES), "".join(new)) == Change(
        at=330, kept_tokens=80, shared_tokens=80, anew_tokens=80
    )


def test_a_change_in_a_long_line_is_found_to_64_characters() -> None:
    old = "x" * 1000
    # Character 500 stands in the piece [448, 512): 112 to 128 tokens, 7 to 8 blocks of 16.
    assert change(old, old[:500] + "y" + old[501:]) == Change(
        at=448, kept_tokens=112, shared_tokens=128, anew_tokens=240 - 112
    )


def test_text_that_is_added_or_taken_away() -> None:
    text = "".join(LINES)
    # 760 characters: 190 tokens, 176 in full blocks.
    added = change(text, text + "more\n" * 20)
    assert added == Change(at=660, kept_tokens=160, shared_tokens=160, anew_tokens=16)
    taken = change(text, "".join(LINES[:10]))
    assert taken == Change(at=330, kept_tokens=80, shared_tokens=80, anew_tokens=0)
    cut = change("x" * 200, "x" * 64)
    assert cut == Change(at=64, kept_tokens=16, shared_tokens=16, anew_tokens=0)


def test_a_change_behind_the_first_slot_loses_nothing() -> None:
    text = "".join(LINES)
    found = change(text + SLOT + "old", text + SLOT + "new")
    assert found == Change(at=670, kept_tokens=160, shared_tokens=160, anew_tokens=0)


def test_a_changed_comment_is_sent_to_nobody() -> None:
    text = "".join(LINES)
    found = change("{# old #}" + text, "{# a new one #}" + text)
    assert found == Change(at=None, kept_tokens=160, shared_tokens=160, anew_tokens=0)


def test_a_new_slot_ends_the_prefix() -> None:
    text = "".join(LINES)
    found = change(text, "".join([*LINES[:10], SLOT, *LINES[10:]]))
    assert found is not None
    assert (found.at, found.kept_tokens, found.anew_tokens) == (330, 80, 0)


def test_a_comment_with_a_dash_takes_the_white_space() -> None:
    assert prompt("a \n{#- x -#}\n b{# y #} c").sent.text == "ab c"


def test_only_what_stays_of_a_request_is_hashed_by_line() -> None:
    def request(asked: str) -> Prompt:
        messages = [{"role": "system", "content": "é\n"}, {"role": "user", "content": asked}]
        return prompt(json.dumps({"messages": messages}), "a.json")

    entry = make_entry(request("one"), estimate_tokens, 16)
    assert entry.lines == (hashlib.sha256("é\n".encode()).hexdigest()[:12],)
    found = compare(entry, request("two"), estimate_tokens, 16)
    assert found is not None
    assert (found.at, found.anew_tokens) == (None, 0)


def test_a_lock_reads_back_and_is_sorted() -> None:
    entry = make_entry(prompt("a\nb" * 50), estimate_tokens, 16)
    lock = Lock(block_size=16, tokens_by="characters / 4", prompts={"b.txt": entry, "ä.txt": entry})
    data = dump_lock(lock)
    assert load_lock(data, "prompts.lock") == lock
    again = Lock(
        block_size=16, tokens_by="characters / 4", prompts={"ä.txt": entry, "b.txt": entry}
    )
    assert dump_lock(again) == data
    assert data.endswith(b"}\n")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{\n "version": 1,\n<<<<<<< ours\n', "prompts.lock:3 is not valid JSON"),
        (b'{"version": 2}', "prompts.lock is of lock version 2"),
        (b"[]", "prompts.lock is no lock file"),
        (b'{"version": 1, "prompts": {"a": {"lines": 1}}}', "prompts.lock is no lock file"),
        (b"\xff", "prompts.lock is no lock file"),
    ],
)
def test_a_lock_that_is_none(data: bytes, told: str) -> None:
    with pytest.raises(UsageError, match=told) as raised:
        load_lock(data, "prompts.lock")
    assert str(raised.value).endswith("write it again with --write-lock")
