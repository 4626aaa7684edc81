"""The commands as functions: their flags are keywords, and what they print is the result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from html import escape
from inspect import Parameter, Signature, cleandoc, signature
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, get_origin
from unittest.mock import patch

import yaml
from cyclopts.argument import Argument
from rich.text import Text

import whet.levers  # noqa: F401  levers add their keys to a spec
from whet.cli.main import app, translated_errors
from whet.cli.options import PARAMETER, OutputOptions
from whet.cli.terminal import TerminalConsole
from whet.core.errors import UsageError, WhetError
from whet.core.names import did_you_mean
from whet.core.run import Run as StoredRun
from whet.core.spec import Spec, parse_spec
from whet.report.document import Section

if TYPE_CHECKING:
    import pandas as pd

    from whet.cli.observer import ConsoleObserver

Function = Callable[..., Any]
_FEW: Final = 16
"""The most keywords that a help text explains; of more it has the names."""
_RETURNS: Final = {
    "bench": "ttft, tpot, itl and e2e, each with mean, p50, p90, p95 and p99 in ms from the "
    "scheduled send; tokens_per_s (output), requests_per_s; to_frame(), one row",
    "check": "facts, needs.memory (bytes), advice",
    "decide": "recommendation, matrix, cells, excluded",
    "deploy": "folder, bundle, notes, left_out",
    "plan": "predictions; front, those that none beats",
    "prompts": "hits.rate (a share of the prompt tokens), causes, fixes, best",
    "quality": "verdict, record, baseline_record",
    "quantize": "path, weight_bytes, bits_per_weight, seconds",
    "report": "what whet.load does",
    "run": "what whet.load does. A dict is a spec, too; its paths are of the working directory",
}
"""The attributes of what a function returns."""


@dataclass(frozen=True, repr=False)
class Result:
    """What a command printed; the attributes of its ``record`` are those of the result."""

    record: Any
    text: str

    def summary(self) -> str:
        """Return what the command prints."""
        return self.text

    __str__ = summary

    def __repr__(self) -> str:
        return f"<{self.text.partition(chr(10))[0] or type(self.record).__name__}>"

    def __bool__(self) -> bool:
        return self.record is not None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.record, name)

    def __dir__(self) -> list[str]:
        own = (name for name in (*dir(type(self)), *dir(self.record)) if name[0] != "_")
        return ["record", "text", *own]

    def _repr_html_(self) -> str:
        style = "white-space: pre-wrap; word-break: normal; font-family: monospace"
        return f'<pre style="{style}">{escape(self.text)}</pre>'


@dataclass(frozen=True, repr=False)
class Run(Result):
    """A run on disk, finished or not, with its verdict, which a notebook shows.

    ``record`` is what is stored (``whet.core.run.Run``): ``cells``, ``trials``, ``root`` and more.
    """

    verdict: Section

    @property
    def recommendation(self) -> Result:
        """What to serve, and why; false where nothing qualifies or the run is unfinished."""
        decision = self.record.decision
        return Result(decision and decision.recommendation, self.text)

    def table(self) -> pd.DataFrame:
        """Return one row per cell: configuration, load, figures, cost and standing.

        Latencies are in ms (``ttft_p95_ms``), ``tokens_per_s`` are output tokens, ``memory_gb`` is
        in 10⁹ bytes, ``cost_per_1m_tokens`` in US$. results.csv has the intervals too.
        """
        from whet.report.run.cells_csv import cells_table

        return cells_table(self.record)

    def _repr_html_(self) -> str:
        from whet.report.writers.html import render_section

        return render_section(self.verdict)


def load(run_dir: Path | str | StoredRun) -> Run:
    """Open a run on disk, finished or not.

    ``.recommendation.summary()`` is the verdict as text, ``.table()`` the cells as a DataFrame.
    Raises ``StorageError`` where the folder holds no run.
    """
    from whet.report.run.decision import build
    from whet.report.run.files import summary_text

    stored = run_dir if isinstance(run_dir, StoredRun) else StoredRun.read(Path(run_dir))
    return Run(stored, summary_text(stored), build(stored))


@cache
def function(name: str) -> Function:
    """Return a command as a function, documented by the command's own texts."""
    command = app[name].default_command
    assert command is not None
    options, hints = dict[str, Argument](), dict[str, Any]()
    for argument in app[name].assemble_argument_collection(
        default_parameter=PARAMETER, parse_docstring=True
    ):
        words = [each[2:].replace("-", "_") for each in argument.names if each.startswith("--")]
        if words and words[0] not in ("quiet", "json"):
            hints |= dict.fromkeys(words, argument.hint)
            options[min(words, key=len)] = argument
    own = signature(command).parameters.values()
    places = [
        Parameter(each.name, Parameter.POSITIONAL_OR_KEYWORD, default=each.default)
        for each in own
        if each.kind is not Parameter.KEYWORD_ONLY
    ]

    def call(*given: Any, progress: bool = True, **keywords: Any) -> Any:
        names = [each.name for each in places[len(given) :] if each.name in keywords]
        given = (*given, *(keywords.pop(each) for each in names if each not in hints))
        for keyword in keywords:
            if keyword not in hints:
                hint = did_you_mean(keyword, hints)
                raise UsageError(f"whet.{name} has no keyword {keyword!r}{hint}")
        with ExitStack() as stack, translated_errors(), patch.dict(os.environ):
            words = [name, *(_word(item, stack) for each in given for item in _items(each))]
            for keyword, value in keywords.items():
                words += _flags(keyword, value, repeats=get_origin(hints[keyword]) is tuple)
            page = _Page(progress=progress)
            _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
            record = command(*bound.args, **bound.kwargs, output=page)
        return load(record) if isinstance(record, StoredRun) else Result(record, page.text)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = _help(name, str(command.__doc__), options)
    call.__signature__ = _signature(places, options)  # type: ignore[attr-defined]
    return call


def _help(name: str, text: str, options: Mapping[str, Argument]) -> str:
    if len(options) > _FEW:
        lines = [f"Keywords (whet {name} --help-all explains them): {', '.join(options)}."]
    else:
        lines = [f"{each}: {one.parameter.help}" for each, one in options.items()]
    codes = (f"{each.exit_code} {each.__name__}" for each in WhetError.__subclasses__())
    lines += [f"Returns {_RETURNS[name]}.", f"An exit code is an error here: {', '.join(codes)}."]
    filled = (fill(" ".join(each.split()), 88, subsequent_indent="  ") for each in lines)
    return "\n".join([cleandoc(text), "", *filled])


def _signature(places: Sequence[Parameter], options: Mapping[str, Argument]) -> Signature:
    progress = Parameter("progress", Parameter.KEYWORD_ONLY, default=True)
    if len(options) > _FEW:
        return Signature([*places, progress, Parameter("keywords", Parameter.VAR_KEYWORD)])
    named = [
        Parameter(each, Parameter.KEYWORD_ONLY, default=one.field_info.default)
        for each, one in options.items()
    ]
    return Signature([*places, *named, progress])


@dataclass(frozen=True, kw_only=True)
class _Page(OutputOptions):
    """What a command prints; progress and warnings go to stdout."""

    progress: bool = False
    file: StringIO = field(default_factory=StringIO)

    def observer(self) -> ConsoleObserver:
        return OutputOptions(quiet=not self.progress).observer()

    def end(self, error: WhetError) -> None:
        """Go on: that nothing qualifies, or that a gate fails, is a result."""

    @property
    def console(self) -> TerminalConsole:
        console = TerminalConsole(width=100)
        console.file = self.file
        return console

    @property
    def text(self) -> str:
        """What was printed, without colours."""
        return Text.from_ansi(self.file.getvalue()).plain.strip("\n")


def _items(value: Any) -> list[Any]:
    items = value if isinstance(value, list | tuple) else [value]
    return [each.root if isinstance(each, Run) else each for each in items]


def _word(value: Any, stack: ExitStack) -> str:
    """A word of the command line; the dict of a spec is resolved and written to a file first."""
    if isinstance(value, Spec):
        value = value.model_dump(mode="json", exclude_unset=True)
    if not isinstance(value, Mapping):
        return str(value)
    spec = parse_spec(json.loads(json.dumps(value, default=str)), base=Path())
    file = Path(stack.enter_context(TemporaryDirectory(prefix="whet-")), "whet.yaml")
    file.write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True)))
    return str(file)


def _flags(name: str, value: Any, *, repeats: bool) -> Iterator[str]:
    """A keyword as flags: a list repeats one or is joined by commas, a dict is KEY=VALUE pairs."""
    if isinstance(value, Mapping):
        pairs = [f"{key}={item}" for key, item in value.items()]
        value = json.dumps(value) if name == "extra_body" else pairs
    items = [] if value is None else _items(value)
    for item in items if repeats else [",".join(map(str, items))] if items else []:
        yield f"--{name.replace('_', '-')}={item}"
