"""``whet prompts``: what a prefix cache can find in a request log, and what prevents more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from whet.cli.observer import ConsoleObserver
from whet.cli.options import OutputOptions, command_group, print_json
from whet.cli.prompts.lint import lint
from whet.core.records.codec import encode
from whet.prompts.options import PromptsOptions

if TYPE_CHECKING:
    from whet.core.records.hits import ReplayResult
    from whet.prompts.analyse import PromptLog
    from whet.prompts.causes import Variables
    from whet.prompts.records import CauseKind


def analyse(
    log: Annotated[
        Path,
        Parameter(
            help="Request log: JSON lines or a JSON array, plain, gzip or zstd, or a folder."
        ),
    ],
    /,
    *,
    model: Annotated[
        str, Parameter(help="Model folder or hub id, for its tokenizer and chat template.")
    ],
    options: PromptsOptions = PromptsOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Find why prompts miss the prefix cache, and what a fix would save."""
    from whet.prompts.analyse import PromptLog, PromptQuestion
    from whet.prompts.analyse import analyse as analyse_log
    from whet.prompts.cache_size import find_cache
    from whet.prompts.log_writer import write_fixed_log
    from whet.prompts.report import print_report, write_report
    from whet.prompts.trace_writer import write_workload

    cache, files = options.cache, options.files
    block, blocks = find_cache(cache, model)
    question = PromptQuestion(
        log=log,
        target=model,
        block_size=block,
        cache_blocks=blocks,
        model=options.log.model,
        max_requests=options.log.max_requests,
        chat_template=options.log.chat_template,
        redacted=options.log.redact,
    )
    output_dir, verify = files.output_dir, cache.verify
    with output.observer() as observer:
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
        document = write_report(analysis, output_dir)
        if output.json:
            print_json(encode(analysis))
        print_report(document, output.console)
        if files.fixed_log is not None:
            write_fixed_log(prompts, variables, kinds, files.fixed_log)
            observer.note(f"written: {files.fixed_log}")
        if files.workload is not None:
            left_out = write_workload(prompts.prompts(), files.workload)
            observer.note(f"written: {files.workload}; requests left out: {left_out}")
        output.console.print(f"\nReport: {output_dir / 'prompts.html'}")


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

    from whet.flow.prompts import replay_prompts
    from whet.prompts.analyse import predict

    count, folder = request
    first = list(islice(prompts.prompts(), count))
    sets = {"as the log is": [prompt.ids for prompt in first]}
    if kinds:
        sets["with the fixes"] = [p.ids for p in prompts.fixed(first, variables, kinds)]
    block_size = prompts.question.block_size
    return replay_prompts(
        prompts.question.target,
        sets,
        partial(predict, block_size),
        block_size=block_size,
        log=folder / "replay.log",
        observer=observer,
    )


commands = command_group("prompts", analyse)
commands.command(lint)
