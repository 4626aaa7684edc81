"""Every ``whet`` command in the docs is one that the command line accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from whet.cli.main import app

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted(REPOSITORY.glob("docs/*.md"))]
BREAKS = {"&&", "|", ">", ";", "..."}


def commands(page: Path) -> Iterator[str]:
    """Indented or fenced lines that begin with ``whet``, continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if fenced or line.startswith("    "):
            start = re.match(r"\s*(?:\$ )?(?:\.venv/bin/)?(whet [a-z].*)", line)
            if start:
                yield start[1]


SHOWN = [(page.name, command) for page in PAGES for command in commands(page)]


def words_of(command: str) -> list[str]:
    """The words up to the first redirection, optional ones in brackets taken."""
    plain = re.sub(r"[\[\]]", " ", re.sub(r"\s*\|\s+--\S+( N)?", "", command))
    words = shlex.split(plain, comments=True)[1:]
    end = next((n for n, word in enumerate(words) if word in BREAKS), len(words))
    return words[:end]


@pytest.mark.parametrize(("page", "command"), SHOWN)
def test_the_command_is_accepted(page: str, command: str) -> None:
    app.parse_args(words_of(command), exit_on_error=False, print_error=False)


def test_the_docs_show_commands() -> None:
    assert len(SHOWN) > 25
