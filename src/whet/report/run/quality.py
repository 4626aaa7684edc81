"""Whether the answers are still right: perplexity, distances, tasks, lost answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from whet.core.format import number
from whet.core.records.engine import UNQUANTIZED
from whet.core.records.quality import QualityRecord, TaskExample, TaskScore
from whet.core.records.quality_checks import ServerDistances
from whet.core.run import Run
from whet.report.document import (
    Bullets,
    Cell,
    Code,
    Column,
    Folded,
    Heading,
    Node,
    Paragraph,
    Section,
    Table,
    figure_cell,
    figure_columns,
    table,
    text_cell,
    verdict_cell,
)
from whet.report.text import DASH, EMPTY, Shown, millinats, shown

ORDER = 90
_DISTANCE_NOTE = (
    "KL(baseline ‖ variant) over the likeliest tokens of a position and one bucket for all others: "
    "a lower bound. Flips: positions whose likeliest token differs."
)
_BUILT_IN = (
    "Perplexity is judged on whet's built-in text, which a model made since its publication may "
    "have been trained on: judge that one on text of your own or newer than it (quality.heldout, "
    "--heldout)."
)
_DISTANCES = (("KL", "millinats"), ("KL p99", "millinats"), ("flips", "of positions"))


def build(run: Run) -> Section | None:
    """Likelihoods and verdicts, tasks, and the answers that were lost."""
    records = quality_records(run)
    if not records:
        return None
    nodes: list[Node] = []
    target = run.models.get("target")
    if target is not None and target.stored.scheme not in UNQUANTIZED:
        words = f"Compared with the model as stored ({target.stored.scheme}), not with 16 bit."
        nodes.append(Paragraph(text=words, tone="strong"))
    nodes += [*quality_nodes(records), *_lost_answers(records)]
    return Section(id="quality", title="Quality", group="Quality", nodes=nodes)


def quality_nodes(records: Sequence[QualityRecord]) -> list[Node]:
    """Likelihoods and verdicts, the reasons of these, and tasks."""
    nodes: list[Node] = [_likelihoods(records)]
    if any(each.built_in_text for each in records):
        nodes.append(Paragraph(text=_BUILT_IN, tone="muted"))
    if any(each.distances is not None for each in records):
        nodes.append(Paragraph(text=_DISTANCE_NOTE, tone="muted"))
    reasons = merge_duplicates((each.variant, each.reason) for each in records if each.reason)
    if reasons:
        nodes.append(Bullets(items=[f"{names}: {words}" for names, words in reasons]))
    if any(record.tasks for record in records):
        nodes += [
            Heading(text="Task scores"),
            task_table({each.variant: each.tasks for each in records}),
        ]
    return nodes


def quality_records(run: Run) -> list[QualityRecord]:
    """The quality records in the order of the variants."""
    return [run.quality[name] for name in run.variants if name in run.quality]


def merge_duplicates(notes: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(variant, sentence) pairs as (variants, sentence): what several have in common once."""
    names: dict[str, list[str]] = {}
    for variant, sentence in notes:
        names.setdefault(sentence, []).append(variant)
    return [(", ".join(dict.fromkeys(own)), sentence) for sentence, own in names.items()]


def distance_figures(distances: ServerDistances | None) -> tuple[Shown, ...]:
    """Mean and 99th percentile of KL in millinats and the share of flips; dashes for None."""
    if distances is None:
        return (EMPTY, EMPTY, EMPTY)
    flips = shown(distances.flips, unit="%")
    return millinats(distances.kl), millinats(distances.kl_p99), flips


def _likelihoods(records: Sequence[QualityRecord]) -> Table:
    tolerances = [limit for limit, _ in records[0].verdicts]
    has_distances = any(record.distances is not None for record in records)
    distances = figure_columns(*_DISTANCES) if has_distances else ()
    return table(
        "Perplexity on held-out text",
        [
            "config",
            *figure_columns(("perplexity", ""), ("change", "of perplexity")),
            *distances,
            *(Column(name=f"{100 * limit:g}%", unit="tolerance") for limit in tolerances),
        ],
        (_likelihood(record, tolerances, distances=has_distances) for record in records),
        details=True,
    )


def _likelihood(
    record: QualityRecord, tolerances: Sequence[float], *, distances: bool
) -> Iterator[object]:
    own = record.variant == record.baseline
    verdicts = dict(record.verdicts)
    yield record.variant
    yield record.perplexity
    yield figure_cell(None if own else record.perplexity_ratio, unit="+%")
    yield from distance_figures(record.distances) if distances else ()
    yield from (verdict_cell("baseline" if own else verdicts.get(each)) for each in tolerances)


def task_table(sides: Mapping[str, Sequence[TaskScore]]) -> Table:
    """The scores of each side by task."""
    scores = {side: {score.task: score for score in own} for side, own in sides.items() if own}
    names = list(dict.fromkeys(name for own in scores.values() for name in own))
    return table(
        "Task scores",
        [Column(name="config"), *(Column(name=name, figure=True) for name in names)],
        ([side, *(_score(own.get(name)) for name in names)] for side, own in scores.items()),
        details=True,
    )


def _score(score: TaskScore | None) -> Cell:
    if score is None:
        return text_cell(None)
    kind = f"mean grade of {score.n:,}" if score.graded else f"{score.right:,} of {score.n:,}"
    words = [kind]
    if score.difference is not None and score.difference.low is not None:
        words.append(f"{shown(score.difference, unit='+pt').full} points")
    if score.p_value is not None:
        words.append(f"{flips_words(score.lost, score.gained)}, p = {number(score.p_value)}")
    return Cell(text=shown(score.score, unit="%").marked, detail="; ".join(words))


def flips_words(lost: int | None, gained: int | None) -> str:
    """``−3 +1``: answers lost and gained; a dash where they were not paired."""
    return DASH if lost is None or gained is None else f"−{lost:,} +{gained:,}"


def _lost_answers(records: Sequence[QualityRecord]) -> Iterator[Folded]:
    """Right on the baseline, wrong here; variants of the same weights lose the same answers."""
    groups: dict[tuple[str, tuple[TaskExample, ...]], list[str]] = {}
    for record in records:
        if record.examples:
            groups.setdefault((record.baseline, record.examples), []).append(record.variant)
    for (baseline, examples), names in groups.items():
        nodes: list[Node] = []
        for example in examples:
            nodes.append(Paragraph(text=f"{example.task}, {example.id}", tone="strong"))
            for title, text in (
                ("prompt", example.prompt),
                ("expected", example.expected),
                (baseline, example.baseline),
                (", ".join(names), example.answer),
            ):
                nodes += [Paragraph(text=title, tone="muted"), Code(text=text)]
        yield Folded(summary=f"Answers that {', '.join(names)} lost ({len(examples)})", nodes=nodes)
