"""What several commands share: where output goes, and a console and an observer that follow it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from whet.cli.observer import ConsoleObserver
from whet.core.redact import redact

SpecFile = Annotated[Path, Parameter(help="The spec. Write one with: whet init.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class OutputOptions:
    """What is printed, and where."""

    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"])] = False
    """Print warnings, errors and the result's path only."""
    json: bool = False
    """Print one JSON document to stdout and nothing else; messages go to stderr."""

    @property
    def console(self) -> Console:
        """Where tables and sentences go."""
        return Console(stderr=self.json, quiet=self.quiet)

    def observer(self) -> ConsoleObserver:
        """Progress and warnings; use it as a context manager."""
        return ConsoleObserver(Console(stderr=self.json), quiet=self.quiet)


def print_json(document: object) -> None:
    """Print one JSON document to stdout, secrets redacted."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=False, indent=1)
    sys.stdout.write(redact(text) + "\n")


def print_line(text: str = "") -> None:
    """Print a line to stdout as it is."""
    sys.stdout.write(f"{text}\n")
