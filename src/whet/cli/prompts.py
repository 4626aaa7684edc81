"""``whet prompts``: what a prefix cache can find in a request log, and what prevents more."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from whet.cli import prompts_lint
from whet.cli.console import ConsoleObserver
from whet.core.errors import UsageError
from whet.core.store import translate_disk_errors

if TYPE_CHECKING:
    from whet.core.records import ReplayResult
    from whet.prompts.analyse import PromptLog
    from whet.prompts.causes import Variables
    from whet.prompts.records import CauseKind

_ANALYSE: Final = "analyse"
_CACHE: Final = "Cache"
_FILES: Final = "Files"
_DEFAULT_BLOCK: Final = 16


class _LogByDefault(TyperGroup):
    """A group whose first word may be a log instead of a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command before a log."""
        if args and args[0] not in self.commands and args[0] not in {"--help", "-h"}:
            args = [_ANALYSE, *args]
        return super().parse_args(ctx, args)


group = typer.Typer(
    cls=_LogByDefault,
    no_args_is_help=True,
    help="Analyse how well a request log's prompts share the prefix cache, and which fixes raise "
    "the hit rate: whet prompts LOG --model DIR.",
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group.command(_ANALYSE)(analyse)
    group.command("lint")(prompts_lint.lint)
    app.add_typer(group, name="prompts")


def analyse(
    log: Annotated[
        Path,
        typer.Argument(
            help="Requests as JSON lines, OpenTelemetry GenAI spans, or a folder of prompts."
        ),
    ],
    model: Annotated[
        str, typer.Option(help="Model folder or hub id, for its tokenizer and chat template.")
    ],
    served_model: Annotated[
        str | None, typer.Option(help="Model to analyse in a log of several models.")
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="Chat template file. Default: the model's own.")
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of requests to read.")
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave all text of prompts out of the output.")
    ] = False,
    block_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens per KV block. Default: that of --run, else 16.",
            rich_help_panel=_CACHE,
        ),
    ] = None,
    cache_tokens: Annotated[
        int | None, typer.Option(min=1, help="Cache size in tokens.", rich_help_panel=_CACHE)
    ] = None,
    cache_gib: Annotated[
        float | None, typer.Option(min=0.001, help="Cache size in GiB.", rich_help_panel=_CACHE)
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="Run directory of whet, for its cache size and block size.",
            rich_help_panel=_CACHE,
        ),
    ] = None,
    verify: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Replay the first N requests on vLLM, as they are and with the fixes.",
        ),
    ] = None,
    output_dir: Annotated[
        Path,
        typer.Option("-o", "--output-dir", help="Folder of the report.", rich_help_panel=_FILES),
    ] = Path("prompts"),
    fixed_log: Annotated[
        Path | None,
        typer.Option(help="Write the log with the fixes to this file.", rich_help_panel=_FILES),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(
            help="Write the log's prefix structure without its text, for whet bench --trace.",
            rich_help_panel=_FILES,
        ),
    ] = None,
) -> None:
    """Find what keeps prompts from sharing the prefix cache, and the fixes that pay."""
    from whet.prompts.analyse import PromptLog, PromptQuestion
    from whet.prompts.analyse import analyse as analyse_log
    from whet.prompts.cache_size import CacheSize, find_cache
    from whet.prompts.report import print_report, write_report
    from whet.prompts.trace_writer import write_prefix_trace

    size = CacheSize(tokens=cache_tokens, gib=cache_gib, run=run)
    block, blocks = find_cache(size, target=model, block_size=block_size, default=_DEFAULT_BLOCK)
    question = PromptQuestion(
        log=log,
        target=model,
        block_size=block,
        cache_blocks=blocks,
        model=served_model,
        max_requests=max_requests,
        chat_template=chat_template,
        redacted=redact,
    )
    with ConsoleObserver() as observer:
        observer.stage("read", log.name)
        prompts = PromptLog(question)
        analysis, variables = analyse_log(
            prompts, progress=lambda count: observer.progress("requests", count, 0)
        )
        kinds = analysis.fix_kinds
        if verify is not None:
            output_dir.mkdir(parents=True, exist_ok=True)
            replays = _verify(prompts, variables, kinds, (verify, output_dir), observer)
            analysis = replace(analysis, replays=replays)
        write_report(analysis, output_dir)
        print_report(analysis, observer.console)
        if fixed_log is not None:
            _write_log(prompts, variables, kinds, fixed_log)
            observer.note(f"written: {fixed_log}")
        if workload is not None:
            write_prefix_trace(prompts.prompts(), workload)
            observer.note(f"written: {workload}")
        observer.console.print(f"\nReport: {output_dir / 'prompts.html'}", highlight=False)


def _verify(
    prompts: PromptLog,
    variables: Variables,
    kinds: Collection[CauseKind],
    request: tuple[int, Path],
    observer: ConsoleObserver,
) -> tuple[ReplayResult, ...]:
    """Replay the first prompts on a server, as they are and with the fixes."""
    from functools import partial
    from itertools import islice

    from whet.flow.prompts import ReplayRequest, replay_prompts
    from whet.prompts.analyse import predict

    count, folder = request
    first = list(islice(prompts.prompts(), count))
    sets = {"as the log is": [prompt.ids for prompt in first]}
    if kinds:
        sets["with the fixes"] = [p.ids for p in prompts.fixed(first, variables, kinds)]
    block_size = prompts.question.block_size
    return replay_prompts(
        ReplayRequest(
            target=prompts.question.target,
            prompts=sets,
            block_size=block_size,
            log=folder / "replay.log",
        ),
        partial(predict, block_size),
        observer,
    )


def _write_log(
    prompts: PromptLog, variables: Variables, kinds: Collection[CauseKind], path: Path
) -> None:
    """Write the log with the fixes, one OpenAI request a line."""
    from whet.prompts.fixes import apply_fixes
    from whet.prompts.log_writer import request_line

    if path.resolve() == prompts.question.log.resolve():
        raise UsageError(f"--fixed-log {path} is the log itself; give another file")
    with translate_disk_errors(path), path.open("w", encoding="utf-8") as file:
        for prompt in prompts.prompts():
            line = request_line(apply_fixes(prompt.request, variables, kinds))
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
