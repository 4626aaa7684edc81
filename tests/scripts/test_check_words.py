"""The check of names and texts against the word list, run as `make lint` runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_words.py"), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "text", "line", "word"),
    [
        ("a.py", "x = 1\nfound = 2\n", 2, "found"),
        ("a.py", "def f(asked: int) -> None: ...\n", 1, "asked"),
        ("a.py", "class Kept: ...\n", 1, "Kept"),
        ("a.py", "class C:\n    served_count: int\n", 2, "served_count"),
        ("a.py", "for told_now in []: ...\n", 1, "told_now"),
        ("a.py", "from b import c as seen\n", 1, "seen"),
        ("story.py", "x = 1\n", 1, "story"),
        ("a.py", 'def f():\n    """Nothing.\n\n    A riddle is\n    none."""\n', 4, "is none"),
        ("a.py", "x = 1  # to pull a lever\n", 1, "pull a lever"),
        ("a.py", 'x = f"{1} is no address"\n', 1, "is no"),
        ("a.md", "# T\n\nThe log tells it.\n", 3, "tells"),
        ("a.html.j2", "<p>\n{{ x }}, of which 3</p>\n", 2, "of which"),
    ],
)
def test_a_banned_word_is_reported_where_it_is(
    tmp_path: Path, name: str, text: str, line: int, word: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    result = check(tmp_path)
    assert result.returncode == 1
    assert f"{file}:{line}: '{word}' → " in result.stdout


@pytest.mark.parametrize(
    "text",
    [
        "served_model_name = 'm'\n",  # vLLM's own flag
        "NOT_FOUND = 404\n",
        "underserved = foundation = 1\n",
        '"""``None`` if `x` is None; it is no longer read. There is no log."""\n',
        "x = d['found']\n",  # a key that somebody else named
    ],
)
def test_a_plain_text_passes(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.py").write_text(text)
    result = check(tmp_path)
    assert (result.returncode, result.stdout) == (0, "")


def test_stored_fields_may_keep_their_names() -> None:
    """`Judgement.asked` is a key of stored runs; no other module may use the name."""
    assert check(ROOT / "src" / "whet" / "core" / "records" / "objective.py").returncode == 0


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    result = check(tmp_path / "nothing")
    assert result.returncode == 1
    assert "no such file or folder" in result.stderr


def test_what_is_not_on_the_waiting_list_is_clean() -> None:
    result = check()
    assert result.returncode == 0, result.stdout


def test_the_waiting_list_names_what_exists() -> None:
    entries = (ROOT / "scripts" / "words-todo.txt").read_text().split()
    assert [entry for entry in entries if not (ROOT / entry).exists()] == []
