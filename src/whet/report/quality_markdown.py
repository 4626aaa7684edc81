"""The quality gate in ``report.md``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whet.report.markdown_text import fenced, safe, table
from whet.report.quality_checks import CheckLine, CheckTable, check_tables
from whet.report.quality_rows import (
    DISTANCE_HEADS,
    QualityRow,
    TaskCell,
    distance_note,
    has_distances,
    quality_reasons,
    quality_rows,
    task_table,
)
from whet.report.sections import lost_answers, timed_text, timed_text_words
from whet.report.text import DASH, EMPTY
from whet.report.view import RunView


def quality_lines(view: RunView) -> Iterator[str]:
    """Likelihoods, tasks, each check, lost answers, degenerate text."""
    yield "## Quality\n"
    rows = quality_rows(view)
    wide = has_distances(rows)
    heads = [f"{name}, {unit}" for name, unit in DISTANCE_HEADS] if wide else []
    yield from table(
        ["config", "tolerances", "perplexity", "against baseline", *heads],
        [_row(row, wide=wide) for row in rows],
        left=2,
    )
    if wide:
        yield f"{safe(distance_note(view))}\n"
    yield from _told(quality_reasons(view))
    yield from _tasks(view)
    for found in check_tables(view):
        yield from _check(found)
    yield from _lost(view)
    yield from _timed_text(view)


def _row(row: QualityRow, *, wide: bool) -> list[str]:
    return [
        safe(row.variant),
        ", ".join(f"{limit} {safe(verdict)}" for limit, verdict in row.verdicts),
        safe(row.perplexity.full),
        "baseline" if row.change is None else safe(row.change.full),
        *(safe(item.full) for item in (row.distances if wide else ())),
    ]


def _tasks(view: RunView) -> Iterator[str]:
    found = task_table(view)
    if found is None:
        return
    lines = [[safe(name), *map(_task, cells)] for name, cells in found.rows]
    lines.append(["*can see a loss of*", *map(safe, found.visible)])
    yield from table(["task scores", *map(safe, found.tasks)], lines)


def _task(cell: TaskCell | None) -> str:
    if cell is None:
        return DASH
    told = [f"{cell.score.marked} ({cell.asked})"]
    if cell.difference != EMPTY:
        told.append(f"{cell.difference.full} points")
    if cell.flips:
        told.append(cell.flips)
    return "<br>".join(safe(item) for item in told)


def _check(found: CheckTable) -> Iterator[str]:
    yield f"### {safe(found.title)}\n\n{safe(found.meaning)}\n"
    words = ["config", *([found.subject] if found.subject else [])]
    words += ["verdict"] if found.judged else []
    heads = [f"{name}, {unit}" if unit else name for name, unit in found.heads]
    lines = [_check_line(found, line) for line in found.lines]
    yield from table([*words, *heads], lines, left=len(words))
    yield from _told(found.notes)


def _told(said: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield from (f"- {safe(variants)}: {safe(sentence)}" for variants, sentence in said)
    if said:
        yield ""


def _check_line(found: CheckTable, line: CheckLine) -> list[str]:
    return [
        safe(line.variant),
        *([safe(line.subject or DASH)] if found.subject else []),
        *([f"**{safe(line.verdict or DASH)}**"] if found.judged else []),
        *(safe(item.full) for item in line.figures),
    ]


def _lost(view: RunView) -> Iterator[str]:
    for lost in lost_answers(view):
        yield f"Answers that {safe(lost.variants)} lost:\n"
        for example in lost.examples[:3]:
            yield f"**{safe(example.task)}**\n\n{fenced(example.prompt)}\n"
            yield f"expected\n\n{fenced(example.expected)}\n"
            yield f"{safe(lost.baseline)} answered\n\n{fenced(example.baseline)}\n"
            yield f"{safe(lost.variants)} answered\n\n{fenced(example.answer)}\n"


def _timed_text(view: RunView) -> Iterator[str]:
    records = timed_text(view)
    if not records:
        return
    yield "### Degenerate text in timed answers\n"
    for record in records:
        yield f"- {safe(record.variant)}: **{safe(record.verdict)}**, " + safe(
            timed_text_words(record)
        )
    yield ""
    for record in (item for item in records if item.verdict != "pass" and item.examples):
        yield f"{safe(record.variant)} answered\n"
        yield from (f"{fenced(example)}\n" for example in record.examples)
