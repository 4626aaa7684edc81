"""What several commands share: where output goes, and a console and an observer that follow it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from whet.cli.terminal import TerminalConsole
from whet.core.errors import UsageError, WhetError
from whet.core.numbers import LARGEST
from whet.core.redact import printable_json, redact

if TYPE_CHECKING:
    from whet.cli.observer import ConsoleObserver


def _default_text(value: object) -> str | None:
    """The default in a help text; an option that is off, or says it in words, shows none."""
    return None if value is None or value is False or value == () else str(value)


_MOST: Final[Mapping[type, int]] = {int: 10**7, float: LARGEST}
_NEGATIVE: Final = ("top_k", "frequency_penalty", "presence_penalty")
_ENDLESS: Final = ("request_rate", "burstiness")
_LARGEST_SEED: Final = 2**64
_SHOWN: Final = 40


def require_numbers(_kind: object, options: Any, name: str = "") -> None:
    """Refuse what no option can mean: nan, inf, numbers below 0 and of any size.

    A narrower range is written at the option; ``_ENDLESS`` may be infinite.
    """
    if is_dataclass(options):
        for each in fields(options):
            require_numbers(None, getattr(options, each.name), each.name)
    elif isinstance(options, tuple):
        for item in options:
            require_numbers(None, item, name)
    elif (most := _MOST.get(type(options))) is not None:
        most = _LARGEST_SEED if name == "seed" else most
        least = -most if name in _NEGATIVE else 0
        if not least <= options <= most and not (options == math.inf and name in _ENDLESS):
            flag = f"--{name.replace('_', '-')}"
            shown = str(options)[:_SHOWN]
            raise UsageError(f"{flag} takes a number from {least:,} to {most:,} (got {shown})")


PARAMETER: Final = Parameter(
    validator=require_numbers,
    negative=(),
    show_default=_default_text,
    show_env_var=False,
    consume_multiple=False,
    allow_repeating=True,
)
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
    def console(self) -> TerminalConsole:
        """Where tables and sentences go."""
        return TerminalConsole(stderr=self.json, quiet=self.quiet)

    def end(self, error: WhetError) -> None:
        """End the command with the exit code of its result, such as a failed gate."""
        raise error

    def result(self, path: Path) -> None:
        """Print the path of a result, where nothing else is printed."""
        if self.quiet and not self.json:
            print_line(str(path))

    def observer(self) -> ConsoleObserver:
        """Progress and warnings; use it as a context manager."""
        from whet.cli.observer import ConsoleObserver

        return ConsoleObserver(TerminalConsole(stderr=self.json), quiet=self.quiet)


def print_json(document: object) -> None:
    """Print one JSON document to stdout, secrets redacted."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=False, indent=1)
    sys.stdout.write(printable_json(redact(text)) + "\n")


def print_line(text: str = "") -> None:
    """Print a line to stdout."""
    sys.stdout.write(f"{text}\n")


def command_group(name: str, default: Callable[..., object]) -> App:
    """A command with commands below it; ``default`` is what it does itself."""
    # It repeats the defaults of all options: cyclopts' generated pages do not inherit them.
    return App(name=name, default_command=default, help_epilogue="", default_parameter=PARAMETER)
