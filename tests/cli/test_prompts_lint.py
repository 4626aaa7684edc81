"""``whet prompts lint`` from end to end: exit codes, files and bad input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stage import Whet
from whet.core.errors import UsageError

STABLE = "You answer questions about orders.\n" * 20
Lint = Callable[..., Any]


@pytest.fixture
def run(whet: Whet) -> Lint:
    """Run the command in an empty folder."""
    return lambda *words: whet("prompts", "lint", *words)


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_a_clean_folder(run: Lint) -> None:
    write("p/a.jinja", STABLE + "{{ question }}")
    write("p/package.json", '{"name": "no prompt"}')
    write("p/.git/b.txt", "{now} " + STABLE)
    result = run("p")
    assert result.code == 0
    assert result.out == "0 errors, 0 warnings, 0 notes in 1 file\n"


@pytest.mark.parametrize(
    ("fail_on", "code"), [("error", 0), ("warning", 1), ("note", 1), ("never", 0)]
)
def test_what_fails(run: Lint, fail_on: str, code: int) -> None:
    write("a.txt", "{topic} " + STABLE)
    result = run("a.txt", "--fail-on", fail_on)
    assert result.code == code
    assert "a.txt:1:1: warning WHET005 a variable is filled in before stable text" in result.out
    assert run("a.txt", "--ignore", "WHET005,WHET006").code == 0


def test_what_cannot_be_read_is_told_and_the_rest_is_linted(run: Lint) -> None:
    write("p/a.txt", "{now} " + STABLE)
    Path("p/binary.md").write_bytes(b"a\0b")
    Path("p/latin.md").write_bytes(b"caf\xe9")
    Path("p/wide.md").write_bytes("a".encode("utf-16"))
    os.truncate(write("p/huge.txt", ""), (16 << 20) + 1)
    Path("p/empty").mkdir()
    result = run("p", "p/empty", "gone.txt", "p/a.txt")
    assert result.code == UsageError.exit_code
    assert result.out.count("WHET001") == 1
    known = ".jinja, .j2, .txt, .md, .prompt"
    assert [line for line in result.err.splitlines() if line.startswith("error: ")] == [
        f"error: p/empty holds no prompt template; they end with {known}",
        "error: p/binary.md is a binary file, not a prompt template",
        "error: p/huge.txt is larger than 16 MiB; split it or leave it out",
        "error: p/latin.md is not UTF-8 (byte 3); save it as UTF-8",
        "error: p/wide.md is UTF-16; save it as UTF-8",
        "error: no file or folder at gone.txt; check the path",
    ]


def test_a_file_of_another_kind(run: Lint) -> None:
    write("a.py", "x")
    result = run("a.py")
    assert result.code == UsageError.exit_code
    assert "a.py is not a prompt template" in result.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ignore", "WHET0O1"], "--ignore 'WHET0O1' is not a rule; did you mean"),
        (["--tokenizer", "gone"], "whet prompts --tokenizer is not supported"),
    ],
)
def test_flags_that_cannot_be_used(run: Lint, words: list[str], told: str) -> None:
    write("a.txt", "a")
    result = run("a.txt", *words)
    assert told in result.sentence(UsageError.exit_code)


def test_reports_for_machines(run: Lint) -> None:
    write("p/a.txt", "a secret sk-a1b2c3d4e5f6 {now} " + STABLE)
    result = run("p", "--json")
    assert result.code == 1
    data = json.loads(result.out)
    assert [each["rule"] for each in data["findings"]] == ["WHET041", "WHET001"]
    assert (data["files"], data["problems"]) == (1, [])
    assert "a1b2c3" not in json.dumps(data)
    assert "secret" not in run("p", "--redact", "--ignore", "WHET041").out
