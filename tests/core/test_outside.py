"""Files, JSON and YAML from outside: an odd one ends soon, and the error says what it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from whet.core import outside
from whet.core.outside import (
    DEEPEST,
    json_lines,
    json_value,
    read_bytes,
    read_json,
    read_text,
    yaml_value,
    yaml_values,
)


def loop(path: Path) -> None:
    path.symlink_to(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD: list[tuple[Callable[[Path], object], str]] = [
    (os.mkfifo, "not a regular file"),
    (zeros, "not a regular file"),
    (Path.mkdir, "Is a directory: .*file"),
    (loop, "symbolic links"),
    (lambda path: None, "No such file"),
    (lambda path: path.write_text("[" * 100_000), "nested too deeply"),
    (lambda path: path.write_text('{"a":' * 500 + "1" + "}" * 500), "nested too deeply"),
    (lambda path: path.write_text('{"a": NaN}'), "not a finite number"),
    (lambda path: path.write_text("[1e999]"), "not a finite number"),
    (lambda path: path.write_text("[-Infinity]"), "not a finite number"),
    (lambda path: path.write_text("9" * 5000), "4300 digits"),
    (lambda path: path.write_bytes(b"\xff{}"), "invalid start byte"),
    (lambda path: path.write_text(""), "Expecting value"),
    (lambda path: path.write_text("{} {}"), "Extra data"),
]


@pytest.mark.parametrize(("make", "said"), ODD, ids=[said for _, said in ODD])
def test_an_odd_file_is_an_error_at_once(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    make(tmp_path / "file")
    with pytest.raises((OSError, ValueError), match=said):
        read_json(tmp_path / "file")


def test_a_file_with_a_mark_is_read_and_infinity_where_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'\xef\xbb\xbf{"a": [1, Infinity, 2.5]}')
    assert read_json(path, infinite=True) == {"a": [1, float("inf"), 2.5]}
    assert read_text(path).startswith("{")


def test_a_pipe_that_somebody_writes_is_read_and_an_idle_one_is_empty(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"a: 1\r\nb: 2\r")
    os.close(write_end)
    assert read_text(Path(f"/dev/fd/{read_end}")) == "a: 1\nb: 2\n"
    os.close(read_end)
    os.mkfifo(tmp_path / "idle")
    assert read_bytes(tmp_path / "idle") == b""


def test_a_device_without_end_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "LARGEST_STREAM", 1 << 22)
    with pytest.raises(ValueError, match="larger than 4 MiB"):
        read_bytes(Path("/dev/zero"))


def test_the_deepest_json_that_is_read() -> None:
    at_most, more = ("[" * depth + "]" * depth for depth in (DEEPEST, DEEPEST + 1))
    assert json_value(at_most)
    with pytest.raises(ValueError, match="deeply"):
        json_value(more)


def test_a_torn_line_is_left_out() -> None:
    assert list(json_lines(b'{"a": 1}\n\n\xff\n{"b"\n[2]')) == [{"a": 1}, [2]]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "more than 100,000 values"),
        ("a: &a [*a]", "more than 100,000 values"),
        ("[" * 100_000, "nested too deeply"),
        ("a: 2026-13-01", "month must be in"),
        ("a: !!int x", "invalid literal"),
        ("a: !!timestamp x", "groupdict"),
        ("a: " + "9" * 5000, "4300 digits"),
        ("a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
    ],
)
def test_yaml_that_cannot_be_used_is_one_kind_of_error(text: str, said: str) -> None:
    with pytest.raises(yaml.YAMLError, match=said):
        yaml_values(text)


def test_one_document_is_one() -> None:
    assert yaml_value("") is None
    assert yaml_values("a: 1\n---\nb: 2") == [{"a": 1}, {"b": 2}]
    with pytest.raises(yaml.YAMLError, match="2 documents"):
        yaml_value("a: 1\n---\nb: 2")
