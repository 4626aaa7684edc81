"""The help of every command, as it was agreed on.

After a wanted change write it again: ``WHET_UPDATE_SNAPSHOT=1 python -m pytest tests/cli``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from whet.cli.main import app

SNAPSHOT = Path(__file__).with_name("help.txt")


def help_of(command: tuple[str, ...]) -> str:
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(app, [*command, "--help"], prog_name="whet", env=environment)
    assert result.exit_code == 0, result.output
    lines = (line.rstrip() for line in result.output.strip().splitlines())
    return "\n".join([f"$ {' '.join(['whet', *command, '--help'])}", *lines, ""])


def commands_of(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of a command and of all below it, as ``whet --help`` orders them."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_of(below, (*path, name))


def test_commands_of_a_group_are_walked() -> None:
    found = list(commands_of(typer.main.get_command(app)))
    assert {(), ("run",), ("demo",), ("demo", "testbed")} <= set(found)


def test_the_help_is_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    # Typer reads these two from the environment once, when it is imported.
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", None)
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", None)
    text = "\n".join(map(help_of, commands_of(typer.main.get_command(app))))
    if os.environ.get("WHET_UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8"), "WHET_UPDATE_SNAPSHOT=1 writes it again"
