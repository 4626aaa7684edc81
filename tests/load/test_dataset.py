"""Rows of the three forms, rows that cannot be read, and what is left out by hand count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.load.prompts_factory import CHAT_TEMPLATE, NO_SYSTEM, write_tokenizer
from tests.load.requests import bench_request
from whet.core.errors import CheckpointError, UsageError
from whet.core.protocols import Lines, Silent
from whet.load.lengths import Lengths, fixed
from whet.load.plan import PlannedLoad
from whet.load.sources.replay import open_rows
from whet.load.sources.request import Row, Target
from whet.load.sources.source import build_load
from whet.load.texts import TextTokenizer, load_text_tokenizer
from whet.requests import LoggedRequest

GOOD = {"prompt": "a" * 10, "completion": "b" * 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of one token a byte."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return load_text_tokenizer(folder)


def read(
    path: Path, folder: Path, *, outputs: Lengths | None = None, notes: Lines | None = None
) -> tuple[Row, ...]:
    """The rows of a log, as one run of one request reads them."""
    return open_rows(bench_request(source=path, outputs=outputs), folder, notes or Silent())


def sent(path: Path, folder: Path, requests: int, *, number: int = 0, seed: int = 0) -> PlannedLoad:
    """What run ``number`` sends of a log, in blocks of 4."""
    request = bench_request(source=path, requests=requests, seed=seed)
    target = Target(
        model="m", tokenizer=folder, rows=open_rows(request, folder, Silent()), block_size=4
    )
    return build_load(request, target, number)


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def shared(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in turns]}


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": who, "content": text} for who, text in turns]}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{not json", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ({"prompt": 5}, "a prompt that is neither text nor token ids"),
        ({"prompt": "abcd\ud800", "output_tokens": 9}, "half a character in its text"),
        ({"messages": "hello"}, "malformed messages"),
        ({"messages": []}, "malformed messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "malformed messages"),
        ({"conversations": {}}, "malformed messages"),
        ({"conversations": [{"from": "human"}]}, "malformed messages"),
    ],
)
def test_a_broken_row_is_named_by_file_and_line(
    tmp_path: Path, folder: Path, row: Any, reason: str
) -> None:
    path = write(tmp_path, GOOD, "", row)
    with pytest.raises(UsageError, match="1 of 2 lines are broken") as caught:
        read(path, folder)
    assert f"(first rows.jsonl:3: {reason})" in str(caught.value)


def test_files_that_hold_no_rows_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="there is no log"):
        read(tmp_path / "none.jsonl", folder)
    with pytest.raises(UsageError, match="is empty"):
        read(write(tmp_path, "", ""), folder)
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}\n')
    with pytest.raises(UsageError, match="not UTF-8: 1"):
        read(tmp_path / "latin.jsonl", folder)


def test_a_template_that_refuses_a_row_names_the_line(tmp_path: Path) -> None:
    strict = tmp_path / "tokenizer"
    strict.mkdir()
    write_tokenizer(strict, template=NO_SYSTEM + CHAT_TEMPLATE)
    rows = write(tmp_path, chat(("system", "be brief"), ("user", "abcdef"), ("assistant", "abcd")))
    with pytest.raises(UsageError, match=r"rows.jsonl:1: .*no system role"):
        read(rows, strict)


def lengths(rows: tuple[Row, ...]) -> list[tuple[int, int]]:
    return [(len(row.prompt_token_ids), row.output_tokens) for row in rows]


def test_the_three_forms_are_read(tmp_path: Path, folder: Path) -> None:
    path = write(
        tmp_path,
        shared(("human", "h" * 11), ("gpt", "g" * 12), ("human", "more"), ("gpt", "later")),
        shared(("system", "s"), ("gpt", "left over"), ("user", "u" * 7), ("chatgpt", "c" * 8)),
        chat(("user", "u" * 6), ("assistant", "a" * 9)),
        chat(("user", "u" * 6), ("assistant", "a" * 9), ("user", "v" * 5)) | {"output_tokens": 21},
        GOOD,
        {"prompt": "p" * 4, "output_tokens": 33},
        {"prompt": "p" * 4, "output_tokens": 33, "completion": "c" * 5},
    )
    notes = Lines()
    assert lengths(read(path, folder, notes=notes)) == [
        (1 + 11 + 1 + 1, 12),
        ((1 + 11 + 1) + (1 + 12 + 1) + (1 + 4 + 1) + 1, 5),
        ((1 + 1 + 1) + (1 + 7 + 1) + 1, 8),
        (1 + 6 + 1 + 1, 9),  # <|user|> … <|end|> <|assistant|>
        ((1 + 6 + 1) + (1 + 9 + 1) + (1 + 5 + 1) + 1, 21),
        (10, 5),
        (4, 33),
        (4, 33),
    ]
    assert notes.lines == [("note", f"{path}: 8 rows can be used, left out: none")]


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "ab\u2028cd", "output_tokens": 9}', encoding="utf-8")
    assert lengths(read(path, folder)) == [(7, 9)]  # U+2028 is three bytes


def test_what_cannot_be_sent_is_left_out_and_counted(tmp_path: Path, folder: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "p", "output_tokens": 1},
        {"prompt": "no answer"},
        {"prompt": "p", "output_tokens": 0},
        {"prompt": [1, 2], "output_tokens": 3},
        shared(("human", "no answer")),
        shared(("gpt", "no question")),
        shared(),
        chat(("user", "no answer")),
        {"timestamp": 1, "input_length": 9, "output_length": 9},
    )
    notes = Lines()
    assert lengths(read(path, folder, notes=notes)) == [(1, 1)]
    for reason in (
        "no answer to take the length from: 3",
        "images, sound or token ids in place of text: 1",
        "no request in it: 3",
        "lengths without a prompt",
    ):
        assert reason in notes.lines[0][1]


def test_the_output_may_be_set(tmp_path: Path, folder: Path) -> None:
    path = write(tmp_path, {"prompt": "pp"}, {"prompt": "p" * 9, "completion": "c"})
    assert lengths(read(path, folder, outputs=fixed(6))) == [(2, 6), (9, 6)]


def test_a_file_of_which_nothing_remains_says_why(tmp_path: Path, folder: Path) -> None:
    path = write(tmp_path, {"prompt": [1], "output_tokens": 9}, {"prompt": "abcdef"})
    with pytest.raises(
        UsageError, match=r"token ids in place of text: 1, .*no answer .*: 1, first rows.jsonl:2"
    ):
        read(path, folder)


def test_requests_are_drawn_without_repeats_and_by_trial(
    tmp_path: Path, folder: Path, tokenizer: TextTokenizer
) -> None:
    rows = [{"prompt": f"{i:02d} question", "output_tokens": 4 + i} for i in range(30)]
    path = write(tmp_path, *rows)
    one, other, again = (sent(path, folder, 20, number=number, seed=7) for number in (0, 1, 0))
    assert one == again
    assert one.workload.facts.sha256 != other.workload.facts.sha256
    ids = [request.prompt_token_ids for request in one.workload.requests]
    assert len(set(ids)) == 20
    assert [request.index for request in one.workload.requests] == list(range(20))
    assert one.calls is not None
    assert one.calls[0].prompt is not None
    assert tokenizer.request_ids(LoggedRequest(place="", prompt=one.calls[0].prompt)) == ids[0]


def test_common_beginnings_of_rows_are_found_and_counted(tmp_path: Path, folder: Path) -> None:
    rows = [{"prompt": text, "output_tokens": 4} for text in ("aaaabbbbx", "aaaabbbby", "zzzzz")]
    facts = sent(write(tmp_path, *rows), folder, 3).workload.facts
    assert facts.expected_hit_rate == pytest.approx(16 / 23)
    assert (facts.shared_prefixes, facts.shared_prefix_share) == (1, pytest.approx(2 / 3))


def test_chats_are_sent_as_chats(tmp_path: Path, folder: Path, tokenizer: TextTokenizer) -> None:
    rows = [chat(("system", "abc"), ("user", f"u{i}" * 3), ("assistant", "abcd")) for i in "xy"]
    load = sent(write(tmp_path, *rows), folder, 2)
    for call, request in zip(load.calls or (), load.workload.requests, strict=True):
        assert call.messages is not None
        assert [message["role"] for message in call.messages] == ["system", "user"]
        assert (
            tokenizer.request_ids(LoggedRequest(place="", messages=call.messages))
            == request.prompt_token_ids
        )
        assert (call.max_tokens, call.ignore_eos, dict(call.extra)) == (4, True, {})


def test_a_folder_without_a_tokenizer_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_text_tokenizer(tmp_path)


def test_chats_are_counted_through_the_template(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.request_ids(
        LoggedRequest(place="", messages=({"role": "user", "content": "abc"},))
    )
    assert len(ids) == 1 + 3 + 1 + 1  # <|user|> abc <|end|> <|assistant|>
    assert len(tokenizer.request_ids(LoggedRequest(place="", prompt="abc"))) == 3


@pytest.mark.parametrize(
    ("template", "complaint"), [(None, "no chat template"), (NO_SYSTEM, "no system role")]
)
def test_a_chat_that_the_template_cannot_hold_is_a_usage_error(
    tmp_path: Path, template: str | None, complaint: str
) -> None:
    tokenizer = load_text_tokenizer(write_tokenizer(tmp_path, template=template))
    with pytest.raises(UsageError, match=complaint):
        tokenizer.request_ids(
            LoggedRequest(place="", messages=({"role": "system", "content": "abc"},))
        )
