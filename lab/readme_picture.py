"""The report's load charts as one picture for README, by matplotlib: SVG or PNG by its ending."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from whet.report.pictures import load_charts, pareto_chart

from whet.core.errors import UsageError
from whet.core.run import Run
from whet.core.store import translate_disk_errors
from whet.report.chart import Axis, Chart, Series, guide_spot
from whet.report.palette import Style
from whet.report.text import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS: Final = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "down": "v",
    "plus": "P",
    "cross": "X",
}
_SETTINGS: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "whet",  # ids in the SVG do not change from one writing to the next
    "text.parse_math": False,  # a dollar sign is a price
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": "#9aa3ad",
    "axes.labelcolor": "#4c5560",
    "xtick.color": "#4c5560",
    "ytick.color": "#4c5560",
    "ytick.left": False,
}
_INK: Final = "#16191d"
_LEGEND_LETTERS, _KEY_LETTERS = 130, 9
"""What a line of the legend holds, and what a key and the room around it take of it."""


def write_png(view: Run, path: Path) -> None:
    """TTFT p95, throughput, cost and the quality/cost front in one picture.

    Raises ``UsageError`` where the run holds no figure yet.
    """
    charts = [chart for chart in load_charts(view) if chart.id != "ttft-p50"]
    front = pareto_chart(view)
    charts += [front] if front is not None else []
    if not charts:
        raise UsageError(f"{view.root} holds no figures to draw yet; go on with whet run --resume")
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    with mpl.rc_context(_SETTINGS), translate_disk_errors(path):
        lines = -(-len(charts) // 2)
        figure = Figure(figsize=(10.4, 3.7 * lines + 0.5), dpi=115, layout=layout)
        grid = figure.subplots(lines, 2, squeeze=False).flatten()
        for axes, chart in zip(grid, charts, strict=False):
            _draw(axes, chart)
        for axes in grid[len(charts) :]:
            axes.set_axis_off()
        _legend(figure, charts, {name for name in view.variants if view.is_excluded(name)})
        figure.supxlabel(_caption(view), fontsize=8.5, color="#626b77")
        figure.savefig(path, facecolor="white", metadata=_undated(path))


def _caption(view: Run) -> str:
    device = f"{view.environment.device.name}. " if view.environment else ""
    return one_line(
        f"{device}Shaded: 95% interval. Hollow: too few samples to certify the p95; in quality "
        "against cost, a cell that another beats. ×: excluded."
    )


def _undated(path: Path) -> dict[str, str | None]:
    """No date inside the file: the same run gives the same bytes."""
    return {"Date": None} if path.suffix == ".svg" else {"Software": "whet"}


def _draw(axes: Axes, chart: Chart) -> None:
    axes.set_title(
        one_line(chart.title), loc="left", fontweight="bold", color=_INK, fontsize=11, pad=15
    )
    _scale(axes, chart.x, "x")
    _scale(axes, chart.y, "y")
    axes.grid(axis="y", color="#e9ecef")
    axes.set_axisbelow(True)
    for guide in chart.guides:
        right, below = guide_spot(chart, guide)
        axes.axhline(guide.y, color="#8a939d", linestyle=(0, (5, 4)), linewidth=0.9)
        axes.annotate(
            guide.label,
            (1 if right else 0, guide.y),
            xycoords=("axes fraction", "data"),
            xytext=(-3 if right else 3, -3 if below else 2),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top" if below else "bottom",
            fontsize=8,
            color="#626b77",
        )
    if len(chart.front) > 1:
        xs, ys = zip(*chart.front, strict=True)
        axes.plot(xs, ys, color="#626b77", linewidth=1.2, zorder=1, drawstyle="steps-post")
    for series in chart.series:
        _series(axes, series)


def _scale(axes: Axes, axis: Axis, which: str) -> None:
    places, texts = [at for at, _ in axis.ticks], [text for _, text in axis.ticks]
    if which == "x":
        axes.set_xscale("log" if axis.log else "linear")
        axes.set_xticks(places, texts)
        axes.set_xticks([], minor=True)
        axes.set_xlim(axis.low, axis.high)
        axes.set_xlabel(axis.label)
    else:
        axes.set_yscale("log" if axis.log else "linear")
        axes.set_yticks(places, texts)
        axes.set_yticks([], minor=True)
        axes.set_ylim(axis.low, axis.high)
        axes.set_ylabel(axis.label)


def _series(axes: Axes, series: Series) -> None:
    colour, marker = series.style.light, _MARKERS[series.style.marker]
    xs, ys = [point.x for point in series.points], [point.y for point in series.points]
    if series.joined:
        width = 0.9 if series.style.quiet else 1.7
        axes.plot(xs, ys, color=colour, linewidth=width, linestyle=_line(series.style))
    if series.style.quiet:
        return
    bounded = [
        (p.x, p.low, p.high) for p in series.points if p.low is not None and p.high is not None
    ]
    if series.spread == "band" and len(bounded) > 1:
        at, low, high = zip(*bounded, strict=True)
        axes.fill_between(at, low, high, color=colour, alpha=0.16, linewidth=0)
    elif bounded:
        at, low, high = zip(*bounded, strict=True)
        axes.vlines(at, low, high, color=colour, alpha=0.55, linewidth=1.1)
    for point in series.points:
        face = colour if point.sure else "white"
        edge = "white" if point.sure else colour
        axes.plot(
            [point.x],
            [point.y],
            marker,
            markersize=6,
            markerfacecolor=face,
            markeredgecolor=edge,
            clip_on=False,
            zorder=3,
        )
        if point.label:
            axes.annotate(
                point.label,
                (point.x, point.y),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                fontweight="bold",
                color=_INK,
                bbox={"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.85},
                zorder=4,
            )


def _line(style: Style) -> Any:
    """matplotlib's words for the dash, which a page gives in widths of two pixels."""
    return (0, tuple(float(part) / 2 for part in style.dash.split())) if style.dash else "-"


def _legend(figure: Figure, charts: list[Chart], excluded: Collection[str]) -> None:
    from matplotlib.lines import Line2D

    styles = {series.name: series.style for chart in charts for series in chart.series}
    handles = [
        Line2D(
            [],
            [],
            color=style.light,
            marker=_MARKERS[style.marker],
            linestyle=_line(style),
            markerfacecolor="white" if name in excluded else style.light,
            label=one_line(name) + (" (excluded)" if name in excluded else ""),
        )
        for name, style in styles.items()
        if not style.quiet
    ]
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    columns = min(6, len(handles), max(_LEGEND_LETTERS // (longest + _KEY_LETTERS), 1))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    write_png(Run.read(given.run), given.picture)


if __name__ == "__main__":
    main()
