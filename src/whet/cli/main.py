"""The ``whet`` command: parses, calls, prints errors as one sentence, exits with their code."""

from __future__ import annotations

import errno
import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from cyclopts import App, CycloptsError, Group, UnknownOptionError
from cyclopts.config import Env

from whet._version import __version__
from whet.cli.options import PARAMETER
from whet.cli.terminal import TerminalConsole, clean_output
from whet.core.errors import InfeasibleError, Interrupted, UsageError, WhetError
from whet.core.quote import shell_words
from whet.core.redact import message_line, redact

_MAIN: Final = Group.create_ordered("From a checkpoint to a decision")
_TOOLS: Final = Group.create_ordered("The tools alone")
_WITH_THE_ENGINE: Final = ("torch", "compressed_tensors")  # not among whet's own dependencies


app = App(
    name="whet",
    help="Find the cheapest vLLM configuration that meets your latency and quality targets, and "
    "prove that it works.",
    help_epilogue="Start: whet init, whet check, whet run. No GPU: whet demo.\n\n"
    "Each option can be set by a variable: WHET_RUN_NAME is --name of whet run.",
    version=__version__,
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
        "bench": "bench.command:bench",
        "quality": "quality:quality",
        "quantize": "quantize:quantize",
        "prompts": "prompts.analyse:commands",
    },
}
_REMOVED: Final = {
    **{
        f"{command} {old}": f"whet {command} {old} is --set load.concurrency=[1,8] now"
        for command in ("run", "check")
        for old in ("--batch-sizes", "--concurrency")
    },
    "demo testbed": "whet demo testbed is now lab's, in a clone of whet: "
    "python -m lab.testbed 7b OUT, with the same options",
    "break-even": "whet break-even is now part of a run: give a variant speculation with "
    "synthetic_acceptance: [0, 0.5, 1], then whet run; its report has the map",
    "prompts --verify": "whet prompts --verify is now whet bench: write the log's prefix structure "
    "with whet prompts --workload FILE, then whet bench URL --trace FILE",
    "quality --golden": "whet quality --golden is now whet watch, which asks a run's golden probes",
    "run --budget": "whet run --budget is search: {time: 30m} in whet.yaml now",
    "plan --spec": "whet plan --spec is gone: write a whet.yaml with whet init",
    "calibrate": "whet calibrate is gone: measure what whet plan proposes, with whet run",
    "quantize --push-to-hub": "whet quantize --push-to-hub is gone: upload the folder with "
    "hf upload OWNER/NAME OUT, with --private for a private repository",
    "quantize --compare": "whet quantize --compare is now a run: write preset: schemes into "
    "whet.yaml, then whet run; its report has the table",
}
for _group, _members in _COMMANDS.items():
    for _place, (_name, _path) in enumerate(_members.items()):
        _own = {} if _path.endswith(":commands") else {"help_epilogue": ""}
        app.command(f"whet.cli.{_path}", name=_name, group=_group, sort_key=_place, **_own)
app.register_install_completion_command()


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted(f"stopped by {signal.Signals(number).name}")


def _usage_error(error: CycloptsError) -> UsageError:
    """A wrong option in one sentence."""
    option = error.token.keyword if isinstance(error, UnknownOptionError) and error.token else None
    if sys.argv[1:2] == ["bench"]:
        from whet.flow.bench.options import refused

        if option is not None and (instead := refused().get(option)):
            return UsageError(f"{option} is not supported: {instead}")
    return UsageError(" ".join(str(error).split()))


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
    if not words or words[0] in ("--help", "-h"):
        app.resolved_commands()  # for the line that says what each does
    options = [f"{words[0]} {word.partition('=')[0]}" for word in words[1:]]
    for name in (*words[:1], *options):
        if name in _REMOVED:
            raise UsageError(_REMOVED[name])
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
            fix="install it with vLLM: pip install 'whet[gpu]', or "
            "without: pip install compressed-tensors",
        ) from error


def _is_bad_path(error: OSError | RuntimeError) -> bool:
    """Whether a path is a loop of links, too long, or below the home of an unknown user."""
    if isinstance(error, OSError):
        return error.errno in (errno.ELOOP, errno.ENAMETOOLONG)
    return str(error).startswith(("Symlink loop", "Could not determine home"))


def _console() -> TerminalConsole:
    """For help texts: as wide as the terminal, at most 100 columns."""
    return TerminalConsole(width=min(100, TerminalConsole().width))
