"""The ``whet`` command: parses, calls, prints errors as one sentence, exits with their code."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import whet.levers  # noqa: F401  levers add their keys to whet.yaml
from whet import __version__
from whet.cli import (
    bench,
    break_even,
    check,
    decide,
    demo,
    doctor,
    init,
    prompts,
    quality,
    quantize,
    report,
    run,
)
from whet.cli.stops import stop_message
from whet.core.errors import Interrupted, WhetError
from whet.core.redact import redact


class _Commands(TyperGroup):
    """Ctrl-C as one of our errors: typer would end the process without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted("stopped by Ctrl-C") from error


app = typer.Typer(
    name="whet",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="From a 16-bit checkpoint, a workload and a service objective to a cheaper serving "
    "configuration, with the evidence.",
)
for command in (
    init,
    check,
    doctor,
    run,
    quantize,
    bench,
    quality,
    report,
    decide,
    break_even,
    prompts,
    demo,
):
    command.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted(f"stopped by {signal.Signals(number).name}")


def main() -> None:
    """Entry point: every ``WhetError`` becomes one line on stderr and its exit code."""
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        signal.signal(signal.SIGHUP, _stop)
    try:
        app(prog_name="whet")
    except Interrupted as error:
        print(redact(stop_message(sys.argv[1:])), file=sys.stderr)
        sys.exit(error.exit_code)
    except WhetError as error:
        print(f"error: {redact(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
