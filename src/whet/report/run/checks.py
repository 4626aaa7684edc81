"""Further checks of the gate: same weights, speculation, served tokens, degenerate text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from whet.core.format import number, percent, plural
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import (
    DegenerateTraffic,
    GreedyParity,
    LosslessCheck,
    TokenIdentity,
)
from whet.core.run import Run
from whet.report.document import (
    Bullets,
    Code,
    Column,
    Folded,
    Heading,
    Node,
    Paragraph,
    Section,
    figure_columns,
    table,
    verdict_cell,
)
from whet.report.run.quality import distance_figures, merge_duplicates, quality_records
from whet.report.text import millinats

ORDER = 92
_DEGENERATE: Final = (
    "Every timed answer up to its first end token: empty, one mark without end, unreadable, or in "
    "a loop. A variant fails where its share is significantly above the baseline’s, or where "
    "nearly all of its answers say nothing."
)
_Line = tuple[Sequence[object], Sequence[str]]
"""The cells of one line, and sentences below the table."""


def build(run: Run) -> Section | None:
    """Every check that some variant was put to."""
    nodes = [*check_nodes(quality_records(run)), *_degenerate(run)]
    if not nodes:
        return None
    return Section(id="checks", title="Further checks", group="Quality", nodes=nodes)


def check_nodes(records: Sequence[QualityRecord]) -> list[Node]:
    """A table with its meaning and notes for each check that some record holds."""
    return [
        *_same_weights(records),
        *_lossless(records),
        *_identity(records),
    ]


def _nodes(
    title: str, meaning: str, columns: Iterable[Column | str], lines: Sequence[_Line]
) -> list[Node]:
    """One check of all variants; nothing without lines."""
    if not lines:
        return []
    notes = merge_duplicates((str(cells[0]), note) for cells, notes in lines for note in notes)
    return [
        Heading(text=title),
        Paragraph(text=meaning, tone="muted"),
        table(title, columns, (cells for cells, _ in lines), details=True),
        Bullets(items=[f"{names}: {words}" for names, words in notes]),
    ]


def _same_weights(records: Sequence[QualityRecord]) -> list[Node]:
    by_name = {record.variant: record for record in records}
    heads = (
        ("KL", "millinats"),
        ("the repeat’s KL", "millinats"),
        ("KL p99", "millinats"),
        ("flips", "of positions"),
    )
    return _nodes(
        "Same weights",
        "Variants of the same weights differ by the order of additions, which the first one’s "
        "repeat shows; one that is much further away has a fault.",
        ["config", "compared with", *figure_columns(*heads)],
        [
            _same_weights_line(record, by_name.get(record.twin))
            for record in records
            if record.twin is not None
        ],
    )


def _same_weights_line(record: QualityRecord, reference: QualityRecord | None) -> _Line:
    kl, p99, flips = distance_figures(record.twin_distances)
    repeat = reference.twin_distances if reference is not None else None
    itself = record.twin == record.variant
    cells = (
        record.variant,
        "itself, repeated" if itself else record.twin,
        None if itself else kl,
        None if repeat is None else millinats(repeat.kl),
        p99,
        flips,
    )
    return cells, ()


def _lossless(records: Iterable[QualityRecord]) -> list[Node]:
    heads = (
        ("greedy", "same"),
        ("plain again", "same"),
        ("McNemar", "p"),
        ("margin", "median, nats"),
        ("margin", "largest, nats"),
        ("sampled", "p"),
        ("accepted here", "% of drafts"),
    )
    return _nodes(
        "Speculation against the plain server",
        "Greedy continuations that equal the plain server’s, and those of its own repeat; by how "
        "much the plain server’s token led at the first difference (near 0 is a tie); a test of "
        "sampled text; and this check’s own accepted drafts.",
        ["config", "verdict", *figure_columns(*heads)],
        [
            _lossless_line(record.variant, record.lossless)
            for record in records
            if record.lossless is not None
        ],
    )


def _lossless_line(variant: str, check: LosslessCheck) -> _Line:
    sampled, accepted = check.sampling, check.acceptance_rate
    cells = (
        variant,
        verdict_cell(check.verdict),
        *_parity_figures(check.parity),
        None if sampled is None else number(sampled.p_value),
        None if accepted is None else percent(accepted),
    )
    return cells, check.reasons


def _parity_figures(parity: GreedyParity | None) -> tuple[object, ...]:
    if parity is None:
        return (None,) * 5
    margins = [each.margin for each in parity.divergences if each.margin is not None]
    return (
        _of(parity.same, parity.prompts),
        _of(parity.aa_same, parity.prompts),
        _figure(parity.p_value),
        _figure(median(margins) if margins else None),
        _figure(max(margins, default=None)),
    )


def _identity(records: Iterable[QualityRecord]) -> list[Node]:
    return _nodes(
        "Served tokens",
        "Whether the server reads text and writes token ids as the baseline’s tokenizer does.",
        ["config", "result", *figure_columns(("checked", "texts"))],
        [
            _identity_line(record, record.identity)
            for record in records
            if record.identity is not None
        ],
    )


def _identity_line(record: QualityRecord, identity: TokenIdentity) -> _Line:
    """What differs and what could not be checked; a fault of the baseline spoils the comparison."""
    notes = list(identity.problems)
    if notes and record.variant == record.baseline:
        notes.append("the baseline’s own server differs, so no variant is compared with it")
    if identity.missing is not None:
        notes.append(f"not checked: {identity.missing}")
    whole = "no difference" if identity.missing is None else "no difference, partly checked"
    same = "not checked" if not identity.checked and identity.missing else whole
    result = "differs" if identity.problems else same
    return (record.variant, result, _figure(identity.checked or None)), notes


def _of(count: int | None, total: int) -> str | None:
    return None if count is None else f"{count:,} of {total:,}"


def _figure(value: float | None) -> str | None:
    return None if value is None else number(value)


def _degenerate(run: Run) -> list[Node]:
    """One line a variant, and what the failed ones answered."""
    records = [run.degenerate[name] for name in run.variants if name in run.degenerate]
    if not records:
        return []
    nodes: list[Node] = [
        Heading(text="Degenerate text in timed answers"),
        Paragraph(text=_DEGENERATE, tone="muted"),
        table(
            "Degenerate text among timed answers",
            ("config", "verdict", "examined"),
            [[each.variant, verdict_cell(each.verdict), sentence(each)] for each in records],
        ),
    ]
    for record in records:
        if record.examples:
            answers = [Code(text=text) for text in record.examples]
            summary = f"What {record.variant} answered ({len(answers)})"
            nodes.append(Folded(summary=summary, nodes=answers, is_open=record.verdict == "fail"))
    return nodes


def sentence(record: DegenerateTraffic) -> str:
    """How many answers were examined, what they hold, and the verdict's reason."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in record.found) or "nothing degenerate"
    words = f"{plural(record.answers, 'timed answer')}: {kinds}"
    clean = record.verdict == "pass" and not record.found
    return words if clean or record.reason is None else f"{words}; {record.reason}"
