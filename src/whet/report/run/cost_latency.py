"""The chart that answers the run: cost against TTFT p95, a line a variant."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.run import Run
from whet.report.charts.plots import Axis, Line, plot
from whet.report.document import Chart, Node
from whet.report.run.common import legend_of, looks_of, point, target_words
from whet.report.text import shown


def cost_charts(run: Run) -> Iterator[Node]:
    """One mark a cell; excluded ones are crossed, the recommended one is ringed."""
    points = [
        point(
            run,
            cell,
            cell.ttft_p95_ms.value,
            cell.cost_per_1m_tokens,
            f"{shown(cell.cost_per_1m_tokens, unit='$').text} per 1M tokens, TTFT p95 "
            f"{shown(cell.ttft_p95_ms).marked} ms",
        )
        for cell in run.cells
        if cell.status == "complete" and cell.cost_per_1m_tokens and cell.ttft_p95_ms
    ]
    if not points:
        return
    targets = run.spec.objective.ttft_ms if run.spec else ()
    longest = max(each.x for each in points if isinstance(each.x, float))
    yield Chart(
        name="cost-latency",
        title="Cost against time to first token",
        description="A mark is a load. Cross: excluded. Ring: recommended. Dashed: target.",
        picture=plot(
            points,
            looks_of(run),
            x=Axis(title="TTFT p95, ms", scale="log"),
            y=Axis(title="USD per 1M output tokens", scale="log", form="$~r"),
            lines=[
                Line(x=t, label=target_words(t).removeprefix("TTFT < "))
                for t in targets
                if t <= 2 * longest
            ],
        ),
        legend=legend_of(run),
    )
