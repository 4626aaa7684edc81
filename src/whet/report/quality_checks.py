"""What the gate looked at beside likelihoods and tasks, as tables for every form of the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final

from whet.core.format import number, percent, plural
from whet.core.records import (
    GreedyParity,
    LosslessCheck,
    QualityRecord,
    ServedIdentity,
    StructuredScore,
)
from whet.report.quality_rows import (
    distance_figures,
    flips_words,
    quality_records,
    told_once,
)
from whet.report.text import DASH, EMPTY, Shown, millinats, shown
from whet.report.view import RunView

_TOLD: Final = 8
"""Differences named one by one; the rest are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckLine:
    """One line of a check: figures side by side with the table's heads, then sentences."""

    variant: str
    subject: str | None = None
    verdict: str | None = None
    figures: tuple[Shown, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckTable:
    """One check of all variants; ``heads`` are (name, unit), ``subject`` heads words of a line."""

    title: str
    meaning: str
    heads: tuple[tuple[str, str], ...]
    lines: tuple[CheckLine, ...]
    subject: str | None = None

    @property
    def judged(self) -> bool:
        """Whether a line has a verdict of its own."""
        return any(line.verdict is not None for line in self.lines)

    @property
    def notes(self) -> tuple[tuple[str, str], ...]:
        """What the lines say beside their figures: (variants, sentence)."""
        return told_once((line.variant, note) for line in self.lines for note in line.notes)


def check_tables(view: RunView) -> tuple[CheckTable, ...]:
    """Every check that some variant was put to."""
    records = quality_records(view)
    tables = (
        _same_weights(view, records),
        _lossless(records),
        _structured(records),
        _identity(records),
    )
    return tuple(table for table in tables if table.lines)


def _same_weights(view: RunView, records: Iterable[QualityRecord]) -> CheckTable:
    return CheckTable(
        title="Same weights",
        meaning="Speculation, caching and batching change the order of additions and nothing "
        "else. The first variant of some weights is asked twice, which shows what that is worth; "
        "another variant of the same weights that is much further away has a fault in a layer, a "
        "scale or a kernel.",
        heads=(
            ("KL", "millinats"),
            ("the repeat’s KL", "millinats"),
            ("KL p99", "millinats"),
            ("flips", "of positions"),
        ),
        lines=tuple(_twin(view, record) for record in records if record.twin is not None),
        subject="compared with",
    )


def _twin(view: RunView, record: QualityRecord) -> CheckLine:
    kl, p99, flips = distance_figures(record.twin_distances)
    twin = view.quality.get(record.twin or "")
    repeat = twin.twin_distances if twin is not None else None
    itself = record.twin == record.variant
    return CheckLine(
        variant=record.variant,
        subject="itself, asked again" if itself else record.twin,
        figures=(
            EMPTY if itself else kl,
            EMPTY if repeat is None else shown(millinats(repeat.kl)),
            p99,
            flips,
        ),
    )


def _lossless(records: Iterable[QualityRecord]) -> CheckTable:
    found = [(record, record.lossless) for record in records if record.lossless is not None]
    return CheckTable(
        title="Speculation against the plain server",
        meaning="Greedy continuations that equal the plain server’s to the end, beside how many of "
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
        lines=tuple(_lossless_line(record.variant, check) for record, check in found),
    )


def _lossless_line(variant: str, check: LosslessCheck) -> CheckLine:
    sampled, accepted = check.sampling, check.acceptance_rate
    notes = list(check.reasons)
    if check.parity is not None:
        notes += _left(check.parity)
    return CheckLine(
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
    margins = [one.margin for one in parity.divergences if one.margin is not None]
    return (
        _of(parity.same, parity.prompts),
        _of(parity.aa_same, parity.prompts),
        _figure(parity.p_value),
        shown(parity.common, unit="%"),
        _figure(median(margins) if margins else None),
        _figure(max(margins, default=None)),
    )


def _left(parity: GreedyParity) -> list[str]:
    """Where continuations left the plain server's, the widest margins first."""
    apart = [one for one in parity.divergences if one.at is not None]
    apart.sort(key=lambda one: float("inf") if one.margin is None else -one.margin)
    if not apart:
        return []
    said = [
        f"{one.id} after {plural(one.at or 0, 'token')} of {one.tokens:,} "
        f"({'margin not known' if one.margin is None else f'{number(one.margin)} nats'})"
        for one in apart[:_TOLD]
    ]
    if len(apart) > _TOLD:
        said.append(f"and {len(apart) - _TOLD:,} more")
    return [f"left it: {', '.join(said)}"]


def _structured(records: Iterable[QualityRecord]) -> CheckTable:
    return CheckTable(
        title="Answers bound to a schema",
        meaning="The same questions answered free, and bound by the engine to the task’s JSON "
        "schema. Valid answers fit the schema, right ones are right as well; lost and gained count "
        "right answers, bound against free, with McNemar’s exact p.",
        heads=(
            ("asked", ""),
            ("valid", "free"),
            ("right", "free"),
            ("valid", "bound"),
            ("right", "bound"),
            ("right", "lost, gained"),
            ("McNemar", "p"),
        ),
        lines=tuple(
            _structured_line(record.variant, score)
            for record in records
            for score in record.structured
        ),
        subject="task",
    )


def _structured_line(variant: str, score: StructuredScore) -> CheckLine:
    return CheckLine(
        variant=variant,
        subject=score.task,
        figures=(
            *(_figure(one) for one in (score.n, score.free_valid, score.free_right)),
            *(_figure(one) for one in (score.valid, score.right)),
            Shown(text=flips_words(score.lost, score.gained)),
            _figure(score.p_value),
        ),
        notes=() if score.missing is None else (score.missing,),
    )


def _identity(records: Iterable[QualityRecord]) -> CheckTable:
    return CheckTable(
        title="Served tokens",
        meaning="Whether the server writes token ids as text, reads text as ids and ends an answer "
        "as the baseline’s tokenizer says.",
        heads=(("checked", "texts"),),
        lines=tuple(
            _identity_line(record, record.identity)
            for record in records
            if record.identity is not None
        ),
        subject="found",
    )


def _identity_line(record: QualityRecord, found: ServedIdentity) -> CheckLine:
    """What differs and what could not be asked; the baseline's own fault spoils the comparison."""
    said = list(found.problems)
    if said and record.variant == record.baseline:
        said.append("the baseline’s own server differs, so that no variant is held to it")
    if found.missing is not None:
        said.append(f"not asked: {found.missing}")
    whole = "no difference" if found.missing is None else "no difference, but not all was asked"
    nothing = "nothing was asked" if not found.checked and found.missing else whole
    return CheckLine(
        variant=record.variant,
        subject="differs" if found.problems else nothing,
        figures=(_figure(found.checked or None),),
        notes=tuple(said),
    )


def _of(count: int | None, total: int) -> Shown:
    return EMPTY if count is None else Shown(text=f"{count:,} of {total:,}")


def _figure(value: float | None) -> Shown:
    return Shown(text=DASH if value is None else number(value))
