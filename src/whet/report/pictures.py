"""The charts of a run, made from its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from whet.core.format import number, percent
from whet.core.records import CellSummary, Comparison, Estimate
from whet.metrics.compare import turned
from whet.report.chart import Chart, Guide, Point, Series, hover_text, step_axis, value_axis
from whet.report.palette import Style, styles
from whet.report.rows import UNPROVEN, regression, target_words
from whet.report.text import ONE_START
from whet.report.view import RunView

_Pick = Callable[[CellSummary], Estimate | None]
_MANY = 12
"""Variants that plots can name; of more, those that lead somewhere."""


def variant_styles(view: RunView) -> dict[str, Style]:
    """Each variant's look in every plot of this run."""
    few = len(view.variants) <= _MANY
    return styles(view.variants, view.baseline, None if few else leaders(view))


def leaders(view: RunView) -> frozenset[str]:
    """What stands in the matrix or on the front, is the fastest at a size, or speculates beside a
    variant that does not: the plot of what that brings has no others.
    """
    found = {
        max(cells, key=lambda cell: cell.tps_mean.value if cell.tps_mean else 0.0).variant
        for size in view.batch_sizes
        if (cells := [c for c in view.cells if c.batch_size == size and c.status == "complete"])
    }
    if view.decision is not None:
        found |= {entry.variant for entry in view.decision.matrix if entry.variant is not None}
        found |= {name for name, _ in view.decision.pareto}
        found |= {one.candidate for one in view.decision.break_even}
    return frozenset(found)


def _drawn(look: dict[str, Style]) -> list[str]:
    """In the order of drawing: what is quiet lies beneath."""
    return sorted(look, key=lambda name: not look[name].quiet)


def load_charts(view: RunView) -> tuple[Chart, ...]:
    """TTFT, throughput and cost against batch size; only those that hold a figure."""
    targets = view.spec.objective.ttft_ms if view.spec else ()
    made = (
        _against_batch(view, "ttft-p50", "Time to first token, median", "ms", _ttft_p50),
        _against_batch(view, "ttft-p95", "Time to first token, p95", "ms", _ttft_p95),
        _against_batch(view, "throughput", "Throughput", "output tokens / s", lambda c: c.tps_mean),
        _against_batch(view, "cost", "Cost", "USD / 1M tokens", lambda c: c.cost_per_1m_tokens),
    )
    charts = [chart for chart in made if chart is not None]
    latency = [one for chart in charts if chart.id.startswith("ttft") for one in chart.series]
    if not latency:
        return tuple(charts)
    y = value_axis("ms", list(_extent(latency)))  # one scale, so that median and p95 compare
    guides = tuple(
        Guide(y=t, label=f"target {target_words(t).removeprefix('TTFT < ')}")
        for t in targets
        if y.low * 1.1 < t <= y.high
    )
    return tuple(
        replace(chart, y=y, guides=guides) if chart.id.startswith("ttft") else chart
        for chart in charts
    )


def _ttft_p50(cell: CellSummary) -> Estimate | None:
    return cell.ttft_p50_ms


def _ttft_p95(cell: CellSummary) -> Estimate | None:
    return cell.ttft_p95_ms


def _against_batch(view: RunView, id: str, title: str, unit: str, pick: _Pick) -> Chart | None:
    place = {size: float(at) for at, size in enumerate(view.batch_sizes)}
    look = variant_styles(view)
    series = []
    for name in _drawn(look):
        points = tuple(
            _point(view, cell, value, place[cell.batch_size])
            for cell in view.cells
            if cell.variant == name and cell.status == "complete" and (value := pick(cell))
        )
        if points:
            series.append(Series(name=name, style=look[name], points=points))
    if not series:
        return None
    return Chart(
        id=id,
        title=title,
        note="",
        x=step_axis("requests in flight (batch size)", view.batch_sizes),
        y=value_axis(unit, list(_extent(series)), unit="$" if id == "cost" else ""),
        series=tuple(series),
    )


def _point(view: RunView, cell: CellSummary, value: Estimate, x: float) -> Point:
    evidence = view.evidence(cell.variant, cell.batch_size)
    where = f"batch size {cell.batch_size}"
    unproven, excluded = evidence in UNPROVEN, view.is_excluded(cell.variant, cell.batch_size)
    return Point(
        x=x,
        y=value.value,
        low=value.low,
        high=value.high,
        sure=value.certified and not unproven and not excluded,
        hover=hover_text(cell.variant, where, (value.value, value.low, value.high))
        + (f", a claim is {evidence}" if unproven else "")
        + (", excluded" if excluded else ""),
        label="×" if excluded else "!" if unproven else "",
    )


def _extent(series: Iterable[Series]) -> Iterable[float]:
    for one in series:
        for point in one.points:
            yield point.y
            yield from (bound for bound in (point.low, point.high) if bound is not None)


def pareto_chart(view: RunView) -> Chart | None:
    """Perplexity regression against cost, every cell that counts, the cheapest joined."""
    look = variant_styles(view)
    found = {
        (cell.variant, cell.batch_size): (cell, cell.cost_per_1m_tokens, loss)
        for cell in view.cells
        if cell.status == "complete"
        and view.evidence(cell.variant, cell.batch_size) not in UNPROVEN
        and cell.cost_per_1m_tokens is not None
        and (loss := regression(view.quality.get(cell.variant))) is not None
    }
    front = _cheapest(
        {
            key: (found[key][1].value, found[key][2].value)
            for key in (view.decision.pareto if view.decision else ())
            if key in found and not view.is_excluded(*key)
        }
    )
    series = []
    for name in _drawn(look):
        points = tuple(
            _front_point(*found[key], on_front=key in front, excluded=view.is_excluded(*key))
            for key in found
            if key[0] == name
        )
        if points:
            series.append(
                Series(name=name, style=look[name], points=points, joined=False, spread="bars")
            )
    return _pareto(view, series, list(front.values())) if series else None


_Key = tuple[str, int]


def _cheapest(places: Mapping[_Key, tuple[float, float]]) -> dict[_Key, tuple[float, float]]:
    """Of (cost, regression), those that no other beats in both, cheapest first.

    The decision's front weighs TTFT as well; drawn in these two dimensions it would zigzag.
    """
    kept: dict[_Key, tuple[float, float]] = {}
    best = float("inf")
    for key, (cost, loss) in sorted(places.items(), key=lambda item: item[1]):
        if loss < best:
            kept[key], best = (cost, loss), loss
    return kept


def _front_point(
    cell: CellSummary, cost: Estimate, loss: Estimate, *, on_front: bool, excluded: bool
) -> Point:
    """Only the front carries intervals and labels: the rest is there to be seen as dearer."""
    return Point(
        x=cost.value,
        y=loss.value,
        low=loss.low if on_front else None,
        high=loss.high if on_front else None,
        sure=on_front,
        hover=f"{cell.variant}, batch size {cell.batch_size}: ${number(cost.value)} per 1M, "
        f"{percent(loss.value, signed=True)} perplexity{', excluded' if excluded else ''}",
        label=f"@ {cell.batch_size}" if on_front else "×" if excluded else "",
    )


def _pareto(view: RunView, series: list[Series], joined: list[tuple[float, float]]) -> Chart:
    extent = list(_extent(series))
    tolerances = view.spec.objective.quality if view.spec else ()
    ceiling = max(*extent, min(tolerances, default=0.0))
    shown = [t for t in tolerances if t <= ceiling * 1.3]
    y = value_axis("perplexity regression", [*extent, *shown], unit="%")
    costs = [point.x for one in series for point in one.points]
    return Chart(
        id="pareto",
        title="Quality against cost",
        note="filled, @ its batch size: no cell is cheaper and as good; ×: excluded; bars: 95% "
        "interval",
        x=value_axis("USD / 1M output tokens", costs, unit="$"),
        y=y,
        series=tuple(series),
        guides=tuple(Guide(y=t, label=f"{100 * t:g}% tolerance") for t in shown),
        front=tuple(joined),
    )


def speculation_chart(view: RunView) -> Chart | None:
    """Speculation over its twin without, batch size by batch size; above 1 it pays."""
    if view.decision is None or view.comparisons is None:
        return None
    pairs = [
        (one.candidate, one.reference)
        for one in view.decision.break_even
        if one.candidate in view.variants
    ]
    measured = (
        _oriented(one, pairs)
        for one in view.comparisons.comparisons
        if one.metric == "tps_mean" and one.batch_size in view.batch_sizes
    )
    found = [one for one in measured if one is not None]
    return _ratio_chart(view, found) if found else None


def _oriented(one: Comparison, pairs: Iterable[tuple[str, str]]) -> Comparison | None:
    """The comparison with speculation above the line, or None where it is of another pair."""
    if (one.candidate, one.reference) in pairs:
        return one
    return turned(one) if (one.reference, one.candidate) in pairs else None


def _ratio_chart(view: RunView, found: list[Comparison]) -> Chart:
    place = {size: float(at) for at, size in enumerate(view.batch_sizes)}
    look = variant_styles(view)
    series = tuple(
        Series(
            name=name,
            style=look[name],
            points=tuple(
                _ratio_point(one, place[one.batch_size])
                for one in sorted(found, key=lambda item: item.batch_size)
                if one.candidate == name
            ),
        )
        for name in dict.fromkeys(one.candidate for one in found)
    )
    floor = max(one.noise_floor for one in found)
    return Chart(
        id="speculation",
        title="What speculation brings",
        note="throughput over the same variant without speculation; it pays above 1; "
        "grey: the A/A noise, the largest of these sizes; hollow: no difference, or one start",
        x=step_axis("requests in flight (batch size)", view.batch_sizes),
        y=value_axis("ratio", [*_extent(series), 1 / (1 + floor), 1 + floor], zero=False),
        series=series,
        guides=(Guide(y=1.0, label="break-even"),),
        calm=floor or None,
    )


def _ratio_point(one: Comparison, x: float) -> Point:
    return Point(
        x=x,
        y=one.ratio.value,
        low=one.ratio.low,
        high=one.ratio.high,
        sure=one.verdict in ("better", "worse"),
        hover=f"{one.candidate} over {one.reference}, batch size {one.batch_size}: "
        f"{number(one.ratio.value)} ({ONE_START if one.verdict == 'unknown' else one.verdict})",
    )
