"""The charts: TTFT, throughput and cost by load, and cost against TTFT."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.run import Run
from whet.metrics import metrics_in
from whet.report.charts.plots import Axis, Line, Scale, plot
from whet.report.document import Chart, Node, Section
from whet.report.run.common import legend_of, looks_of, point, target_words
from whet.report.text import shown

ORDER = 30


def build(run: Run) -> Section | None:
    """Every chart that holds a figure."""
    charts = list(_charts(run))
    if not charts:
        return None
    return Section(id="load", title="Under load", group="Speed", nodes=charts)


def _batch_axis(run: Run) -> Axis:
    order = tuple(str(size) for size in run.loads)
    rates = any(load.is_open for load in run.loads)
    title = "requests a second" if rates else "concurrency (requests in flight)"
    return Axis(title=title, scale="category", order=order)


def _charts(run: Run) -> Iterator[Chart]:
    targets = _targets(run)
    for metric in metrics_in("charts"):
        sign, unit = metric.sign, metric.axis or metric.unit
        points = [
            point(run, cell, str(cell.load), value, f"{shown(value, unit=sign).full} {unit}")
            for cell in run.cells
            if cell.status == "complete" and (value := cell.estimate(metric.name)) is not None
        ]
        if not points:
            continue
        latency = metric.name.startswith("ttft")
        scale: Scale = "log" if latency and min(each.y for each in points) > 0 else "linear"
        highest = max(each.y for each in points)
        lines = [Line(y=t, label=target_words(t)) for t in targets if latency and t <= highest]
        yield Chart(
            name=metric.title.lower().replace(" ", "-"),
            title=metric.heading,
            description=f"{unit}, by load. Cross: excluded.",
            picture=plot(
                points,
                looks_of(run),
                x=_batch_axis(run),
                y=Axis(
                    title=unit, scale=scale, zero=not latency, form=f"{sign}~r" if sign else "~s"
                ),
                lines=lines,
            ),
            legend=legend_of(run),
        )


def _targets(run: Run) -> tuple[float, ...]:
    """The TTFT limit that the decision is made for."""
    return (run.spec.objective.recommend_ttft_ms,) if run.spec else ()


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
    targets = _targets(run)
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
