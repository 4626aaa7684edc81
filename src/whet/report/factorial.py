"""What levers bring alone and together, as tables and sentences for every form of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from whet.core.format import plural
from whet.core.records import Estimate, FactorialView, Interaction, LeverEffect
from whet.report.text import Shown, shown
from whet.report.view import RunView

THROUGHPUT: Final = "tps_mean"
_TITLES: Final = {
    THROUGHPUT: "Throughput",
    "ttft_p95_ms": "1/TTFT p95",
    "tpot_p50_ms": "1/TPOT p50",
}
_CHANCE: Final = 0.05
_LACKING: Final = 8
"""Sentences on what a run does not tell that are printed; a run of many variants has a hundred."""
_TOLD: Final = ("fight", "help")


@dataclass(frozen=True, kw_only=True, slots=True)
class FactorialCell:
    """One ratio at one batch size. ``hover`` is the sentence behind it."""

    shown: Shown
    verdict: str
    hover: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FactorialRow:
    """A lever, or levers together, in one company, over the batch sizes of the table."""

    name: str
    company: str
    cells: tuple[FactorialCell | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FactorialTable:
    """All that one metric tells. Every ratio is turned so that above 1 is better."""

    metric: str
    title: str
    sizes: tuple[int, ...]
    effects: tuple[FactorialRow, ...]
    interactions: tuple[FactorialRow, ...]


def factorial_tables(view: RunView) -> tuple[FactorialTable, ...]:
    """One table a metric, throughput first; none where the run has no effect to tell."""
    found = view.factorial
    if found is None:
        return ()
    return tuple(
        _table(found, metric, title)
        for metric, title in _TITLES.items()
        if any(item.metric == metric for item in found.effects)
    )


def factorial_sentences(view: RunView, *, every_metric: bool = True) -> tuple[str, ...]:
    """Which levers fight, which help one another, and what the run cannot tell.

    A latency whose percentile is not certified names nobody; the tables have it, with ``?``.
    """
    found = view.factorial
    if found is None or not (found.effects or found.unmeasured):
        return ()
    kept = [item for item in found.interactions if every_metric or item.metric == THROUGHPUT]
    named = [item for item in kept if item.verdict in _TOLD and item.ratio.certified]
    named.sort(key=lambda item: _TOLD.index(item.verdict))
    lacking = found.unmeasured[:_LACKING]
    more = len(found.unmeasured) - len(lacking)
    rest = (f"{more} more are in the run's factorial/all.json.",) if more else ()
    return (*(f"{item.sentence}." for item in named), *_counts(kept), *_ends(lacking), *rest)


def factorial_note(view: RunView) -> str:
    """How to read the tables."""
    judged = 0 if view.factorial is None else len(view.factorial.interactions)
    note = (
        "Ratios are turned so that above 1 is better, of latencies too. An interaction is what "
        "levers bring together over the product of what each brings alone, in the same company: "
        "1 where they multiply, below 1 where they fight. The noise of one run is one "
        "repetition of the baseline, widened for the cells that take part."
    )
    if judged < 1 / _CHANCE:
        return note
    return f"{note} Of {judged} interactions about {_CHANCE * judged:.0f} miss 1 by chance alone."


def _counts(items: Sequence[Interaction]) -> Iterator[str]:
    if not items:
        return
    multiply = sum(item.verdict == "multiplicative" for item in items)
    unsure = sum(item.verdict == "undecided" for item in items)
    what = "" if any(item.metric != THROUGHPUT for item in items) else " of throughput"
    yield (
        f"Of {plural(len(items), 'interaction')}{what}, {multiply} multiply as measured and "
        f"{unsure} cannot be told: one that matters could go unseen."
    )


def _ends(sentences: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{sentence}." for sentence in sentences)


def _table(found: FactorialView, metric: str, title: str) -> FactorialTable:
    effects = [item for item in found.effects if item.metric == metric]
    together = [item for item in found.interactions if item.metric == metric]
    sizes = tuple(sorted({item.batch_size for item in effects}))
    return FactorialTable(
        metric=metric,
        title=title,
        sizes=sizes,
        effects=_rows([((item.lever,), item, _effect(item)) for item in effects], sizes),
        interactions=_rows([(item.levers, item, _together(item)) for item in together], sizes),
    )


_Entry = tuple[tuple[str, ...], LeverEffect | Interaction, FactorialCell]


def _rows(entries: Sequence[_Entry], sizes: Sequence[int]) -> tuple[FactorialRow, ...]:
    """Lines in the order of the fewest companions, each with a cell a batch size."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[int, FactorialCell]] = {}
    for levers, item, cell in entries:
        found.setdefault((levers, item.context), {})[item.batch_size] = cell
    return tuple(
        FactorialRow(
            name=" × ".join(levers),
            company=company(context),
            cells=tuple(cells.get(size) for size in sizes),
        )
        for (levers, context), cells in sorted(
            found.items(), key=lambda entry: (len(entry[0][0]), len(entry[0][1]))
        )
    )


def company(context: Sequence[str]) -> str:
    """``alone``, or ``with weights=awq and prefix_cache``."""
    if not context:
        return "alone"
    return f"with {', '.join(context[:-1])}{' and ' if context[1:] else ''}{context[-1]}"


def _effect(item: LeverEffect) -> FactorialCell:
    return FactorialCell(
        shown=_ratio(item.ratio),
        verdict=item.verdict,
        hover=f"{item.candidate} over {item.reference} at {item.batch_size}: {item.verdict}",
    )


def _together(item: Interaction) -> FactorialCell:
    hover = (
        f"{item.sentence}; observed {_ratio(item.observed).full}, "
        f"the product {_ratio(item.product).full}"
    )
    return FactorialCell(shown=_ratio(item.ratio), verdict=item.verdict, hover=hover)


def _ratio(figure: Estimate) -> Shown:
    return shown(figure)
