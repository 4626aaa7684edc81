"""Whether the timed answers are text at all."""

from __future__ import annotations

from whet.core.format import plural
from whet.core.records.quality_checks import DegenerateTraffic
from whet.core.run import Run
from whet.report.document import (
    Code,
    Folded,
    Node,
    Paragraph,
    Section,
    table,
    verdict_cell,
)

ORDER = 95
_WORDS = (
    "Every timed answer up to its first end token: empty, one mark without end, unreadable, or in "
    "a loop. A variant fails where its share is significantly above the baseline’s, or where "
    "nearly all of its answers say nothing."
)


def build(run: Run) -> Section | None:
    """One line a variant, and what the failed ones answered."""
    records = [run.degenerate[name] for name in run.variants if name in run.degenerate]
    if not records:
        return None
    made = table(
        "Degenerate text among timed answers",
        ("config", "verdict", "examined"),
        [[record.variant, verdict_cell(record.verdict), sentence(record)] for record in records],
    )
    nodes: list[Node] = [Paragraph(text=_WORDS, tone="muted"), made]
    for record in records:
        if record.examples:
            answers = [Code(text=text) for text in record.examples]
            summary = f"What {record.variant} answered ({len(answers)})"
            nodes.append(Folded(summary=summary, nodes=answers, is_open=record.verdict == "fail"))
    return Section(
        id="degenerate", title="Degenerate text in timed answers", group="Quality", nodes=nodes
    )


def sentence(record: DegenerateTraffic) -> str:
    """How many answers were examined, what they hold, and the verdict's reason."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in record.found) or "nothing degenerate"
    words = f"{plural(record.answers, 'timed answer')}: {kinds}"
    clean = record.verdict == "pass" and not record.found
    return words if clean or record.reason is None else f"{words}; {record.reason}"
