"""The help of every command, as it was agreed on.

After a wanted change write it again: ``WHET_UPDATE_SNAPSHOT=1 python -m pytest tests/cli``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import typer

from whet.cli.main import app

SNAPSHOT = Path(__file__).with_name("help.txt")


def help_of(command: tuple[str, ...]) -> str:
    # A process each: the width and the colours are settled when typer is imported.
    words = ["whet", *command, "--help"]
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = (line.rstrip() for line in done.stdout.strip().splitlines())
    return "\n".join([f"$ {' '.join(words)}", *lines, ""])


def commands_of(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of a command and of all below it, as ``whet --help`` orders them."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_of(below, (*path, name))


def test_commands_of_a_group_are_walked() -> None:
    found = list(commands_of(typer.main.get_command(app)))
    assert {(), ("run",), ("demo",), ("demo", "testbed")} <= set(found)


def test_the_help_is_the_snapshot() -> None:
    commands = commands_of(typer.main.get_command(app))
    with ThreadPoolExecutor(2) as pool:
        text = "\n".join(pool.map(help_of, commands))
    if os.environ.get("WHET_UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(text, encoding="utf-8")
    assert text == SNAPSHOT.read_text(encoding="utf-8"), "WHET_UPDATE_SNAPSHOT=1 writes it again"
