"""``whet prompts`` at a terminal: the hit rate, what is lost to what, and what mending is worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.core.records import Cause, PromptAnalysis
from whet.report.prompts_excerpt import REDACTED, ShownExcerpt, shown_excerpt
from whet.report.prompts_words import (
    CAUSE_HEADS,
    REPLAY_HEADS,
    STEP_HEADS,
    cause_cells,
    cause_words,
    differences,
    headline,
    left_out_lines,
    ordered,
    replay_rows,
    saving_sentence,
    setting,
    step_cells,
    steps,
)
from whet.report.text import one_line


def print_prompts(analysis: PromptAnalysis, console: Console) -> None:
    """Print the sentence, causes with an excerpt each, proposals, replays and what is left out.

    Text of prompts is printed as itself: no mark-up of it is obeyed, no control character sent.
    """
    console.print(Text(headline(analysis), "bold"))
    console.print(Text("; ".join(setting(analysis)), "dim"))
    _print_causes(analysis, console)
    _print_proposals(analysis, console)
    _print_replays(analysis, console)
    for line in left_out_lines(analysis):
        console.print(Text(f"left out: {line}", "yellow"))


def _print_causes(analysis: PromptAnalysis, console: Console) -> None:
    causes = ordered(analysis)
    if not causes:
        console.print(Text("No cause was found that keeps requests from sharing.", "dim"))
        return
    console.print()
    cells = [cause_cells(cause, analysis) for cause in causes]
    console.print(_table("What is lost, and to what", CAUSE_HEADS, cells))
    for at, cause in enumerate(causes, 1):
        console.print()
        _print_cause(at, cause, console)


def _print_cause(at: int, cause: Cause, console: Console) -> None:
    console.print(Text(f"{at}. {cause_words(cause.kind)}: {one_line(cause.mend)}"))
    if cause.examples:
        found = shown_excerpt(cause.examples[0], cause.kind)
        console.print(Text(f"   {one_line(found.title)}", "dim"))
        console.print(_excerpt(found), overflow="fold")


def _excerpt(found: ShownExcerpt) -> Text:
    line = Text("   ")
    if found.redacted:
        return line.append(REDACTED, "dim")
    line.append(found.before).append("[", "dim").append(found.here, "bold red")
    line.append(" | ", "dim").append(found.there, "bold green").append("]", "dim")
    return line.append(found.after)


def _print_proposals(analysis: PromptAnalysis, console: Console) -> None:
    if not analysis.proposals:
        return
    console.print()
    cells = [
        step_cells(proposal.title, proposal.requests, step)
        for proposal, step in zip(analysis.proposals, steps(analysis), strict=True)
    ]
    if analysis.speed is None:
        console.print(_table("Proposals, one after the other", STEP_HEADS[:-1], cells))
    else:
        console.print(_table("Proposals, one after the other", STEP_HEADS, cells))
        console.print(Text(saving_sentence(analysis)))


def _print_replays(analysis: PromptAnalysis, console: Console) -> None:
    if analysis.replays:
        console.print()
        console.print(_table("Replayed on a server", REPLAY_HEADS, replay_rows(analysis)))
        for sentence in differences(analysis):
            console.print(Text(sentence, "yellow"))


def _table(title: str, heads: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    """A table without lines; words wrap, figures do not. Surplus cells of a line are dropped."""
    made = Table(title=Text(title, "bold"), title_justify="left", padding=(0, 1, 0, 0))
    made.box, made.pad_edge = None, False
    for head in heads:
        words = head in ("cause", "where", "proposal", "replay")
        made.add_column(
            head, justify="left" if words else "right", no_wrap=not words, overflow="fold"
        )
    for line in lines:
        made.add_row(*(Text(cell) for cell in line[: len(heads)]))
    return made
