"""What a search with a budget predicted and did not measure."""

from __future__ import annotations

from whet.core.load_point import load_words
from whet.core.records import PredictedCell, PredictedVariant
from whet.core.run import Run
from whet.report.document import Column, Paragraph, Row, Section, Table, text_cell

ORDER = 45


def build(run: Run) -> Section | None:
    """One line a variant that was left out, at its cheapest load; None without such a variant."""
    left_out = [each for each in run.predicted.values() if not each.measured and each.cells]
    if not left_out:
        return None
    columns = [
        Column(name="config"),
        Column(name="load"),
        *(Column(name=name, figure=True) for name in ("mean TTFT ms", "mean TPOT ms")),
        Column(name="$ per 1M tok", figure=True),
        Column(name="cost off by", figure=True),
    ]
    return Section(
        id="predicted",
        title="Predicted, not measured",
        group="Results",
        nodes=[
            Paragraph(
                text=f"The search left them out: {left_out[0].reason or 'it has not ended'}. None "
                f"of these figures was measured. Coefficients: {left_out[0].source}. Costs are "
                "corrected by what was measured of other variants; the last column is one standard "
                "deviation of that."
            ),
            Table(
                caption="Predicted at the cheapest load",
                columns=columns,
                rows=[Row(cells=[text_cell(text) for text in _cells(each)]) for each in left_out],
            ),
        ],
        on_console=True,
    )


def _cells(variant: PredictedVariant) -> list[str]:
    cheapest: PredictedCell = min(variant.cells, key=lambda each: each.cost_per_1m_tokens)
    return [
        variant.variant,
        load_words(cheapest.batch_size),
        f"~{cheapest.ttft_ms:,.0f}",
        f"~{cheapest.tpot_ms:.3g}",
        f"~{variant.factor * cheapest.cost_per_1m_tokens:.3g}",
        "" if variant.spread is None else f"±{variant.spread:.0%}",
    ]
