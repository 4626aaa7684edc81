"""Words and looks that several sections of the run report share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import neg
from typing import Final

from whet.core.format import percent, plural
from whet.core.load import Load
from whet.core.records.decision import Decision, MatrixEntry, Recommendation
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.records.summary import CellSummary, Estimate
from whet.core.run import Run
from whet.core.spec import SIXTEEN_BIT
from whet.report.charts.palette import CROSSED, Look, looks
from whet.report.charts.plots import Point
from whet.report.text import shown

UNPROVED: Final = ("contradicted", "unproved")
"""Outcomes with which a cell does not count."""
_MANY: Final = 12
"""Variants that charts can name; of more, the first half and those in the matrix."""


def load_title(points: Iterable[Load]) -> str:
    """The head of a column of loads: ``concurrency``, or ``load`` where each is a rate."""
    return "load" if any(point.is_open for point in points) else "concurrency"


def series_of(run: Run, name: str) -> str:
    """A variant's name in charts; one that is excluded says so."""
    return f"{name} (excluded)" if run.is_excluded(name) else name


def looks_of(run: Run) -> dict[str, Look]:
    """The look of each variant's series in every chart of this run, excluded ones crossed."""
    names = None
    if len(run.variants) > _MANY:
        entries = run.decision.matrix if run.decision else ()
        names = [*run.variants[: _MANY // 2], *(each.variant for each in entries if each.variant)]
    return {
        series_of(run, name): replace(look, shape=CROSSED) if run.is_excluded(name) else look
        for name, look in looks(run.variants, run.baseline, names).items()
    }


def weights_size(run: Run, name: str) -> tuple[int, float | None] | None:
    """Return the bytes of a variant's weights and its bits per weight; None where unknown."""
    if (made := quantized_of(run, name)) is not None:
        return made.weight_bytes, made.bits_per_weight
    is_target = name in run.engines and run.engines[name].variant.weights == SIXTEEN_BIT
    facts = run.models.get("target" if is_target else f"weights-{name}")
    return None if facts is None else (facts.weight_bytes, facts.stored.bits_per_weight)


def quantized_of(run: Run, name: str) -> QuantizedCheckpoint | None:
    """Return the checkpoint that the run made for a variant; None for other weights."""
    return run.quantized.get(run.engines[name].variant.weights) if name in run.engines else None


def counts(run: Run, cell: CellSummary) -> bool:
    """Whether a cell's figures may lead to a recommendation."""
    outcome = run.evidence(cell.variant, cell.load)
    return outcome not in UNPROVED and not run.is_excluded(cell.variant, cell.load)


def point(run: Run, cell: CellSummary, x: float | str, y: Estimate, words: str) -> Point:
    """A cell as a mark of a chart; one that does not count is a cross, the recommended ringed."""
    chosen = run.decision.recommendation if run.decision else None
    place = (cell.variant, cell.load)
    why = "" if counts(run, cell) else ", excluded"
    return Point(
        series=series_of(run, cell.variant),
        x=x,
        y=y.value,
        low=y.low,
        high=y.high,
        label=f"{cell.variant} at {cell.load}: {words}{why}",
        order=cell.load.value,
        counts=counts(run, cell),
        ringed=chosen is not None and place == (chosen.variant, chosen.load),
    )


def target_words(ttft_ms: float) -> str:
    """``TTFT < 200 ms``, ``TTFT < 1 s``."""
    whole_seconds = ttft_ms >= 1000 and ttft_ms % 1000 == 0
    return f"TTFT < {ttft_ms / 1000:g} s" if whole_seconds else f"TTFT < {ttft_ms:g} ms"


def tolerance_words(tolerance: float) -> str:
    """``< 1% perplexity``."""
    return f"< {100 * tolerance:g}% perplexity"


def is_win(decision: Decision) -> bool:
    """Whether the recommendation saves cost for certain, and nothing limits it."""
    chosen = decision.recommendation
    return chosen is not None and chosen.cheaper and not decision.limits


def meets_words(chosen: Recommendation) -> str:
    """``It meets its limits: likely; TTFT p95 needs 6 starts``."""
    needs = (
        f"{each.metric} needs {plural(each.starts, 'start')}" if each.starts else f"{each.metric}?"
        for each in chosen.advice
    )
    return "; ".join((f"It meets its limits: {chosen.meets}", *needs))


def costs_less(chosen: Recommendation | MatrixEntry, reference: str) -> str:
    """What a choice costs against the default: shown, not distinguished, or nothing to state.

    ``costs less than fp16+cache by 27.2% [9.3% … 41.6%]``, or
    ``cost not distinguished from fp16+cache; 12 starts of each would show 4.1%``.
    """
    saving, change = chosen.saving, chosen.difference
    if saving is None:
        return f"{reference} does not meet the limits, so there is no saving to state"
    bounds = [end for end in (saving.low, saving.high) if end is not None]
    shown_ = (len(bounds) == 2 and min(bounds) > 0) if change is None else change.different
    if shown_ and saving.value > 0:
        return f"costs less than {reference} by {_share(saving)}"
    if shown_:
        return f"costs more than {reference} by {_share(saving.mapped(neg, falling=True))}"
    needed = None if change is None else change.starts_needed
    why = f": {_share(saving)} less"
    if not bounds:
        why = ": one start has no interval"
    elif needed is not None:
        why = f"; {plural(needed, 'start')} of each would show {percent(abs(saving.value))}"
    return f"cost not distinguished from {reference}{why}"


def _share(value: Estimate) -> str:
    figure = shown(value, unit="%")
    return f"{figure.text}{f' [{figure.interval}]' if figure.interval else ''}"


def headline(decision: Decision) -> tuple[str, str]:
    """A decision as a title and a sentence."""
    chosen = decision.recommendation
    if chosen is None:
        return (
            "Nothing qualifies",
            "No variant met the objective with its evidence and its quality; "
            "the matrix and the exclusions say why.",
        )
    verb = "Keep" if chosen.variant == chosen.reference else "Serve"
    within = ", within limits" if decision.limits else ""
    stated = f" Limits: {'; '.join(decision.limits)}." if decision.limits else ""
    own = chosen.variant == chosen.reference
    saving = "" if own else f": {costs_less(chosen, chosen.reference)}"
    limits = (
        f"{meets_words(chosen)} ({target_words(chosen.ttft_target_ms)}, "
        f"{tolerance_words(chosen.quality_tolerance)}, on {chosen.tier})."
    )
    if chosen.fleet is not None:
        fleet = chosen.fleet
        return (
            f"{verb} {chosen.variant} on {plural(fleet.servers, 'server')}{within}",
            f"${fleet.usd_per_month:,.0f} a month for {fleet.demand_rps:g} requests a second"
            f"{saving}. {limits}{stated} Each server takes {fleet.rate_rps:.3g} a second.",
        )
    return (
        f"{verb} {chosen.variant} with {plural(chosen.load.slots, 'request')} in flight{within}",
        f"{shown(chosen.cost_per_1m_tokens, unit='$').text} for a million output tokens"
        f"{saving}. {limits}{stated} "
        f"To hold {chosen.load} in flight, whet deploy limits what the server runs at once: more "
        "requests then wait.",
    )
