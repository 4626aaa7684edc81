"""``whet prompts``: why a log's prompts miss a prefix cache, and ``lint`` before they ship."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from cyclopts import Parameter

from whet.cli.options import OutputOptions, command_group, print_json
from whet.core.errors import UsageError, WhetError
from whet.core.format import plural
from whet.core.names import did_you_mean
from whet.core.records.codec import encode
from whet.core.redact import message_line, printable_json
from whet.core.redact import redact as without_secrets
from whet.prompts.options import Level, LintOptions, PromptsOptions

if TYPE_CHECKING:
    from whet.prompts.lint import Finding


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
    from whet.prompts.analyse import PromptLog
    from whet.prompts.analyse import analyse as analyse_log
    from whet.prompts.report import print_report, write_fixed_log, write_report, write_workload

    with output.observer() as observer:
        observer.stage("read", log.name)
        prompts = PromptLog(log, model, options)
        analysis, variables = analyse_log(
            prompts, progress=lambda count: observer.progress("requests", count, 0)
        )
        document = write_report(analysis, options.output_dir)
        if output.json:
            print_json(encode(analysis))
        print_report(document, output.console)
        if options.fixed_log is not None:
            write_fixed_log(prompts, variables, analysis.fix_kinds, options.fixed_log)
            observer.note(f"written: {options.fixed_log}")
        if options.workload is not None:
            left_out = write_workload(prompts.prompts(), options.workload)
            observer.note(f"written: {options.workload}; requests left out: {left_out}")
        path = options.output_dir / "prompts.html"
        output.console.print(f"\nReport: {path}", soft_wrap=True)
        output.result(path)
    return analysis


def lint(
    paths: Annotated[
        tuple[Path, ...], Parameter(help="Prompt templates, or folders of them.", negative=())
    ],
    /,
    *,
    options: LintOptions = LintOptions(),
) -> None:
    """Find in prompt templates what keeps a prefix cache from hitting.

    Exit code 1 for findings, 2 for a file that cannot be read; the other files are linted.
    """
    from whet.prompts.lint import lint_prompt
    from whet.prompts.prompt_file import find_templates, read_prompt, read_template

    options = replace(options, ignore=_rules(options.ignore))
    problems: list[str] = []
    findings: list[Finding] = []
    files = 0
    for path in find_templates(paths, problems):
        try:
            prompt = read_prompt(read_template(path), Path(os.path.relpath(path)).as_posix())
        except UsageError as error:
            problems.append(str(error))
            continue
        files += 1
        findings += lint_prompt(prompt, options)
    findings.sort(key=lambda finding: (finding.path, finding.line, finding.column, finding.rule))
    problems = list(map(without_secrets, problems))
    _report(files, findings, problems, as_json=options.json)
    if problems:
        sys.exit(UsageError.exit_code)
    levels = get_args(Level)
    failing = levels[: levels.index(options.fail_on) + 1] if options.fail_on != "never" else ()
    if any(each.level in failing for each in findings):
        sys.exit(WhetError.exit_code)


def _rules(given: Sequence[str]) -> tuple[str, ...]:
    from whet.prompts.lint import RULES

    rules = tuple(word.strip().upper() for each in given for word in each.split(","))
    for rule in sorted({*rules} - RULES.keys()):
        near = did_you_mean(rule, RULES) or f"; the rules are {', '.join(RULES)}"
        raise UsageError(f"--ignore {rule!r} is not a rule{near}")
    return rules


def _report(files: int, findings: list[Finding], problems: list[str], *, as_json: bool) -> None:
    counts = Counter(each.level for each in findings)
    levels = ", ".join(plural(counts[level], level) for level in ("error", "warning", "note"))
    text = "".join(map(_line, findings))
    if as_json:
        data = {"files": files, "problems": problems, "findings": list(map(asdict, findings))}
        text = printable_json(json.dumps(data, indent=1, ensure_ascii=False)) + "\n"
    sys.stdout.write(text)
    for sentence in problems:
        print(f"error: {message_line(sentence)}", file=sys.stderr)
    print(f"{levels} in {plural(files, 'file')}", file=sys.stderr if as_json else sys.stdout)


def _line(finding: Finding) -> str:
    place = f"{message_line(finding.path)}:{finding.line}:{finding.column}"
    shown = "" if finding.excerpt is None else f"    {finding.excerpt}\n"
    return f"{place}: {finding.level} {finding.rule} {finding.message}\n{shown}"


commands = command_group("prompts", analyse)
commands.command(lint)
