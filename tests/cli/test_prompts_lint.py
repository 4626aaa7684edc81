"""``whet prompts lint`` from end to end: exit codes, files, lock and bad input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkpoint_factory import write_tokenizer
from tests.cli.stage import Whet
from whet.core.errors import UsageError

STABLE = "You answer questions about orders.\n" * 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How the command ended."""

    exit_code: int
    stdout: str
    stderr: str


Lint = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whet: Whet) -> Lint:
    """Run the command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Result:
        ended = whet("prompts", "lint", *words)
        return Result(exit_code=ended.code, stdout=ended.out, stderr=ended.err)

    return call


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_a_clean_folder(run: Lint) -> None:
    write("p/a.jinja", STABLE + "{{ question }}")
    write("p/package.json", '{"name": "no prompt"}')
    write("p/.git/b.txt", "a \n")
    result = run("p")
    assert result.exit_code == 0
    assert result.stdout == "0 errors, 0 warnings, 0 notes in 1 file\n"


@pytest.mark.parametrize(
    ("fail_on", "code"), [("error", 0), ("warning", 1), ("note", 1), ("never", 0)]
)
def test_what_fails(run: Lint, fail_on: str, code: int) -> None:
    write("a.txt", "a \n")
    result = run("a.txt", "--fail-on", fail_on)
    assert result.exit_code == code
    assert "a.txt:1:2: warning WHET021 white space ends the line" in result.stdout
    assert run("a.txt", "--ignore", "WHET021,WHET022").exit_code == 0


def test_what_cannot_be_read_is_told_and_the_rest_is_linted(run: Lint) -> None:
    write("p/a.txt", "a \n")
    Path("p/binary.md").write_bytes(b"a\0b")
    Path("p/latin.md").write_bytes(b"caf\xe9")
    Path("p/wide.md").write_bytes("a".encode("utf-16"))
    write("p/torn.json", '{"messages": [')
    os.truncate(write("p/huge.txt", ""), (16 << 20) + 1)
    Path("p/empty").mkdir()
    result = run("p", "p/empty", "gone.txt", "p/a.txt")
    assert result.exit_code == UsageError.exit_code
    assert result.stdout.count("WHET021") == 1
    known = ".jinja, .j2, .txt, .md, .prompt, .json, .jsonl"
    assert [line for line in result.stderr.splitlines() if line.startswith("error: ")] == [
        "error: p/binary.md is a binary file; a prompt is text",
        "error: p/huge.txt is larger than 16 MiB; split it or leave it out",
        "error: p/latin.md is not UTF-8 (byte 3); save it as UTF-8",
        "error: p/torn.json:1 is not valid JSON (Expecting value); correct it",
        "error: p/wide.md is UTF-16; save it as UTF-8",
        f"error: p/empty holds no prompt file; they end with {known}",
        "error: no file or folder at gone.txt; check the path",
    ]


def test_a_file_of_another_kind(run: Lint) -> None:
    write("a.py", "x")
    write("b.json", "{}")
    result = run("a.py", "b.json")
    assert result.exit_code == UsageError.exit_code
    assert "a.py is no prompt file" in result.stderr
    assert 'b.json is no chat request; "messages" has to be a list' in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--fail-on", "all"], 'Invalid value "all" for --fail-on. Choose from'),
        (["--ignore", "WHET02"], "--ignore 'WHET02' is no rule; did you mean 'WHET052'?"),
        (["--tokenizer", "gone"], "no tokenizer.json at gone; give the model's folder"),
        (["--lock", "gone.lock"], "no lock file at gone.lock; write it with --write-lock"),
    ],
)
def test_flags_that_cannot_be_used(run: Lint, words: list[str], told: str) -> None:
    write("a.txt", "a")
    result = run("a.txt", *words)
    assert result.exit_code == UsageError.exit_code
    assert told in result.stderr


def test_fix_mends_templates_in_place(run: Lint) -> None:
    path = write("a.txt", "\ufeffa \r\n\r\n\r\n\r\nb\n")
    path.chmod(0o640)
    golden = write("g.json", '{"messages": [{"role": "system", "content": "a \\n"}]}')
    before = golden.read_bytes()
    assert run("a.txt", "g.json", "--fix").exit_code == 1
    assert path.read_bytes() == b"a\n\nb\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert golden.read_bytes() == before
    assert run("a.txt").exit_code == 0


def test_a_lock_fails_on_a_changed_byte_and_tells_the_cost(run: Lint) -> None:
    path = write("p/a.jinja", STABLE + "{{ question }}")
    result = run("p", "--write-lock")
    assert (result.exit_code, result.stderr) == (0, "prompts.lock: 1 prompt\n")
    assert run("p").exit_code == 0
    path.write_text(STABLE[:350] + "!" + STABLE[351:] + "{{ question }}")
    # 700 characters: 175 tokens, 10 full blocks of 16. Line 11 begins at character 350, behind 87
    # tokens, 5 full blocks.
    result = run("p", "--fail-on", "error")
    assert result.exit_code == 1
    assert result.stdout == (
        "p/a.jinja:11:1: error WHET051 this prompt changed from this line on: 80 tokens "
        "(5 blocks) are computed once more on every server; its stable prefix of 175 tokens has "
        "175 now; revert it, or accept it with --write-lock\n"
        "1 error, 0 warnings, 0 notes in 1 file\n"
    )
    assert run("p", "--write-lock").exit_code == 0
    assert run("p").exit_code == 0


def test_new_and_vanished_prompts(run: Lint) -> None:
    write("p/a.txt", "one")
    write("p/b.txt", "two")
    run("p", "--write-lock", "--lock", "p/prompts.lock")
    Path("p/a.txt").rename("p/c.txt")
    result = run("p", "--lock", "p/prompts.lock")
    assert result.exit_code == 1
    first, second, _summary = result.stdout.splitlines()
    assert first.startswith("p/c.txt:1:1: warning WHET052 ")
    assert second.startswith("p/prompts.lock:1:1: warning WHET053 this prompt is gone: a.txt;")


def test_a_run_over_some_files_leaves_the_others_locked(run: Lint) -> None:
    write("a.txt", "one")
    write("b.txt", "two")
    run("a.txt", "b.txt", "--write-lock")
    assert run("a.txt").exit_code == 0
    write("a.txt", "other")
    assert run("a.txt", "--write-lock").stderr == "prompts.lock: 2 prompts\n"
    assert run("a.txt", "b.txt").exit_code == 0


def test_a_broken_lock_is_refused_and_written_again(run: Lint) -> None:
    write("a.txt", "one")
    write("prompts.lock", "<<<<<<< ours\n")
    result = run("a.txt")
    assert result.exit_code == UsageError.exit_code
    assert run("a.txt", "--write-lock").exit_code == 0
    assert run("a.txt").exit_code == 0


def test_reports_for_machines(run: Lint) -> None:
    write("p/a.txt", "a secret sk-a1b2c3d4e5f6 \n")
    result = run("p", "--json", "-o", "lint.json")
    assert (result.exit_code, result.stdout) == (1, "")
    data = json.loads(run("p", "--json").stdout)
    assert data == json.loads(Path("lint.json").read_text())
    assert [each["rule"] for each in data["findings"]] == ["WHET041", "WHET021"]
    assert (data["files"], data["problems"]) == (1, [])
    assert "a1b2c3" not in json.dumps(data)
    assert "secret" not in run("p", "--redact", "--ignore", "WHET041").stdout


def test_tokens_of_a_tokenizer_are_no_estimate(run: Lint) -> None:
    write_tokenizer(Path("model"))
    write("a.jinja", "{{ now }}" + STABLE)
    result = run("a.jinja", "--tokenizer", "model", "--write-lock")
    assert "about" not in result.stdout
    assert json.loads(Path("prompts.lock").read_text())["tokens_by"].startswith("tokenizer.json ")
