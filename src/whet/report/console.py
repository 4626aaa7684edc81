"""The end of a run at a terminal: comparison table, decision matrix, recommendation."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.core.records import Decision, MatrixEntry
from whet.report import rows
from whet.report.costs import cost_sentences
from whet.report.factorial import factorial_sentences
from whet.report.head_of_line import print_head_of_line
from whet.report.sections import blank_reasons, exclusions, reading_notes
from whet.report.text import Shown, one_line, shown
from whet.report.view import RunView

_STATE_STYLE = {
    "failed": "red",
    "interrupted": "yellow",
    "missing": "dim",
    "unproven": "strike dim",
    "excluded": "strike dim",
    "good": "",
}
_DROP_ORDER = ("TPOT p50", "Prefix hits", "Acceptance", "Memory")
_FIXED_WIDTH = 8
"""Room for the batch size and the gaps beside it."""


def print_report(view: RunView, console: Console) -> None:
    """Print what a person wants to know at once; the files hold the rest."""
    if view.missing:
        console.print(_plain("This run is incomplete:", "bold yellow"))
        for item in view.missing:
            console.print(_plain(f"  {item}"))
    if view.about_testbed:
        console.print(_plain(view.about_testbed, "yellow"))
    if view.cells:
        console.print(_comparison(view, console.width))
        _print_notes(view, console)
    print_head_of_line(view, console)
    for sentence in cost_sentences(view):
        console.print(_plain(f"· {sentence}"))
    for sentence in factorial_sentences(view, every_metric=False):
        console.print(_plain(f"· {sentence}"))
    if view.decision is not None:
        print_decision(view.decision, console)


def print_decision(decision: Decision, console: Console) -> None:
    """Print the matrix of each tier, where speculation stops paying, and the recommendation."""
    for matrix in rows.matrix_tables(decision):
        console.print(_matrix(matrix, decision))
    for reason, where in blank_reasons(decision):
        console.print(_plain(f"{', '.join(where)}: {reason}", "dim"))
    for item in exclusions(decision):
        console.print(_plain(f"{item.where} excluded: {item.reason}", "dim"))
    for pair in decision.break_even:
        console.print(_plain(f"· {pair.sentence}"))
    console.print()
    title, sentence = rows.decision_headline(decision)
    chosen = decision.recommendation
    won = "bold green" if rows.is_win(decision) else "bold"
    console.print(_plain(title, won if chosen else "bold yellow"))
    console.print(_plain(sentence))
    for reason in chosen.reasons if chosen else ():
        console.print(_plain(f"  + {reason}"))
    for caution in chosen.cautions if chosen else ():
        console.print(_plain(f"  ! {caution}", "yellow"))


def _comparison(view: RunView, width: int) -> Table:
    """The comparison table with as many columns as the terminal holds."""
    lines = [row for row in rows.comparison_rows(view) if row.state != "missing"]
    kept, with_evidence = _fitting(lines, width)
    table = Table(title=_plain(view.name, "bold"), title_justify="left", padding=(0, 1, 0, 0))
    table.box, table.pad_edge = None, False
    table.add_column("config", no_wrap=True)
    table.add_column("batch", justify="right")
    for at in kept:
        heading = rows.headings()[at]
        table.add_column(f"{heading.name}\n{heading.unit}", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    if with_evidence:
        table.add_column("evidence", no_wrap=True)
    doubts = {at for at in kept if not all(row.figures[at].sure for row in lines)}
    last = None
    for row in lines:
        if last not in (None, row.variant):
            table.add_row()
        figures = [_figure(row.figures[at], doubtful=at in doubts) for at in kept]
        style = _STATE_STYLE.get(row.state, "")
        if row.recommended:
            style = "bold green" if row.won else "bold"
        texts = _endings(row)[: 2 if with_evidence else 1]
        endings = (_plain(text, "not strike") for text in texts)
        name = "" if row.variant == last else row.variant
        table.add_row(_plain(name), str(row.batch_size), *figures, *endings, style=style)
        last = row.variant
    return table


def _endings(row: rows.Row) -> tuple[str, str]:
    """The status, which is the cell's state before a decision, and the evidence."""
    state = row.state if row.state in ("failed", "interrupted") else ""
    return row.status or state, row.evidence or ""


def _figure(item: Shown, *, doubtful: bool) -> Text:
    """A figure; where its column holds doubtful ones, digits stay under digits."""
    room = "  " if doubtful and item.sure else ""
    return Text(f"{item.marked}{room}", "" if item.sure else "dim")


def _fitting(lines: Sequence[rows.Row], width: int) -> tuple[list[int], bool]:
    """The figure columns that fit into ``width``, and whether the evidence does, as the last."""
    wide = {}
    for at, heading in enumerate(rows.headings()):
        figures = [row.figures[at] for row in lines]
        doubtful = not all(item.sure for item in figures)
        shows = [_figure(item, doubtful=doubtful).plain for item in figures]
        texts = [heading.name, heading.unit, *shows]
        wide[at] = max(map(len, texts)) + 1
    status, evidence = (
        max(len(head), *(len(_endings(row)[at]) for row in lines)) + 1
        for at, head in enumerate(("status", "evidence"))
    )
    room = width - max(len(row.variant) for row in lines) - _FIXED_WIDTH - status
    order = [next(at for at in wide if rows.headings()[at].name == name) for name in _DROP_ORDER]
    while order and sum(wide.values()) > room - evidence:
        del wide[order.pop(0)]
    return list(wide), sum(wide.values()) <= room - evidence


def _print_notes(view: RunView, console: Console) -> None:
    """Why rows carry no figures, or figures that do not count."""
    told = [row for row in rows.comparison_rows(view) if row.note and row.state != "missing"]
    console.print(_plain("? too few samples to certify this percentile", "dim"))
    for note in reading_notes(view):
        console.print(_plain(note, "dim"))
    for row in () if view.decision else told:
        console.print(_plain(f"{row.variant} @ {row.batch_size}: {row.note}", "dim"))


def _matrix(matrix: rows.MatrixTable, decision: Decision) -> Table:
    table = Table(
        title=_plain(f"Decision matrix, {matrix.tier}", "bold"),
        title_justify="left",
        show_lines=True,
    )
    table.add_column("")
    for tolerance in matrix.tolerances:
        table.add_column(rows.tolerance_words(tolerance))
    for target, entries in matrix.rows:
        table.add_row(rows.target_words(target), *(_entry(entry, decision) for entry in entries))
    return table


def _entry(entry: MatrixEntry | None, decision: Decision) -> Text:
    title, second = rows.entry_words(entry)
    if entry is None or entry.outcome == "none":
        return _plain(title, "dim")
    if entry.outcome != "winner":
        return _plain(f"{title}\n{second}", "yellow", lines=True)
    style = ""
    if rows.is_corner(decision.recommendation, entry):
        style = "bold green" if rows.is_win(decision) else "bold"
    latency = shown(entry.ttft_p95_ms)
    doubt = "" if latency.sure else "?"
    return _plain(f"{title}\n{second}\nTTFT p95 {latency.text}{doubt} ms", style, lines=True)


def _plain(text: str, style: str = "", *, lines: bool = False) -> Text:
    """Foreign text as itself: no mark-up, no escape codes."""
    parts = text.split("\n") if lines else [text]
    return Text("\n".join(_indent(part) + one_line(part) for part in parts), style)


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" "))]
