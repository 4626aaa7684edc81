"""``whet prompts``: what a prefix cache can find in a request log, and what prevents more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from whet.cli.options import OutputOptions, command_group, print_json
from whet.cli.prompts.lint import lint
from whet.core.records.codec import encode
from whet.prompts.options import PromptsOptions


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
) -> object:
    """Find why prompts miss the prefix cache, and what a fix would save."""
    from whet.prompts.analyse import PromptLog, PromptQuestion
    from whet.prompts.analyse import analyse as analyse_log
    from whet.prompts.cache import cache_blocks
    from whet.prompts.report import print_report, write_fixed_log, write_report, write_workload

    files, cache = options.files, options.cache
    question = PromptQuestion(
        log=log,
        target=model,
        block_size=cache.block_size,
        cache_blocks=cache_blocks(cache.cache_tokens, cache.block_size),
        model=options.log.model,
        max_requests=options.log.max_requests,
        chat_template=options.log.chat_template,
        redacted=options.log.redact,
    )
    with output.observer() as observer:
        observer.stage("read", log.name)
        prompts = PromptLog(question)
        analysis, variables = analyse_log(
            prompts, progress=lambda count: observer.progress("requests", count, 0)
        )
        document = write_report(analysis, files.output_dir)
        if output.json:
            print_json(encode(analysis))
        print_report(document, output.console)
        if files.fixed_log is not None:
            write_fixed_log(prompts, variables, analysis.fix_kinds, files.fixed_log)
            observer.note(f"written: {files.fixed_log}")
        if files.workload is not None:
            left_out = write_workload(prompts.prompts(), files.workload)
            observer.note(f"written: {files.workload}; requests left out: {left_out}")
        path = files.output_dir / "prompts.html"
        output.console.print(f"\nReport: {path}", soft_wrap=True)
        output.result(path)
    return analysis


commands = command_group("prompts", analyse)
commands.command(lint)
