"""The lock tells that a prompt changed, where, and what of its prefix is lost."""

from __future__ import annotations

import hashlib
import json

import pytest

from whet.core.errors import UsageError
from whet.prompts.lint import estimate_tokens
from whet.prompts.lock import Change, Lock, compare, dump_lock, load_lock, make_entry
from whet.prompts.prompt_file import Prompt, read_prompts

LINES = [f"line {i:02d} {'abcdefg ' * 3}" + "\n" for i in range(20)]
SLOT = "{{ now }}\n"


def prompt(text: str, path: str = "a.jinja") -> Prompt:
    return read_prompts(text, path)[0]


def change(old: str, new: str) -> Change | None:
    entry = make_entry(prompt(old), estimate_tokens)
    return compare(entry, prompt(new), estimate_tokens, 16)


def test_an_entry_counts_and_hashes() -> None:
    text = "abcd" * 40 + "{{ now }}" + "efgh" * 10
    entry = make_entry(prompt(text), estimate_tokens)
    assert (entry.tokens, entry.prefix_tokens) == (50, 40)
    assert entry.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert entry.prefix_sha256 == hashlib.sha256(b"abcd" * 40).hexdigest()
    assert entry.lines == (hashlib.sha256(text.encode()).hexdigest()[:12],)


def test_the_same_text_is_no_change() -> None:
    assert change("".join(LINES), "".join(LINES)) is None


def test_a_changed_byte_names_its_line_and_its_cost() -> None:
    assert {len(line) for line in LINES} == {33}
    new = LINES.copy()
    new[10] = new[10].replace("abc", "abC", 1)
    # 660 characters are 165 tokens, 10 full blocks. Line 11 begins at character 330, behind
    # 82 tokens, 5 full blocks.
    assert change("".join(LINES), "".join(new)) == Change(at=330, anew_tokens=80)


def test_text_that_is_added_or_removed() -> None:
    text = "".join(LINES)
    # 760 characters: 190 tokens, 11 blocks, 10 of them behind the change.
    assert change(text, text + "more\n" * 20) == Change(at=660, anew_tokens=16)
    assert change(text, "".join(LINES[:10])) == Change(at=330, anew_tokens=0)


def test_a_change_behind_the_first_slot_loses_nothing() -> None:
    text = "".join(LINES)
    assert change(text + SLOT + "old", text + SLOT + "new") == Change(at=670, anew_tokens=0)


def test_a_changed_comment_is_not_sent() -> None:
    text = "".join(LINES)
    assert change("{# old #}" + text, "{# new #}" + text) == Change(at=None, anew_tokens=0)


def test_a_new_slot_ends_the_prefix() -> None:
    found = change("".join(LINES), "".join([*LINES[:10], SLOT, *LINES[10:]]))
    assert found == Change(at=330, anew_tokens=0)


def test_a_comment_with_a_dash_takes_the_white_space() -> None:
    assert prompt("a \n{#- x -#}\n b{# y #} c").literal == "ab c"


def test_the_last_user_message_is_not_hashed_by_line() -> None:
    def request(asked: str) -> Prompt:
        messages = [{"role": "system", "content": "é\n"}, {"role": "user", "content": asked}]
        return prompt(json.dumps({"messages": messages}), "a.json")

    entry = make_entry(request("one"), estimate_tokens)
    assert entry.lines == (hashlib.sha256("é\n".encode()).hexdigest()[:12],)
    assert compare(entry, request("two"), estimate_tokens, 16) == Change(at=None, anew_tokens=0)


def test_a_lock_reads_back_and_is_sorted() -> None:
    entry = make_entry(prompt("a\nb" * 50), estimate_tokens)
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
        (b'{\n "version": 2,\n<<<<<<< ours\n', "prompts.lock:3 is not valid JSON"),
        (b'{"version": 1}', "prompts.lock is of lock version 1"),
        (b"[]", "prompts.lock is no lock file"),
        (b'{"version": 2, "prompts": {"a": {"lines": 1}}}', "prompts.lock is no lock file"),
        (b"\xff", "prompts.lock is no lock file"),
    ],
)
def test_a_lock_that_is_none(data: bytes, told: str) -> None:
    with pytest.raises(UsageError, match=told) as raised:
        load_lock(data, "prompts.lock")
    assert str(raised.value).endswith("write it again with --write-lock")
