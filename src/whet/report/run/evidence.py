"""What each variant claims, and what the engine itself said or counted."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from whet.core.format import plural
from whet.core.records.evidence import Verdict
from whet.core.run import Run
from whet.report.document import (
    Code,
    Folded,
    Node,
    Paragraph,
    Section,
    Table,
    table,
    text_cell,
    verdict_cell,
)

ORDER = 80


def build(run: Run) -> Section | None:
    """Verdicts on one claim that agree are one line; proved ones are folded."""
    if not run.verdicts:
        return None
    proved = sum(verdict.outcome == "proved" for verdict in run.verdicts)
    words = (
        f"{proved} of {plural(len(run.verdicts), 'claim')} proved. A cell whose claim is not "
        "proved cannot be recommended, unless the spec accepts it by name."
    )
    nodes: list[Node] = [Paragraph(text=words)]
    groups = _groups(run)
    for title, wanted in (("Not proved", False), ("Proved", True)):
        rows = [group for group in groups if (group[0].outcome == "proved") == wanted]
        if rows:
            made = _table(title, rows)
            nodes.append(Folded(summary=title, nodes=[made, *_sources(rows)]) if wanted else made)
            nodes += [] if wanted else _sources(rows)
    return Section(id="evidence", title="Evidence", group="Evidence", nodes=nodes)


def _groups(run: Run) -> list[list[Verdict]]:
    groups: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in run.verdicts:
        claim = verdict.claim
        key = (verdict.variant, claim.kind, claim.statement, claim.expected, verdict.outcome)
        groups.setdefault(key, []).append(verdict)
    return list(groups.values())


def _table(caption: str, groups: Iterable[list[Verdict]]) -> Table:
    return table(
        caption,
        ("config", "claim", "load", "verdict", "observed"),
        [
            [
                group[0].variant,
                text_cell(group[0].claim.statement, detail=group[0].claim.expected),
                _sizes(group),
                verdict_cell(group[0].outcome),
                _observed(group),
            ]
            for group in groups
        ],
    )


def _observed(group: list[Verdict]) -> str:
    """What was observed, by concurrency where it differs."""
    words = list(dict.fromkeys(verdict.observed for verdict in group))
    if len(words) == 1:
        return words[0]
    return "; ".join(f"at {_sizes([verdict])}: {verdict.observed}" for verdict in group)


def _sizes(group: list[Verdict]) -> str:
    """``start-up``, or the concurrencies."""
    sizes = [verdict.load for verdict in group]
    return ", ".join("start-up" if size is None else str(size) for size in sizes)


def _sources(groups: list[list[Verdict]]) -> list[Folded]:
    """The engine's own lines and counters, variant by variant."""
    folded = []
    for variant, own in groupby(groups, key=lambda group: group[0].variant):
        lines = [
            f"{verdict.claim.kind}: {source}"
            for group in own
            for verdict in group
            for source in verdict.sources
        ]
        if lines:
            text = "\n".join(dict.fromkeys(lines))
            folded.append(Folded(summary=f"Sources of {variant}", nodes=[Code(text=text)]))
    return folded
