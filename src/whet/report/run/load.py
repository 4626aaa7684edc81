"""TTFT, throughput and cost against the concurrency, and what speculation brings."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.format import number
from whet.core.records.effects import LeverEffect
from whet.core.run import Run
from whet.metrics import metrics_in
from whet.report.charts.plots import Axis, Line, Point, Scale, plot
from whet.report.document import Chart, Section
from whet.report.run.common import legend_of, looks_of, point, target_words
from whet.report.text import shown

ORDER = 30


def build(run: Run) -> Section | None:
    """Every chart that holds a figure."""
    charts = [*_load_charts(run), *_speculation(run)]
    if not charts:
        return None
    return Section(id="load", title="Under load", group="Speed", nodes=charts)


def _batch_axis(run: Run) -> Axis:
    order = tuple(str(size) for size in run.loads)
    rates = any(load.is_open for load in run.loads)
    title = "requests a second" if rates else "concurrency (requests in flight)"
    return Axis(title=title, scale="category", order=order)


def _load_charts(run: Run) -> Iterator[Chart]:
    targets = run.spec.objective.ttft_ms if run.spec else ()
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


def _speculation(run: Run) -> Iterator[Chart]:
    """Speculation over the same variant without it; above 1 it pays."""
    if run.decision is None or run.lever_effects is None:
        return
    pairs = {(each.candidate, each.reference) for each in run.decision.break_even}
    measured = [
        each
        for each in run.lever_effects.effects
        if each.metric == "tps_mean" and (each.candidate, each.reference) in pairs
    ]
    if measured:
        yield Chart(
            name="speculation",
            title="What speculation brings",
            description="Throughput over the same variant without speculation; it pays above 1.",
            picture=plot(
                [_ratio(each) for each in measured],
                looks_of(run),
                x=_batch_axis(run),
                y=Axis(title="ratio of throughput", form="~r"),
                lines=[Line(y=1.0, label="break-even")],
            ),
            legend=[
                pair
                for pair in legend_of(run)
                if any(pair[0].startswith(m.candidate) for m in measured)
            ],
        )


def _ratio(each: LeverEffect) -> Point:
    return Point(
        series=each.candidate,
        x=str(each.load),
        y=each.ratio.value,
        order=each.load.value,
        low=each.ratio.low,
        high=each.ratio.high,
        label=f"{each.candidate} over {each.reference} at {each.load}: {number(each.ratio.value)}",
    )
