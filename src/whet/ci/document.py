"""A comparison as a short document: for a pull request and for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from whet.ci.result import ORDER, WORDS, Check, CiResult
from whet.core.format import plural
from whet.report.document import (
    Bullets,
    Document,
    Node,
    Paragraph,
    Section,
    table,
    tone_of,
    verdict_cell,
)

_ROWS: Final = 15
_CHARACTERS: Final = 160


def ci_document(result: CiResult) -> Document:
    """The verdict, the checks that decide, the advisory figures, and what changed."""
    nodes: list[Node] = [Paragraph(text=_verdict(result), tone=tone_of(result.verdict))]
    if result.cause is not None:
        nodes.append(Paragraph(text=f"{result.cause}.", tone="warn"))
    nodes += _table([check for check in result.checks if check.role != "advisory"])
    advisory = [check for check in result.checks if check.role == "advisory"]
    sections = [Section(id="checks", title="Checks that decide", group="Checks", nodes=nodes)]
    if advisory:
        title, rows = "Advisory figures, which decide nothing", list(_table(advisory))
        sections.append(Section(id="advisory", title=title, group="Checks", nodes=rows))
    changed = [_changes(result)]
    sections.append(Section(id="changes", title="What changed", group="Changes", nodes=changed))
    return Document(
        title=f"whet ci: {result.verdict}",
        facts=[result.variant, f"{result.candidate} against {result.baseline}"],
        sections=sections,
    )


def _verdict(result: CiResult) -> str:
    """The primary check's result, and how many checks passed, failed and are unknown."""
    counts = ", ".join(f"{len(result.counted(word))} {word}" for word in reversed(ORDER))
    primary = result.primary
    cost = "" if primary is None else f" {primary.name}: {primary.sentence}."
    return (
        f"{result.verdict}:{cost} {counts}, with {100 * result.max_regression:g}% allowed. "
        "Unknown counts as not passed."
    )


def _table(checks: Sequence[Check]) -> Iterator[Node]:
    """The primary check, then the worst first."""
    order = sorted(checks, key=lambda x: (x.role != "primary", WORDS.index(x.verdict)))
    rows = (
        (
            verdict_cell(x.verdict),
            f"{x.name} (primary)" if x.role == "primary" else x.name,
            _cut(x.sentence),
        )
        for x in order[:_ROWS]
    )
    yield table("The worst first", ("verdict", "check", "result"), rows)
    if (left := len(checks) - _ROWS) > 0:
        yield Paragraph(text=f"{plural(left, 'more check')}: see --junit or --json.")


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
