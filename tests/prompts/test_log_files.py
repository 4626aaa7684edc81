"""The bytes of a log in pieces: no line is lost or read twice, and none too long is held."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from functools import partial
from pathlib import Path

import pytest

from tests.prompts.log_stage import counts, line, prompts, write
from whet.core.errors import UsageError
from whet.prompts import log_files
from whet.prompts.log import OPENAI, LogReader, parse_chunk
from whet.prompts.log_files import item_chunks, line_chunks


@pytest.mark.parametrize("chunk_bytes", [1, 7, 16, 40, 1000])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_chunks_are_whole_lines_and_lose_none(tmp_path: Path, chunk_bytes: int, end: bytes) -> None:
    whole = b"one\n\ntwo is longer than a chunk of some sizes\n\n\nthree" + end
    chunks = list(line_chunks(write(tmp_path, whole), chunk_bytes))
    assert b"".join(data for _, data in chunks) == whole
    assert all(data.endswith(b"\n") for _, data in chunks[:-1])
    for number, data in chunks:
        assert whole.split(b"\n")[number - 1 :][: data.count(b"\n")] == data.split(b"\n")[:-1] or (
            data == b"three"
        )


def note(told: list[tuple[str, str]], reason: str, place: str) -> None:
    told.append((reason, place))


def test_a_line_that_is_too_long_is_skipped_and_told_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MAX_LINE_BYTES", 1024)
    fits, over = line("f" * (1024 - 14)), line("o" * (1024 - 13))
    assert (len(fits), len(over)) == (1025, 1026)  # with the end of the line
    many = line("m" * 5000)
    path = write(tmp_path, over + line("a") + fits + many + line("b") + many + over.strip())
    for chunk_bytes in (100, 1000, 1024, 10**6):
        told: list[tuple[str, str]] = []
        chunks = list(line_chunks(path, chunk_bytes, partial(note, told)))
        read = [
            one for first, data in chunks for one in parse_chunk(OPENAI, first, data, "l").requests
        ]
        assert [one.place for one in read] == ["l:2", "l:3", "l:5"]
        assert [place for _, place in told] == [
            "log.jsonl:1 (1 KiB)",
            "log.jsonl:4 (4.9 KiB)",
            "log.jsonl:6 (4.9 KiB)",
            "log.jsonl:7 (1 KiB)",
        ]
        assert {reason for reason, _ in told} == {"longer than 32 MiB"}


def test_a_prompt_of_a_hundred_megabytes_is_never_held(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.write(line("a") + b'{"prompt": "')
        for _ in range(100):
            file.write(b"x" * 10**6)
        file.write(b'"}\n' + line("b"))
    tracemalloc.start()
    reader = LogReader(path)
    assert [request.prompt for request in reader] == ["a", "b"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counts(reader.left_out()) == {"longer than 32 MiB": (1, "log.jsonl:2 (95.4 MiB)")}
    assert peak < 2 * log_files.MAX_LINE_BYTES


def test_gzip_is_read_by_its_content_and_may_end_early(tmp_path: Path) -> None:
    data = b"".join(line(f"{number} " + "text " * 40) for number in range(3000))
    packed = gzip.compress(data)
    assert len(prompts(write(tmp_path, packed, "log.jsonl.gz"))) == 3000
    assert len(prompts(write(tmp_path, packed, "log"))) == 3000
    reader = LogReader(write(tmp_path, packed[: len(packed) // 2], "log.jsonl.gz"))
    read = [request.prompt for request in reader]
    assert 1000 < len(read) < 2000
    assert read == [f"{number} " + "text " * 40 for number in range(len(read))]
    assert counts(reader.left_out())["a gzip file that is damaged or ends early"] == (
        1,
        "log.jsonl.gz",
    )
    with pytest.raises(UsageError, match="damaged or ends early: 1"):
        LogReader(write(tmp_path, packed[:9], "log.jsonl.gz"))


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + (line("a") + line("b")).replace(b"\n", b"\r\n")
    reader = LogReader(write(tmp_path, data))
    assert [request.prompt for request in reader] == ["a", "b"]
    assert reader.left_out() == ()


@pytest.mark.parametrize("chunk_bytes", [1, 3, 10, 1000])
def test_items_are_the_same_in_blocks_of_any_size(tmp_path: Path, chunk_bytes: int) -> None:
    items = [{"prompt": '\\"}{][' * number} for number in range(1, 6)]
    path = write(tmp_path, json.dumps(items, indent=1))
    chunks = list(item_chunks(path, chunk_bytes))
    assert [number for number, _ in chunks] == (
        [1] if chunk_bytes == 1000 else sorted({number for number, _ in chunks})
    )
    lines = [one for _, data in chunks for one in data.split(b"\n")]
    assert [json.loads(one) for one in lines] == items


def test_an_item_too_large_to_hold_says_how_to_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MAX_LINE_BYTES", 1024)
    path = write(tmp_path, json.dumps([{"prompt": "x" * 2000}]), "log.json")
    with pytest.raises(UsageError, match=r"one request a line, .* jq -c '\.\[\]'"):
        list(item_chunks(path, 100))


def test_a_prompt_file_too_long_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MAX_LINE_BYTES", 4)
    write(tmp_path, "short", "a.txt")
    write(tmp_path, "four", "b.txt")
    reader = LogReader(tmp_path)
    assert [request.prompt for request in reader] == ["four"]
    assert counts(reader.left_out()) == {"longer than 32 MiB": (1, "a.txt (5 B)")}
