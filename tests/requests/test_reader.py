"""Reading a log: its format, its requests in order, and no file that ends it with a traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.requests.log_stage import counts, line, prompts, write
from whet.core.errors import UsageError
from whet.requests import LogReader, files, only_model


def test_requests_come_in_the_order_of_the_file_with_their_places(tmp_path: Path) -> None:
    path = write(tmp_path, b"".join(line(str(number)) for number in range(50)))
    reader = LogReader(path)
    requests = list(reader)
    assert [request.prompt for request in requests] == [str(number) for number in range(50)]
    assert [request.place for request in requests[:2]] == ["log.jsonl:1", "log.jsonl:2"]
    assert reader.left_out() == ()
    assert len(list(reader)) == 50  # a second reading starts anew


def test_requests_of_other_models_are_left_out(tmp_path: Path) -> None:
    other, torn = line("x", model="n"), b'{"prompt": "\n'
    data = b"".join(line(f"prompt {number}", model="m") + other + torn for number in range(40))
    reader = LogReader(write(tmp_path, data), model="m")
    assert [request.prompt for request in reader] == [f"prompt {n}" for n in range(40)]
    assert reader.models == {"m": 40, "n": 40}
    assert counts(reader.left_out()) == {
        "another model (n)": (40, "log.jsonl:2"),
        "not valid JSON": (40, "log.jsonl:3"),
    }


def test_a_log_of_several_models_needs_a_choice(tmp_path: Path) -> None:
    path = write(tmp_path, line("a", model="m") + line("b", model="n") + line("c", model="n"))
    with pytest.raises(UsageError, match=r"several models: n \(2\), m \(1\).*--served-model n"):
        only_model(path, None)
    assert only_model(path, "m") == "m"
    assert only_model(write(tmp_path, line("a")), None) is None


def test_requests_without_a_model_stay_and_a_model_that_is_not_there_is_named(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, line("a") + line("b", model="llama-3") + line("c", model="qwen"))
    assert prompts(path, model="qwen") == ["a", "c"]
    with pytest.raises(UsageError, match="no request for the model 'llama3'; it has llama-3; did"):
        prompts(write(tmp_path, line("b", model="llama-3")), model="llama3")


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["log.json", "log.json.gz", "export"])
def test_an_array_of_requests_is_read_item_by_item(
    tmp_path: Path, indent: int | None, name: str
) -> None:
    items = [
        {"prompt": 'a "quoted" [text] \\ {'},
        5,
        {"messages": [{"role": "user", "content": "]}\n"}]},
        [],
        {"prompt": "last"},
    ]
    data = json.dumps(items, indent=indent).encode()
    path = write(tmp_path, gzip.compress(data) if name.endswith("gz") else data, name)
    reader = LogReader(path)
    requests = list(reader)
    assert [request.prompt for request in requests] == ['a "quoted" [text] \\ {', None, "last"]
    assert [request.place for request in requests] == [f"{name}:{item}" for item in (1, 3, 5)]
    assert counts(reader.left_out()) == {"not a JSON object": (2, f"{name}:2")}


def test_a_pretty_request_is_a_document_and_json_lines_are_none(tmp_path: Path) -> None:
    request = {"messages": [{"role": "user", "content": "hi"}]}
    (read,) = LogReader(write(tmp_path, json.dumps(request, indent=2), "one.json"))
    assert read.messages == tuple(request["messages"])
    torn_first = b'{"prompt": "torn\n' + line("a") + line("b")
    assert prompts(write(tmp_path, torn_first, "log.json")) == ["a", "b"]


def test_a_torn_document_keeps_its_whole_items(tmp_path: Path) -> None:
    whole = json.dumps([{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}], indent=1)
    reader = LogReader(write(tmp_path, whole[: whole.index("c")], "log.json"))
    assert [request.prompt for request in reader] == ["a", "b"]
    assert counts(reader.left_out()) == {files.DAMAGED: (1, "log.json:3")}
    with pytest.raises(UsageError, match=r"\(log.json:3\), after 2 lines; copy the log again"):
        reader.refuse_broken()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "is empty; give a file with at least one request"),
        (" \n\n", "is empty; give a file with at least one request"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "run: git lfs pull"),
        (b"\x28\xb5\x2f\xfd\x00", "damaged or ends early: 1, first"),
        ('{"prompt": "a"}'.encode("utf-16"), "iconv -f UTF-16"),
        ("hello\nyou\n", r"not valid JSON: 2, first log\.jsonl:1\); give one JSON object per"),
        (b"\x00\xff\n" * 2, r"no request that can be read \(not UTF-8: 2"),
        ('{"question": "why"}\n', r"no request in it: 1, first log\.jsonl:1"),
        ('{"messages": []}\n', "malformed messages: 1"),
    ],
)
def test_a_file_without_a_request_is_refused_with_the_mend(
    tmp_path: Path, data: str | bytes, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        prompts(write(tmp_path, data))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no log .*none\.jsonl; give a file"):
        LogReader(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="write the log to a file first"):
        LogReader(Path("/dev/null"))


def test_a_folder_holds_logs(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    write(tmp_path, json.dumps({"messages": chat, "model": "m"}, indent=2), "c.json")
    write(tmp_path, gzip.compress(line("packed")), "d.jsonl.gz")
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", line("deep"), "e.ndjson")
    (tmp_path / ".git").mkdir()
    write(tmp_path / ".git", line("hidden"), "f.jsonl")
    write(tmp_path, "{", "i.json")
    write(tmp_path, "x", "k.py")
    reader = LogReader(tmp_path)
    requests = list(reader)
    assert [(one.place, one.prompt or one.messages) for one in requests] == [
        ("c.json:1", tuple(chat)),
        ("d.jsonl.gz:1", "packed"),
        ("sub/e.ndjson:1", "deep"),
    ]
    assert reader.models == {"m": 1}
    assert counts(reader.left_out()) == {
        "not valid JSON": (1, "i.json:1"),
        "not a log": (1, "k.py"),
    }


def test_rotated_logs_of_any_name_are_read_by_their_first_bytes(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "timestamp": 1_760_000_000 + n} for n in range(6)]
    dumped = [json.dumps(row).encode() + b"\n" for row in rows]
    write(tmp_path, b"".join(dumped[4:]), "app.log")
    write(tmp_path, b"".join(dumped[2:4]), "app.log.1")
    write(tmp_path, gzip.compress(b"".join(dumped[:2])), "app.log.2.gz")
    for name, text in (
        ("README.md", "[Logs](a), rotated daily\n"),
        ("NOTICE", "Copyright (c) 2025, Ada\n\nAll rights reserved, worldwide, by us\n"),
        ("chat.jinja", "{{ bos }}{% for m in messages %}"),
        ("run.sh", "set -e\n{ echo; }\n"),
        ("empty.txt", ""),
    ):
        write(tmp_path, text, name)
    reader = LogReader(tmp_path)
    assert [each.prompt for each in reader] == list("012345")
    assert counts(reader.left_out()) == {"not a log": (5, "NOTICE")}


@pytest.mark.parametrize("row", ["0.5,4;10;2\n", '1;"{\\"a;b\\"}";2\n', '1;"1,234";2\n'])
def test_a_table_that_cannot_be_read_is_refused_with_its_own_fix(tmp_path: Path, row: str) -> None:
    header = "arrived_at;num_prefill_tokens;num_decode_tokens\n"
    with pytest.raises(UsageError, match="give a CSV with the columns of a form"):
        list(LogReader(write(tmp_path, header + row * 3, "trace.txt"), lengths=True))


def test_a_folder_without_a_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no request that can be read \(no row\)"):
        list(LogReader(tmp_path))


WHOLE = [
    {"prompt": "é \U0001f600 " * 3},
    {"messages": [{"role": "user", "content": 'a "b" \\ \n'}], "model": "m"},
    {"request": {"prompt": [1, 2, 3]}, "timestamp": "2024-01-01 00:00:00"},
    {"prompt": "last"},
]


@settings(deadline=None)
@given(st.data())
def test_a_log_cut_at_any_byte_keeps_every_whole_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lines = [json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in WHOLE]
    whole = b"".join(lines)
    ends = [sum(map(len, lines[: number + 1])) for number in range(len(lines))]
    start = data.draw(st.integers(0, ends[1]))
    stop = data.draw(st.integers(ends[2], len(whole)))
    path = write(tmp_path_factory.mktemp("cut"), whole[start:stop])
    begins = [0, *ends[:-1]]
    # Without its end a line is still whole; what is left of a torn one may be blank, or its end.
    kept = sum(begin >= start and end - 1 <= stop for begin, end in zip(begins, ends, strict=True))
    reader = LogReader(path)
    assert len(list(reader)) == kept
