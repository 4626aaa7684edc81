"""A comparison as a short document: for a pull request and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whet.ci.result import ORDER, Check, CiResult
from whet.core.format import plural
from whet.report.document import (
    Bullets,
    Document,
    Node,
    Paragraph,
    Section,
    Table,
    table,
    tone_of,
    verdict_cell,
)

_ROWS: Final = 15
_CHARACTERS: Final = 160


def ci_document(result: CiResult) -> Document:
    """One line of verdict, the checks with the worst first, and what changed."""
    nodes: list[Node] = [Paragraph(text=_verdict(result), tone=tone_of(result.verdict))]
    nodes.append(_table(sorted(result.checks, key=lambda check: ORDER.index(check.verdict))))
    if (left := len(result.checks) - _ROWS) > 0:
        nodes.append(Paragraph(text=f"{plural(left, 'more check')}: see --junit or --json."))
    return Document(
        title=f"whet ci: {result.verdict}",
        facts=[result.variant, f"{result.candidate} against {result.baseline}"],
        sections=[
            Section(id="checks", title="Checks", group="Checks", nodes=nodes),
            Section(id="changes", title="What changed", group="Changes", nodes=[_changes(result)]),
        ],
    )


def _verdict(result: CiResult) -> str:
    """How many checks passed, failed and are unknown, and the allowed regression."""
    counts = [f"{len(result.counted(verdict))} {verdict}" for verdict in reversed(ORDER)]
    return (
        f"{result.verdict}: {', '.join(counts)}, with {100 * result.max_regression:g}% allowed. "
        "Unknown counts as not passed."
    )


def _table(checks: Sequence[Check]) -> Table:
    rows = ((verdict_cell(c.verdict), c.name, _cut(c.sentence)) for c in checks[:_ROWS])
    return table("Checks, the worst first", ("verdict", "check", "result"), rows)


def _changes(result: CiResult) -> Node:
    if not result.changes:
        return Paragraph(text="Nothing: same machine, engine, weights, traffic and spec.")
    items = [
        f"{each.what}: {_cut(each.baseline)} → {_cut(each.candidate)}"
        for each in result.changes[:_ROWS]
    ]
    if (left := len(result.changes) - _ROWS) > 0:
        items.append(f"{plural(left, 'more difference')}: see --json")
    return Bullets(items=items)


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"
