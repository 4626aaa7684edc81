"""Measured and predicted costs in one table, and what is cheaper by prediction alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from whet.core.load import Load
from whet.core.records.predicted import PredictedCell, PredictedVariant
from whet.core.run import Run
from whet.report.document import Cell, Paragraph, Section, figure_columns, table
from whet.report.text import shown

ORDER = 45
_SURE = 2.0
"""Standard deviations by which a prediction has to be cheaper than what was measured."""


def build(run: Run) -> Section | None:
    """US$ per million tokens by variant and load; None where every cell was measured."""
    records = [each for each in run.predicted.values() if each.cells]
    unmeasured = [each for each in records if list(predicted_cells(each))]
    if not unmeasured:
        return None
    loads = sorted({cell.load for each in records for cell in each.cells})
    reason = next((f"The search ended: {each.reason}. " for each in records if each.reason), "")
    return Section(
        id="predicted",
        title="Measured and predicted",
        group="Results",
        nodes=[
            Paragraph(
                text=f"{reason}Figures with ~ are predicted, all others measured; ± is one "
                f"standard deviation. Coefficients: {unmeasured[0].source}. Predictions are "
                "corrected by what was measured, and say nothing about answers."
            ),
            table(
                "US$ per million output tokens by requests in flight",
                ["config", *figure_columns(*(load.words for load in loads))],
                (_row(run, each, loads) for each in records),
            ),
        ],
        on_console=True,
    )


def predicted_cells(variant: PredictedVariant) -> Iterator[tuple[PredictedCell, float]]:
    """The cells that were not measured, each with its corrected cost."""
    for cell in variant.cells:
        if cell.load not in variant.measured:
            yield cell, variant.factor * cell.cost_per_1m_tokens


def cheaper_by_prediction(
    predicted: Mapping[str, PredictedVariant], ttft_ms: float, cost: float | None
) -> str | None:
    """The cheapest predicted cell within the TTFT, where it beats ``cost`` beyond its error."""
    options = [
        (expected, each, cell)
        for each in predicted.values()
        for cell, expected in predicted_cells(each)
        if cell.ttft_ms <= ttft_ms and each.spread is not None
        if cost is None or expected * (1 + _SURE * each.spread) < cost
    ]
    if not options:
        return None
    expected, each, cell = min(options, key=lambda option: option[0])
    return (
        f"predicted: {each.variant} at {cell.load}, ~${expected:.3g} per 1M "
        f"±{each.spread:.0%}, not measured"
    )


def _row(run: Run, variant: PredictedVariant, loads: Iterable[Load]) -> Iterator[object]:
    yield variant.variant
    spread = "" if variant.spread is None else f"±{variant.spread:.0%}"
    costs = {cell.load: cost for cell, cost in predicted_cells(variant)}
    for load in loads:
        if load in costs:
            yield Cell(text=f"~{costs[load]:.3g}", tone="muted", detail=spread)
        else:
            cell = run.cell(variant.variant, load)
            cost = None if cell is None else cell.cost_per_1m_tokens
            yield None if cost is None else shown(cost).text
