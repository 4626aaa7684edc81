"""The charts: TTFT, throughput and cost by load, and cost against TTFT."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from whet.core.records.summary import CellSummary
from whet.core.run import Run
from whet.metrics import METRICS, metrics_in
from whet.report.charts.plots import WIDTH, Axis, Line, Point, heights, log_axis, plot
from whet.report.document import Chart, Node, Section
from whet.report.run.common import looks_of, point, target_words
from whet.report.text import shown

ORDER = 30
_TTFT = METRICS["ttft_p95_ms"]


def build(run: Run) -> Section | None:
    """Every chart that holds a figure; a single load makes no curve."""
    charts = list(_charts(run)) if len(run.loads) > 1 else []
    return Section(id="load", title="Under load", group="Speed", nodes=charts) if charts else None


def _batch_axis(run: Run) -> Axis:
    order = tuple(str(size) for size in run.loads)
    rates = any(load.is_open for load in run.loads)
    title = "requests a second" if rates else "concurrency (requests in flight)"
    return Axis(title=title, scale="category", order=order)


def _charts(run: Run) -> Iterator[Chart]:
    for metric in metrics_in("charts"):
        sign, unit = metric.sign, metric.axis or metric.unit
        points = [
            point(run, cell, str(cell.load), value, f"{shown(value, unit=sign).full} {unit}")
            for cell in run.cells
            if cell.status == "complete" and (value := cell.estimate(metric.name)) is not None
        ]
        if not points:
            continue
        limits = _limits(run) if metric is _TTFT else []
        y = Axis(title=unit, zero=True, form=f"{sign}~r" if sign else "~s")
        if metric.name.startswith("ttft") and min(each.y for each in points) > 0:
            y = log_axis(unit, [*heights(points), *limits])
        lines = [Line(y=each, label=target_words(each)) for each in limits]
        yield Chart(
            name=metric.title.lower().replace(" ", "-"),
            title=metric.heading,
            description=_crossed(points),
            picture=plot(points, looks_of(run), x=_batch_axis(run), y=y, lines=lines),
        )


def _crossed(points: Iterable[Point]) -> str:
    return "" if all(each.counts for each in points) else "Cross: excluded."


def _limits(run: Run) -> list[float]:
    """The TTFT limit that the decision is made for."""
    return [run.spec.objective.recommend_ttft_ms] if run.spec else []


def cost_charts(run: Run) -> Iterator[Node]:
    """One mark a cell; excluded ones are crossed, the recommended one is ringed."""
    places = [
        (cell, cell.ttft_p95_ms, cell.cost_per_1m_tokens)
        for cell in run.cells
        if cell.status == "complete" and cell.cost_per_1m_tokens and cell.ttft_p95_ms
    ]
    if not places:
        return
    points = [
        point(run, cell, ttft.value, cost, f"{shown(cost, unit='$').text}, {shown(ttft).marked} ms")
        for cell, ttft, cost in places
    ]
    x = log_axis("TTFT p95, ms", [*(ttft.value for _, ttft, _ in places), *_limits(run)])
    y = log_axis("USD per 1M output tokens", heights(points), form="$~r")
    lines = [Line(x=t, label=target_words(t).replace("TTFT <", "limit")) for t in _limits(run)]
    yield Chart(
        name="cost-latency",
        title="Cost against time to first token",
        description=f"Ring: recommended. Dashed: limit. {_crossed(points)}".strip(),
        picture=plot(points, looks_of(run), x=x, y=y, lines=lines),
        choice=_choice(run, x),
    )


def _choice(run: Run, axis: Axis) -> dict[str, Any] | None:
    """Return what the page needs to name the cheapest cell below another TTFT limit.

    ``cells`` miss nothing but this limit, cheapest first. None without a decision, and at rates,
    where a limit changes the number of servers too.
    """
    if run.decision is None or run.spec is None or any(load.is_open for load in run.loads):
        return None
    chosen = run.decision.recommendation
    places = sorted(
        (cell.cost_per_1m_tokens.value, cell.variant, cell.load, cell.ttft_p95_ms.value)
        for cell in run.cells
        if cell.cost_per_1m_tokens and cell.ttft_p95_ms and _may_win(run, cell)
    )
    return {
        **{"ends": axis.ends, "width": WIDTH, "limit": run.spec.objective.recommend_ttft_ms},
        "decided": None if chosen is None else f"{chosen.variant} at {chosen.load}",
        "cells": [
            {"name": f"{variant} at {load}", "ttft": ttft, "usd": shown(usd, unit="$").text}
            for usd, variant, load, ttft in places
        ],
    }


def _may_win(run: Run, cell: CellSummary) -> bool:
    """Whether a cell qualifies, or would if its TTFT were below the limit."""
    decided = run.decided(cell.variant, cell.load)
    words = "" if decided is None else decided.label
    return words in ("recommended", f"misses {_TTFT.title}") or words.endswith("qualifies")
