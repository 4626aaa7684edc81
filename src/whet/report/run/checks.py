"""Further checks of the gate: same weights, speculation, schemas, served tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from whet.core.format import number, percent, plural
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import (
    GreedyParity,
    LosslessCheck,
    StructuredScore,
    TokenIdentity,
)
from whet.core.run import Run
from whet.report.document import (
    Bullets,
    Column,
    Heading,
    Node,
    Paragraph,
    Section,
    figure_columns,
    table,
    verdict_cell,
)
from whet.report.run.quality import (
    distance_figures,
    flips_words,
    merge_duplicates,
    quality_records,
)
from whet.report.text import DASH, EMPTY, Shown, millinats, shown

ORDER = 92
_NAMED: Final = 8
"""Differences named one by one; the rest are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """One line of a check: its subject and verdict, figures, and sentences below the table."""

    variant: str
    subject: str = ""
    verdict: str = ""
    figures: tuple[Shown, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Check:
    """One check of all variants; ``heads`` are (name, unit) of its figures."""

    title: str
    meaning: str
    heads: tuple[tuple[str, str], ...]
    lines: Sequence[_Line]
    subject: str = ""


def build(run: Run) -> Section | None:
    """Every check that some variant was put to."""
    nodes = check_nodes(quality_records(run))
    if not nodes:
        return None
    return Section(id="checks", title="Further checks", group="Quality", nodes=nodes)


def check_nodes(records: Sequence[QualityRecord]) -> list[Node]:
    """A table with its meaning and notes for each check that some record holds."""
    checks = (_same_weights(records), _lossless(records), _structured(records), _identity(records))
    return [node for check in checks if check.lines for node in _nodes(check)]


def _nodes(check: _Check) -> list[Node]:
    judged = any(line.verdict for line in check.lines)
    columns = [Column(name="config")]
    columns += [Column(name=check.subject)] if check.subject else []
    columns += [Column(name="verdict")] if judged else []
    rows = []
    for line in check.lines:
        words = [line.subject] if check.subject else []
        verdicts = [verdict_cell(line.verdict)] if judged else []
        rows.append([line.variant, *words, *verdicts, *line.figures])
    made = table(check.title, [*columns, *figure_columns(*check.heads)], rows)
    notes = merge_duplicates((line.variant, note) for line in check.lines for note in line.notes)
    return [
        Heading(text=check.title),
        Paragraph(text=check.meaning, tone="muted"),
        replace(made, details=True),
        Bullets(items=[f"{names}: {words}" for names, words in notes]),
    ]


def _same_weights(records: Sequence[QualityRecord]) -> _Check:
    by_name = {record.variant: record for record in records}
    return _Check(
        title="Same weights",
        meaning="Speculation, caching and batching change the order of additions and nothing "
        "else. The first variant of some weights is measured twice, which shows how much that is; "
        "another variant of the same weights that is much further away has a fault in a layer, a "
        "scale or a kernel.",
        heads=(
            ("KL", "millinats"),
            ("the repeat’s KL", "millinats"),
            ("KL p99", "millinats"),
            ("flips", "of positions"),
        ),
        lines=[
            _same_weights_line(record, by_name.get(record.twin))
            for record in records
            if record.twin is not None
        ],
        subject="compared with",
    )


def _same_weights_line(record: QualityRecord, reference: QualityRecord | None) -> _Line:
    kl, p99, flips = distance_figures(record.twin_distances)
    repeat = reference.twin_distances if reference is not None else None
    itself = record.twin == record.variant
    return _Line(
        variant=record.variant,
        subject="itself, repeated" if itself else record.twin or "",
        figures=(
            EMPTY if itself else kl,
            EMPTY if repeat is None else shown(millinats(repeat.kl)),
            p99,
            flips,
        ),
    )


def _lossless(records: Iterable[QualityRecord]) -> _Check:
    return _Check(
        title="Speculation against the plain server",
        meaning="Greedy continuations that equal the plain server’s to the end, and how many of "
        "its own repeat do; the share of tokens before the first difference; by how much the plain "
        "server’s token led there (near 0 is a tie that rounding decides); a two-sample test of "
        "sampled text; and the share of this check’s own drafted tokens that were accepted (not "
        "the acceptance under load, which the table of all cells has in tokens per step).",
        heads=(
            ("greedy", "same"),
            ("plain again", "same"),
            ("McNemar", "p"),
            ("in common", "of tokens"),
            ("margin", "median, nats"),
            ("margin", "largest, nats"),
            ("sampled", "p"),
            ("accepted here", "% of drafts"),
        ),
        lines=[
            _lossless_line(record.variant, record.lossless)
            for record in records
            if record.lossless is not None
        ],
    )


def _lossless_line(variant: str, check: LosslessCheck) -> _Line:
    sampled, accepted = check.sampling, check.acceptance_rate
    notes = list(check.reasons)
    if check.parity is not None:
        notes += _divergences(check.parity)
    return _Line(
        variant=variant,
        verdict=check.verdict,
        figures=(
            *_parity_figures(check.parity),
            EMPTY if sampled is None else Shown(text=number(sampled.p_value)),
            EMPTY if accepted is None else Shown(text=percent(accepted)),
        ),
        notes=tuple(notes),
    )


def _parity_figures(parity: GreedyParity | None) -> tuple[Shown, ...]:
    if parity is None:
        return (EMPTY,) * 6
    margins = [each.margin for each in parity.divergences if each.margin is not None]
    return (
        _of(parity.same, parity.prompts),
        _of(parity.aa_same, parity.prompts),
        _figure(parity.p_value),
        shown(parity.common, unit="%"),
        _figure(median(margins) if margins else None),
        _figure(max(margins, default=None)),
    )


def _divergences(parity: GreedyParity) -> list[str]:
    """Where continuations left the plain server's, the widest margins first."""
    apart = [each for each in parity.divergences if each.at is not None]
    apart.sort(key=lambda each: float("inf") if each.margin is None else -each.margin)
    if not apart:
        return []
    words = [
        f"{each.id} after {plural(each.at or 0, 'token')} of {each.tokens:,} "
        f"({'margin not known' if each.margin is None else f'{number(each.margin)} nats'})"
        for each in apart[:_NAMED]
    ]
    if len(apart) > _NAMED:
        words.append(f"and {len(apart) - _NAMED:,} more")
    return [f"first differences: {', '.join(words)}"]


def _structured(records: Iterable[QualityRecord]) -> _Check:
    return _Check(
        title="Answers bound to a schema",
        meaning="The same questions answered free, and bound by the engine to the task’s JSON "
        "schema. Valid answers fit the schema, right ones are right as well; lost and gained count "
        "right answers, bound against free, with McNemar’s exact p.",
        heads=(
            ("questions", ""),
            ("valid", "free"),
            ("right", "free"),
            ("valid", "bound"),
            ("right", "bound"),
            ("right", "lost, gained"),
            ("McNemar", "p"),
        ),
        lines=[
            _structured_line(record.variant, score)
            for record in records
            for score in record.structured
        ],
        subject="task",
    )


def _structured_line(variant: str, score: StructuredScore) -> _Line:
    counts = (score.n, score.free_valid, score.free_right, score.valid, score.right)
    return _Line(
        variant=variant,
        subject=score.task,
        figures=(
            *(_figure(count) for count in counts),
            Shown(text=flips_words(score.lost, score.gained)),
            _figure(score.p_value),
        ),
        notes=() if score.missing is None else (score.missing,),
    )


def _identity(records: Iterable[QualityRecord]) -> _Check:
    return _Check(
        title="Served tokens",
        meaning="Whether the server writes token ids as text, reads text as ids and ends an answer "
        "as the baseline’s tokenizer says.",
        heads=(("checked", "texts"),),
        lines=[
            _identity_line(record, record.identity)
            for record in records
            if record.identity is not None
        ],
        subject="result",
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
    return _Line(
        variant=record.variant,
        subject="differs" if identity.problems else same,
        figures=(_figure(identity.checked or None),),
        notes=tuple(notes),
    )


def _of(count: int | None, total: int) -> Shown:
    return EMPTY if count is None else Shown(text=f"{count:,} of {total:,}")


def _figure(value: float | None) -> Shown:
    return Shown(text=DASH if value is None else number(value))
