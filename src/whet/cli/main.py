"""The ``whet`` command: parses, calls, prints errors as one sentence, exits with their code."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter, UnknownOptionError
from cyclopts.config import Env
from rich.console import Console

from whet import __version__
from whet.cli.bench.command import bench
from whet.cli.break_even import break_even
from whet.cli.ci import ci, ci_init
from whet.cli.demo import demo, write_testbed_command
from whet.cli.deploy import deploy
from whet.cli.doctor import doctor
from whet.cli.init import init
from whet.cli.prompts.analyse import analyse
from whet.cli.prompts.lint import lint
from whet.cli.quality.command import quality
from whet.cli.quantize.command import quantize
from whet.cli.run.check import check
from whet.cli.run.decide import decide
from whet.cli.run.report import report
from whet.cli.run.run import run
from whet.cli.stops import stop_message
from whet.cli.watch import watch
from whet.core.errors import InfeasibleError, Interrupted, UsageError, WhetError
from whet.core.redact import redact
from whet.flow.bench.options import REFUSED

_MAIN: Final = Group.create_ordered("From a checkpoint to a decision")
_TOOLS: Final = Group.create_ordered("The tools alone")
_WITH_THE_ENGINE: Final = ("torch", "compressed_tensors")  # not among whet's own dependencies


def _default_text(value: object) -> str | None:
    """The default in a help text; an option that is off, or says it in words, shows none."""
    return None if value is None or value is False or value == () else str(value)


_PARAMETER: Final = Parameter(
    negative=(),
    show_default=_default_text,
    show_env_var=False,
    consume_multiple=False,
    allow_repeating=True,
)
app = App(
    name="whet",
    help="Find the cheapest vLLM configuration that meets your latency and quality targets, and "
    "prove that it works.",
    help_epilogue="Start: whet init, whet check, whet run. No GPU: whet demo.\n\n"
    "Each option can be set by a variable: WHET_RUN_NAME is --name of whet run.",
    version=__version__,
    config=Env("WHET_", command=True),
    default_parameter=_PARAMETER,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
# A group of commands repeats the defaults: cyclopts' generated pages do not inherit them.
_demo = App(name="demo", default_command=demo, help_epilogue="", default_parameter=_PARAMETER)
_demo.command(write_testbed_command, name="testbed")
_prompts = App(
    name="prompts", default_command=analyse, help_epilogue="", default_parameter=_PARAMETER
)
_prompts.command(lint)
_ci = App(name="ci", default_command=ci, help_epilogue="", default_parameter=_PARAMETER)
_ci.command(ci_init, name="init")
_COMMANDS: Final[dict[Group, tuple[App | Callable[..., None], ...]]] = {
    _MAIN: (init, check, run, report, decide, deploy, watch, _ci, _demo),
    _TOOLS: (doctor, bench, quality, quantize, break_even, _prompts),
}
for _group, _members in _COMMANDS.items():
    for _place, _member in enumerate(_members):
        if isinstance(_member, App):
            _member.group, _member.sort_key = _group, _place
            app.command(_member)
        else:
            app.command(_member, group=_group, sort_key=_place, help_epilogue="")
app.register_install_completion_command()


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted(f"stopped by {signal.Signals(number).name}")


def _usage_error(error: CycloptsError) -> UsageError:
    """A wrong option in one sentence."""
    option = error.token.keyword if isinstance(error, UnknownOptionError) and error.token else None
    if option in REFUSED and sys.argv[1:2] == ["bench"]:
        return UsageError(f"{option} is not supported: {REFUSED[option]}")
    return UsageError(" ".join(str(error).split()))


def main() -> None:
    """Entry point: every ``WhetError`` becomes one line on stderr and its exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without UTF-8 gets question marks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        signal.signal(signal.SIGHUP, _stop)
    try:
        _call(sys.argv[1:])
    except (KeyboardInterrupt, Interrupted):
        print(redact(stop_message(sys.argv[1:])), file=sys.stderr)
        sys.exit(Interrupted.exit_code)
    except WhetError as error:
        print(f"error: {redact(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)


def _call(words: list[str]) -> None:
    try:
        app(words, exit_on_error=False, print_error=False, console=_console())
    except CycloptsError as error:
        raise _usage_error(error) from error
    except ModuleNotFoundError as error:
        if error.name not in _WITH_THE_ENGINE:
            raise
        raise InfeasibleError(
            f"{error.name} is not installed; install it with vLLM: pip install 'whet[gpu]', or "
            "without: pip install compressed-tensors"
        ) from error


def _console() -> Console:
    """For help texts: as wide as the terminal, at most 100 columns."""
    return Console(width=min(100, Console().width))
