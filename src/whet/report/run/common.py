"""Words and looks that several sections of the run report share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from whet.core.load import Load
from whet.core.records.decision import Decision
from whet.core.records.quant import QuantizedCheckpoint
from whet.core.records.summary import CellSummary, Estimate
from whet.core.run import Run
from whet.core.spec import SIXTEEN_BIT
from whet.report.charts.palette import CROSSED, Look, looks
from whet.report.charts.plots import Point

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


def limit_words(ms: float) -> str:
    """``200 ms``, ``1 s``."""
    return f"{ms / 1000:g} s" if ms >= 1000 and ms % 1000 == 0 else f"{ms:g} ms"


def target_words(ttft_ms: float) -> str:
    """``TTFT < 200 ms``, ``TTFT < 1 s``."""
    return f"TTFT < {limit_words(ttft_ms)}"


def tolerance_words(tolerance: float) -> str:
    """``< 1% perplexity``."""
    return f"< {100 * tolerance:g}% perplexity"


def is_win(decision: Decision) -> bool:
    """Whether the recommendation saves cost for certain, and nothing limits it."""
    chosen = decision.recommendation
    return chosen is not None and chosen.cheaper and not decision.limits
