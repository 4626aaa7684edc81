"""Perplexity, distances and task scores of each variant, as rows for every form of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.format import number, percent, points
from whet.core.records import QualityRecord, ServedDistances, TaskScore
from whet.report.sections import task_names
from whet.report.text import DASH, EMPTY, Shown, millinats, shown
from whet.report.view import RunView

DISTANCE_HEADS: Final = (("KL", "millinats"), ("KL p99", "millinats"), ("flips", "of positions"))
"""Name and unit of the figures that ``distance_figures`` gives."""

NO_DISTANCES: Final = (EMPTY, EMPTY, EMPTY)


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityRow:
    """One variant's likelihoods and verdicts. ``change`` is None for the baseline itself.

    ``distances`` stand side by side with ``DISTANCE_HEADS``; ``verdicts`` are (tolerance, verdict).
    """

    variant: str
    perplexity: Shown
    change: Shown | None
    distances: tuple[Shown, ...]
    verdicts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCell:
    """One variant's score on one task: the score, out of what, and what changed.

    ``difference`` is in points of 100; ``flips`` tells answers lost and gained, empty for the
    baseline.
    """

    score: Shown
    asked: str
    difference: Shown
    flips: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskTable:
    """Every task's scores: ``rows`` are (variant, a cell a task), ``visible`` what a set sees."""

    tasks: tuple[str, ...]
    rows: tuple[tuple[str, tuple[TaskCell | None, ...]], ...]
    visible: tuple[str, ...]


def quality_rows(view: RunView) -> tuple[QualityRow, ...]:
    """A row for each variant whose quality was measured."""
    return tuple(_row(record) for record in quality_records(view))


def quality_records(view: RunView) -> tuple[QualityRecord, ...]:
    """The quality records in the order of the variants."""
    return tuple(view.quality[name] for name in view.variants if name in view.quality)


def told_once(said: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """(variant, sentence) pairs as (variants, sentence): what several have in common once."""
    found: dict[str, list[str]] = {}
    for variant, sentence in said:
        found.setdefault(sentence, []).append(variant)
    return tuple((", ".join(dict.fromkeys(names)), sentence) for sentence, names in found.items())


def quality_reasons(view: RunView) -> tuple[tuple[str, str], ...]:
    """Why verdicts are as they are: (variants, sentence)."""
    return told_once((one.variant, one.reason) for one in quality_records(view) if one.reason)


def has_distances(rows: Sequence[QualityRow]) -> bool:
    """Whether any row has a distance, so that the columns are worth their room."""
    return any(row.distances != NO_DISTANCES for row in rows)


def distance_figures(found: ServedDistances | None) -> tuple[Shown, ...]:
    """Mean and 99th percentile of KL in millinats and the share of flips; dashes for None."""
    if found is None:
        return NO_DISTANCES
    flips = shown(found.flips, unit="%")
    return shown(millinats(found.kl)), shown(millinats(found.kl_p99)), flips


def distance_note(view: RunView) -> str:
    """Which tokens the divergence is over; empty where none was measured."""
    found = [one.distances for one in quality_records(view) if one.distances is not None]
    if not found:
        return ""
    most, least = max(one.top_k for one in found), min(one.covered for one in found)
    return (
        f"KL(baseline ‖ variant) over at most {most} likeliest tokens a position and one bucket "
        "for all others: never more than over the whole vocabulary. "
        f"The tokens compared hold {percent(least)} of the baseline’s probability or more. "
        "Flips: positions whose likeliest token differs."
    )


def task_table(view: RunView) -> TaskTable | None:
    """All scores, task by task; None where no task was asked."""
    tasks = task_names(view)
    if not tasks:
        return None
    records = quality_records(view)
    scores = {one.variant: {score.task: score for score in one.tasks} for one in records}
    return TaskTable(
        tasks=tasks,
        rows=tuple(
            (name, tuple(_cell(own[task]) if task in own else None for task in tasks))
            for name, own in scores.items()
            if own
        ),
        visible=tuple(
            _visible([(name, own[task]) for name, own in scores.items() if task in own])
            for task in tasks
        ),
    )


def _row(record: QualityRecord) -> QualityRow:
    own = record.variant == record.baseline
    return QualityRow(
        variant=record.variant,
        perplexity=shown(record.perplexity),
        change=None if own else shown(record.perplexity_ratio, unit="+%"),
        distances=distance_figures(record.distances),
        verdicts=tuple((f"{100 * limit:g}%", verdict) for limit, verdict in record.verdicts),
    )


def _cell(score: TaskScore) -> TaskCell:
    flips = ""
    if score.p_value is not None:
        flips = f"{flips_words(score.lost, score.gained)}, p = {number(score.p_value)}"
    return TaskCell(
        score=shown(score.score, unit="%"),
        asked=f"mean grade of {score.n:,}" if score.graded else f"{score.right:,} of {score.n:,}",
        difference=shown(score.difference, unit="+pt"),
        flips=flips,
    )


def flips_words(lost: int | None, gained: int | None) -> str:
    """``−3 +1``: answers lost and gained; a dash where they were not paired."""
    return DASH if lost is None or gained is None else f"−{lost:,} +{gained:,}"


def _visible(scores: Sequence[tuple[str, TaskScore]]) -> str:
    """The loss that a task's set can see, over the variants that were paired with the baseline."""
    paired = [one for one in scores if one[1].p_value is not None] or list(scores)
    drops = sorted(s.detectable_drop for _, s in paired if s.detectable_drop is not None)
    if not drops:
        return "too few differ to say" if paired[0][1].graded else "none: too few questions"
    least, most = points(drops[0]), points(drops[-1])
    told = f"{least} points" if least == most else f"{least} to {most} points"
    blind = [name for name, score in paired if score.detectable_drop is None]
    return f"{told}; not known for {', '.join(blind)}" if blind else told
