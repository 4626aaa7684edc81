"""The bytes of a log in pieces: no line is lost or read twice, and none too long is held."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import lzma
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from tests.requests.log_stage import counts, line, prompts, write
from whet.core.errors import UsageError
from whet.core.units import MIB
from whet.requests import LogReader, files


def test_a_line_that_is_too_long_is_skipped_and_told_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1024)
    fits, over = line("f" * (1024 - 14)), line("o" * (1024 - 13))
    assert (len(fits), len(over)) == (1025, 1026)  # with the end of the line
    many = line("m" * 5000)
    path = write(tmp_path, over + line("a") + fits + many + line("b") + many + over.strip())
    reader = LogReader(path)
    assert [one.place for one in reader] == ["log.jsonl:2", "log.jsonl:3", "log.jsonl:5"]
    assert counts(reader.left_out()) == {"longer than 32 MiB": (4, "log.jsonl:1 (1 KiB)")}


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
    assert peak < 2 * files.MAX_LINE_BYTES + 4 * MIB


CHAT = json.dumps([{"role": "user", "content": 'a, b\n"c"'}])


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["log.csv", "export"])
def test_a_table_of_requests_is_a_log(tmp_path: Path, delimiter: str, name: str) -> None:
    file = io.StringIO()
    table = csv.writer(file, delimiter=delimiter)
    table.writerows([["startTime", "input", "output", "usage"], [],
                     ["2025-11-27T08:00:00Z", CHAT, "yes", '{"input": 9, "output": 1}'],
                     ["1"], ["2025-11-27T08:00:01Z", CHAT, "", ""]])  # fmt: skip
    reader = LogReader(write(tmp_path, "\ufeff\n" + file.getvalue(), name))
    first, second = reader
    assert first.messages == second.messages == tuple(json.loads(CHAT))
    assert (first.output, first.prompt_tokens, second.output) == ("yes", 9, None)
    assert counts(reader.left_out())["a row that has not the cells of the header"][0] == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("INFO 10-01 [logger.py:36] Received request cmpl-1: prompt: 'a', params: x\n", "of vLLM"),
        ("INFO 02-13 [logger.py:49] Received request chatcmpl-1: params: x\n", "text log of vLLM"),
        (b"PAR1\x15\x04", "is Parquet; write it as JSON lines"),
        (b"PK\x03\x04rest", "zip archive; unpack it"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, data: bytes | str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        prompts(write(tmp_path, data))


def test_an_array_over_several_lines_is_one_log_whatever_its_name(tmp_path: Path) -> None:
    rows = json.dumps([{"prompt": "a"}, {"prompt": "b"}], indent=1)
    assert prompts(write(tmp_path, rows, "log.jsonl")) == ["a", "b"]


def pack(data: bytes, form: str) -> bytes:
    own = {"gzip": gzip.compress, "xz": lzma.compress}
    return own[form](data) if form in own else pa.compress(data, "zstd", asbytes=True)


@pytest.mark.parametrize("form", ["gzip", "xz", "zstd"])
def test_packed_logs_are_read_by_their_content_and_may_end_early(tmp_path: Path, form: str) -> None:
    texts = [f"{number} {hashlib.sha512(b'%d' % number).hexdigest() * 9}" for number in range(3000)]
    data = b"".join(map(line, texts))
    packed = pack(data, form)
    assert prompts(write(tmp_path, packed, "log.jsonl.gz")) == texts
    assert prompts(write(tmp_path, packed, "log")) == texts
    array = json.dumps([{"prompt": text} for text in texts]).encode()
    assert prompts(write(tmp_path, pack(array, form), "array")) == texts
    reader = LogReader(write(tmp_path, packed[: len(packed) // 2], "log.packed"))
    read = [request.prompt for request in reader]
    assert 100 < len(read) < 2500
    assert read == texts[: len(read)]
    assert counts(reader.left_out())[files.DAMAGED] == (1, "log.packed")
    with pytest.raises(UsageError, match=f"after {len(read):,} lines; copy the log again"):
        reader.refuse_broken()
    with pytest.raises(UsageError, match="damaged or ends early: 1"):
        prompts(write(tmp_path, packed[:9], "log.packed"))


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + (line("a") + line("b")).replace(b"\n", b"\r\n")
    reader = LogReader(write(tmp_path, data))
    assert [request.prompt for request in reader] == ["a", "b"]
    assert reader.left_out() == ()


def test_an_array_is_read_as_a_stream(tmp_path: Path) -> None:
    items = [{"prompt": '\\"}{][ é' * (number % 50 + 1)} for number in range(20_000)]
    path = write(tmp_path, json.dumps(items, indent=1, ensure_ascii=False), "log.json")
    assert path.stat().st_size > 4_000_000
    assert prompts(path) == [item["prompt"] for item in items]


def test_an_item_too_large_to_hold_says_how_to_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1024)
    path = write(tmp_path, json.dumps([{"prompt": "x" * 2_000_000}]), "log.json")
    with pytest.raises(UsageError, match=r"one request per line with: jq -c '\.\[\]'"):
        list(LogReader(path))
