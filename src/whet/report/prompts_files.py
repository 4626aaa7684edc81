"""What ``whet prompts`` found as files: a page, Markdown, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from whet.core.records import CacheCurve, Cause, PromptAnalysis, Proposal
from whet.core.store import write_atomic
from whet.report.cells_csv import Value, field
from whet.report.markdown_text import fenced, safe, table
from whet.report.prompts_excerpt import REDACTED, shown_excerpt
from whet.report.prompts_html import render_prompts
from whet.report.prompts_sides import Row, side_by_side
from whet.report.prompts_words import (
    CAUSE_HEADS,
    REPLAY_HEADS,
    STEP_HEADS,
    cause_cells,
    cause_words,
    differences,
    headline,
    left_out_lines,
    method,
    ordered,
    replay_rows,
    saving_sentence,
    setting,
    step_cells,
    steps,
    when,
)

CAUSE_COLUMNS: Final[tuple[str, ...]] = (
    "kind",
    "cause",
    "requests",
    "tokens",
    "share",
    "where",
    "since",
    "mend",
    "place",
    "other_place",
    "token",
    "before",
    "here",
    "there",
    "after",
)
"""Every column of ``causes.csv``; the excerpt is the first one, empty under ``--redact``."""
CURVE_COLUMNS: Final[tuple[str, ...]] = (
    "traffic",
    "blocks",
    "kv_tokens",
    "hit_tokens",
    "prompt_tokens",
    "hit_rate",
)
"""Every column of ``curve.csv``; ``traffic`` is ``as_is`` or ``repaired``."""
_SIGNS: Final = {"same": (" ", " "), "moved": ("<", ">")}


def write_prompts(analysis: PromptAnalysis, folder: Path) -> None:
    """Write prompts.html, prompts.md, causes.csv and curve.csv, each whole or as before.

    Raises ``StorageError`` where the disk is full.
    """
    causes = (_cause_row(cause, analysis) for cause in ordered(analysis))
    write_atomic(folder / "causes.csv", _csv(CAUSE_COLUMNS, causes).encode())
    points = (
        *_curve_rows("as_is", analysis.curve),
        *_curve_rows("repaired", analysis.repaired_curve),
    )
    write_atomic(folder / "curve.csv", _csv(CURVE_COLUMNS, points).encode())
    write_atomic(folder / "prompts.md", render_prompts_markdown(analysis).encode())
    write_atomic(folder / "prompts.html", render_prompts(analysis).encode())


def render_prompts_markdown(analysis: PromptAnalysis) -> str:
    """The whole report as Markdown; text of prompts stands in fences that it cannot close."""
    parts = (
        _opening(analysis),
        _causes(analysis),
        _proposals(analysis),
        _replays(analysis),
        _ending(analysis),
    )
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def _opening(analysis: PromptAnalysis) -> Iterator[str]:
    yield f"# Prefix caching: {safe(analysis.source)}\n"
    yield f"{safe(headline(analysis))}\n"
    yield f"{safe('; '.join(setting(analysis)))}.\n"


def _causes(analysis: PromptAnalysis) -> Iterator[str]:
    yield "## What is lost, and to what\n"
    causes = ordered(analysis)
    if not causes:
        yield "No cause was found that keeps requests from sharing.\n"
        return
    lines = [[safe(cell) for cell in cause_cells(cause, analysis)] for cause in causes]
    yield from table(CAUSE_HEADS, lines, left=2)
    for cause in causes:
        yield f"**{safe(cause_words(cause.kind))}**: {safe(cause.mend)}\n"
        for example in cause.examples:
            found = shown_excerpt(example, cause.kind, room=120)
            yield f"{safe(found.title)}:\n\n{fenced(found.line)}\n"


def _proposals(analysis: PromptAnalysis) -> Iterator[str]:
    if not analysis.proposals:
        return
    yield "## Proposals, one after the other\n"
    pairs = list(zip(analysis.proposals, steps(analysis), strict=True))
    lines = [[safe(cell) for cell in step_cells(p.title, p.requests, step)] for p, step in pairs]
    yield from table(STEP_HEADS, lines)
    if sentence := saving_sentence(analysis):
        yield f"{safe(sentence)}\n"
    for proposal in analysis.proposals:
        yield f"### {safe(proposal.title)}\n"
        yield f"{safe(proposal.place)}, `-` before, `+` after, `<` moved from, `>` moved to:\n"
        yield f"{fenced(_difference(proposal))}\n"


def _replays(analysis: PromptAnalysis) -> Iterator[str]:
    if analysis.replays:
        yield "## Replayed on a server\n"
        rows = replay_rows(analysis)
        yield from table(REPLAY_HEADS, [[safe(cell) for cell in row] for row in rows])
        yield from (f"- {safe(sentence)}" for sentence in differences(analysis))
        yield ""


def _ending(analysis: PromptAnalysis) -> Iterator[str]:
    if analysis.left_out:
        yield "## Left out\n"
        yield from (f"- {safe(line)}" for line in left_out_lines(analysis))
        yield ""
    yield "## How it is counted\n"
    yield from (f"- {safe(sentence)}" for sentence in method(analysis))


def _difference(proposal: Proposal) -> str:
    if proposal.before is None or proposal.after is None:
        return REDACTED
    rows = side_by_side(proposal.before, proposal.after)
    return "\n".join(line for row in rows for line in _diff_lines(row)) or "(the same)"


def _diff_lines(row: Row) -> Iterator[str]:
    if row.kind == "skip":
        yield f"@@ {row.note} @@"
        return
    gone, come = _SIGNS.get(row.kind, ("-", "+"))
    if row.left is not None:
        yield f"{gone} {row.left.text}"
    if row.right is not None and row.kind != "same":
        yield f"{come} {row.right.text}"


def _cause_row(cause: Cause, analysis: PromptAnalysis) -> Mapping[str, Value]:
    whole = analysis.hits.prompt_tokens
    row: dict[str, Value] = {
        "kind": cause.kind,
        "cause": cause_words(cause.kind),
        "requests": cause.requests,
        "tokens": cause.tokens,
        "share": cause.tokens / whole if whole else None,
        "where": cause.where,
        "since": None if cause.since_ns is None else when(cause.since_ns),
        "mend": cause.mend,
    }
    for example in cause.examples[:1]:
        found = shown_excerpt(example, cause.kind, room=120)
        row |= {"place": example.place, "other_place": example.other_place, "token": example.token}
        if not found.redacted:
            row |= {"before": found.before, "here": found.here}
            row |= {"there": found.there, "after": found.after}
    return row


def _curve_rows(traffic: str, curve: CacheCurve) -> Iterator[Mapping[str, Value]]:
    whole = curve.prompt_tokens
    for point in curve.points:
        yield {
            "traffic": traffic,
            "blocks": point.blocks,
            "kv_tokens": point.blocks * curve.block_size,
            "hit_tokens": point.hit_tokens,
            "prompt_tokens": whole,
            "hit_rate": point.hit_tokens / whole if whole else None,
        }


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Value]]) -> str:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([field(row.get(name)) for name in columns])
    return buffer.getvalue()
