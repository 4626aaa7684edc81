"""The help of every command, as it was agreed on.

After a wanted change write it again: ``WHET_UPDATE_SNAPSHOT=1 python -m pytest tests/cli``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App
from rich.console import Console

from whet.cli.main import app

SNAPSHOT = Path(__file__).with_name("help.txt")
ROOT = Path(__file__).parents[2]


def help_of(command: tuple[str, ...]) -> str:
    text = io.StringIO()
    console = Console(file=text, width=100, color_system=None)
    app([*command, "--help"], console=console, exit_on_error=False)
    lines = (line.rstrip() for line in text.getvalue().strip().splitlines())
    return "\n".join([f"$ {' '.join(['whet', *command, '--help'])}", *lines, ""])


def commands_of(group: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of a command and of all below it, in alphabetical order."""
    yield path
    for name in sorted(group):
        if not name.startswith("-"):
            yield from commands_of(group[name], (*path, name))


@pytest.mark.parametrize("name", ["pyproject.toml", "README.md", "CITATION.cff"])
def test_one_wording_says_what_whet_does(name: str) -> None:
    assert app.help in " ".join((ROOT / name).read_text().split())


def test_commands_of_a_group_are_walked() -> None:
    assert {(), ("run",), ("demo",), ("prompts", "lint")} <= set(commands_of(app))


def test_the_help_is_the_snapshot() -> None:
    text = "\n".join(map(help_of, commands_of(app)))
    if os.environ.get("WHET_UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8"), "WHET_UPDATE_SNAPSHOT=1 writes it again"
