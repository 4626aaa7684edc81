"""The ``whet`` command: parses, calls, prints errors as one sentence, exits with their code."""

from __future__ import annotations

import csv
import errno
import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from cyclopts import App, CycloptsError, Group, MissingArgumentError
from cyclopts.config import Env
from cyclopts.help import DefaultFormatter, HelpPanel
from rich.console import Console, ConsoleOptions

from whet._version import __version__
from whet.cli.options import PARAMETER
from whet.cli.terminal import TerminalConsole, clean_output
from whet.core.errors import InfeasibleError, Interrupted, UsageError, WhetError
from whet.core.quote import shell_words
from whet.core.redact import message_line, redact

_MAIN: Final = Group.create_ordered("From a checkpoint to a decision")
_TOOLS: Final = Group.create_ordered("The tools alone")
_OPTIONS: Final = Group.create_ordered("Options")
_WITH_THE_ENGINE: Final = ("torch", "compressed_tensors")  # not among whet's own dependencies


app = App(
    name="whet",
    help="Find the cheapest vLLM configuration that meets your latency and quality targets, and "
    "prove that it works.",
    help_epilogue="Start: whet init, whet check, whet run. No GPU: whet demo.\n\n"
    "Each option can be set by a variable: WHET_RUN_NAME is --name of whet run.",
    version=__version__,
    version_flags=("--version", "-V"),
    config=Env("WHET_", command=True),
    default_parameter=PARAMETER,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
# Paths: a command is imported when it is used, and does not wait for the imports of the others.
_COMMANDS: Final = {
    _MAIN: {
        "init": "init:init",
        "plan": "plan:plan",
        "check": "run.check:check",
        "run": "run.run:run",
        "report": "run.report:report",
        "decide": "run.decide:decide",
        "deploy": "deploy:deploy",
        "watch": "watch:watch",
        "ci": "ci:commands",
        "demo": "demo:demo",
    },
    _TOOLS: {
        "doctor": "doctor:doctor",
        "bench": "bench:bench",
        "quality": "quality:quality",
        "quantize": "quantize:quantize",
        "prompts": "prompts:commands",
    },
}
_SHOWN: Final = frozenset(
    {
        *("URL", "--model", "--num-prompts", "--request-rate", "--max-concurrency", "--against"),
        *("--random-input-len", "--random-output-len", "--dataset-path", "--trace", "--objective"),
        *("--find-max", "--save-result", "--json"),
    }
)
"""What whet bench --help shows; --help-all has the other options."""


class _ShortHelp(DefaultFormatter):
    """The essential options of whet bench, or all with --help-all."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print the entries of a panel that are wanted."""
        whole = "--help-all" in sys.argv
        entries = [each for each in panel.entries if whole or _SHOWN & set(each.display_labels)]
        super().__call__(console, options, panel.copy(entries=entries))


_BENCH: Final[dict[str, Any]] = {
    "help_flags": ("--help", "-h", "--help-all"),
    "help_formatter": _ShortHelp(),
    "help_epilogue": "whet bench --help-all shows every option.",
}
for _group, _members in _COMMANDS.items():
    for _place, (_name, _path) in enumerate(_members.items()):
        _own = {} if _path.endswith(":commands") else {"help_epilogue": ""}
        _own = _BENCH if _name == "bench" else _own
        app.command(f"whet.cli.{_path}", name=_name, group=_group, sort_key=_place, **_own)
app.register_install_completion_command(group=_OPTIONS)
for _name in ("--help", "--version"):
    app[_name].group = (_OPTIONS,)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted(f"stopped by {signal.Signals(number).name}")


def _usage_error(error: CycloptsError) -> UsageError:
    """A wrong option in one sentence."""
    if isinstance(error, MissingArgumentError) and error.argument and error.keyword is None:
        command = " ".join(["whet", *(error.command_chain or ())])
        name, text = error.argument.name, error.argument.parameter.help
        fix = f"give {name}: {text}" if text else f"{command} --help describes it"
        return UsageError(f"{command} needs {name}", fix=fix)
    return UsageError(" ".join(str(error).split()))


def _own_words(words: list[str]) -> list[str]:
    """The words under our names; ``UsageError`` for those that another version or tool has."""
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    table = Path(__file__).with_name("other_words.csv").read_text(encoding="utf-8")
    command, own = words[0] if words else "", list[str]()
    rows = csv.DictReader(table.splitlines())
    known = {row["option"]: row for row in rows if row["command"] == command}
    for word in ["", *words[1:]]:
        name, mark, value = word.partition("=")
        row = known.get(name)
        if row is not None and row["instead"]:
            shown = f"whet {command} {name}".rstrip()
            raise UsageError(f"{shown} is not supported", fix=row["instead"])
        own.append((name if row is None else row["same"]) + mark + value)
    return [*words[:1], *own[1:]]


def main() -> None:
    """Entry point: every ``WhetError`` becomes its cause and fix on stderr, and its exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without UTF-8 gets question marks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGQUIT, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        signal.signal(signal.SIGHUP, _stop)
    with clean_output():
        _exit_with_code(sys.argv[1:])


def _exit_with_code(words: list[str]) -> None:
    try:
        _call(words)
    except (KeyboardInterrupt, Interrupted):
        print(redact(_stop_message(words)), file=sys.stderr)
        sys.exit(Interrupted.exit_code)
    except WhetError as error:
        lines = "\n".join(message_line(str(line)) for line in error.args)
        print(f"error: {lines}", file=sys.stderr)
        if error.fix is not None:
            print(f"fix: {message_line(error.fix)}", file=sys.stderr)
        sys.exit(error.exit_code)


def _stop_message(words: list[str]) -> str:
    """``Stopped.`` and the next step: only ``run`` and ``demo`` have ``--resume``."""
    if words[:1] == ["bench"]:
        return "Stopped. Figures printed above cover what was measured before."
    if words[:1] not in (["run"], ["demo"]):
        return "Stopped. Run the command again."
    again = shell_words(["whet", *(word for word in words if word != "--resume"), "--resume"])
    return f"Stopped. Resume: {again}"


def _call(words: list[str]) -> None:
    words = _own_words(words)
    if not words or words[0] in ("--help", "-h"):
        app.resolved_commands()  # for the line that says what each does
    with translated_errors():
        app(words, exit_on_error=False, print_error=False, console=_console())


@contextmanager
def translated_errors() -> Iterator[None]:
    """Wrong options, paths that cannot be read and missing packages as errors of whet."""
    try:
        yield
    except CycloptsError as error:
        raise _usage_error(error) from error
    except (OSError, RuntimeError) as error:
        if not _is_bad_path(error):
            raise
        raise UsageError(f"{error}", fix="name a path that can be read") from error
    except ModuleNotFoundError as error:
        if error.name not in _WITH_THE_ENGINE:
            raise
        raise InfeasibleError(
            f"{error.name} is not installed",
            fix="install it with vLLM, or without: pip install compressed-tensors",
        ) from error


def _is_bad_path(error: OSError | RuntimeError) -> bool:
    """Whether a path is a loop of links, too long, or below the home of an unknown user."""
    if isinstance(error, OSError):
        return error.errno in (errno.ELOOP, errno.ENAMETOOLONG)
    return str(error).startswith(("Symlink loop", "Could not determine home"))


def _console() -> TerminalConsole:
    """For help texts: as wide as the terminal, at most 100 columns."""
    return TerminalConsole(width=min(100, TerminalConsole().width))
