"""Scales hold what they must show, and drawings say what the records say."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.readme_picture import write_png
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tests.run_copy import replace
from whet.core.errors import UsageError
from whet.core.records import Estimate
from whet.report import RunView
from whet.report.chart import (
    Axis,
    Chart,
    Guide,
    Point,
    Series,
    guide_spot,
    step_axis,
    value_axis,
)
from whet.report.html import render_html
from whet.report.palette import styles
from whet.report.pictures import (
    leaders,
    load_charts,
    pareto_chart,
    speculation_chart,
    variant_styles,
)
from whet.report.svg import draw
from whet.report.unit_charts import unit_charts


def test_linear_axis_ends_at_round_ticks() -> None:
    axis = value_axis("ms", [13.0, 97.0])
    assert (axis.low, axis.high, axis.log) == (0.0, 100.0, False)
    assert [text for _, text in axis.ticks] == ["0", "20", "40", "60", "80", "100"]
    assert axis.place(25.0) == pytest.approx(0.25)


def test_wide_range_is_logarithmic() -> None:
    axis = value_axis("ms", [3.0, 420.0])
    assert axis.log
    assert [value for value, _ in axis.ticks] == [2, 5, 10, 20, 50, 100, 200, 500]
    assert axis.place(31.6227766) == pytest.approx(0.5)  # √(2 × 500)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e9), min_size=1, max_size=20), st.booleans())
def test_axis_holds_every_value(values: list[float], zero: bool) -> None:
    axis = value_axis("x", values, zero=zero)
    slack = 1e-6 * (axis.high - axis.low)
    assert axis.low < axis.high
    assert axis.low - slack <= min(values)
    assert max(values) <= axis.high + slack
    places = [value for value, _ in axis.ticks]
    assert places == sorted(set(places))
    assert 1 <= len(places) <= 12


def test_batch_sizes_stand_at_equal_steps() -> None:
    axis = step_axis("batch", (1, 4, 32))
    assert axis.ticks == ((0.0, "1"), (1.0, "4"), (2.0, "32"))


def test_styles_are_distinct_and_the_baseline_neutral() -> None:
    made = styles(["a", "base", *"bcdefghij"], "base")
    assert len({(s.light, s.marker, s.dash) for s in made.values()}) == 11
    assert made["base"].css == "v0"
    assert list(made) == ["a", "base", *"bcdefghij"]


def test_those_that_are_not_named_are_quiet_and_keep_the_colours_for_the_others() -> None:
    made = styles(["a", "base", *"bcd"], "base", {"b", "d"})
    assert [name for name, style in made.items() if style.quiet] == ["a", "c"]
    assert [made[name].css for name in ("base", "b", "d")] == ["v0", "v1", "v2"]
    assert list(made) == ["a", "base", *"bcd"]


def test_each_way_to_lead_counts_by_itself(whole: RunView) -> None:
    decision = whole.decision
    assert decision is not None
    matrix = replace(decision, pareto=(), break_even=())
    front = replace(decision, matrix=(), break_even=())
    beside = replace(decision, matrix=(), pareto=())
    of = {
        name: leaders(replace(whole, cells=(), decision=only))
        for name, only in (("matrix", matrix), ("front", front), ("beside", beside))
    }
    assert of["matrix"] == {entry.variant for entry in decision.matrix if entry.variant} != set()
    assert of["front"] == {name for name, _ in decision.pareto} != set()
    assert of["beside"] == {one.candidate for one in decision.break_even} != set()
    fastest = leaders(replace(whole, decision=None))
    assert fastest
    assert fastest < {cell.variant for cell in whole.cells}


@pytest.fixture
def crowd(whole: RunView) -> RunView:
    """A run with ten slow variants more, each with the baseline's cells."""
    slow = [
        replace(cell, variant=f"slow{at}", tps_mean=None, cost_per_1m_tokens=None)
        for at in range(10)
        for cell in whole.cells
        if cell.variant == whole.baseline
    ]
    variants = (*whole.variants, *(f"slow{at}" for at in range(10)))
    return replace(whole, cells=(*whole.cells, *slow), variants=variants)


def test_of_many_variants_those_are_named_that_lead_somewhere(
    whole: RunView, crowd: RunView
) -> None:
    assert not any(style.quiet for style in variant_styles(whole).values())
    look = variant_styles(crowd)
    assert all(look[f"slow{at}"].quiet for at in range(10))
    assert whole.decision is not None
    assert whole.decision.recommendation is not None
    assert not look[whole.decision.recommendation.variant].quiet
    chart = next(chart for chart in load_charts(crowd) if chart.id == "ttft-p50")
    quiet = [series.style.quiet for series in chart.series]
    assert quiet == sorted(quiet, reverse=True), "beneath the others"
    page = render_html(crowd)
    count = sum(style.quiet for style in look.values())
    assert f"grey: {count} others" in page
    assert "scale(.5)" in page
    assert "none of which leads" not in render_html(whole)


def test_a_picture_tells_many_variants_apart_and_its_legend_fits(
    whole: RunView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tuple(f"fp8+eagle8+cache+tuned.k{at}" for at in range(12))
    cells = [cell for cell in whole.cells if cell.variant == whole.baseline]
    copies = tuple(replace(cell, variant=name) for name in names for cell in cells)
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_a, **_k: figures.append(figure))
    write_png(replace(whole, variants=names, cells=copies), tmp_path / "a.png")
    [figure] = figures
    figure.draw_without_rendering()
    [legend] = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    lines = [line for line in legend.get_lines() if isinstance(line, Line2D)]
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(names)


def test_failed_cell_has_no_point_and_excluded_ones_are_crossed(whole: RunView) -> None:
    chart = next(chart for chart in load_charts(whole) if chart.id == "throughput")
    points = {series.name: series.points for series in chart.series}
    assert [len(found) for found in points.values()] == [5, 5, 4, 5, 5]
    crossed = [point for found in points.values() for point in found if point.label == "×"]
    assert not any(point.sure for point in crossed)
    hovers = [point.hover for point in crossed]
    assert sum(hover.endswith("a claim is contradicted, excluded") for hover in hovers) == 1
    assert sum("awq+spec, " in hover and hover.endswith(", excluded") for hover in hovers) == 4
    undecided = next(x for x in load_charts(replace(whole, decision=None)) if x.id == "throughput")
    flagged = [point for one in undecided.series for point in one.points if point.label]
    assert [point.label for point in flagged] == ["!"]


def test_latency_charts_share_one_scale_and_show_targets(whole: RunView) -> None:
    median, p95 = load_charts(whole)[:2]
    assert median.y == p95.y
    assert [guide.y for guide in p95.guides] == [200.0, 500.0, 1000.0]


def test_pareto_chart_leaves_out_what_cannot_count(whole: RunView) -> None:
    chart = pareto_chart(whole)
    assert chart is not None
    # 25 cells less the failed and the contradicted one
    assert sum(len(series.points) for series in chart.series) == 23
    assert len(chart.front) == 2
    assert sum(point.sure for series in chart.series for point in series.points) == 2


def test_pareto_line_never_turns_back(whole: RunView) -> None:
    # The decision's front weighs TTFT too: all of it joined in two dimensions would zigzag.
    assert whole.decision is not None
    pareto = tuple((name, size) for name in ("fp16", "awq") for size in (1, 4, 8, 16, 32))
    chart = pareto_chart(replace(whole, decision=replace(whole.decision, pareto=pareto)))
    assert chart is not None
    assert [chart.front] == [tuple(sorted(chart.front))]
    losses = [loss for _, loss in chart.front]
    assert len(losses) == 2
    assert losses[0] > losses[1]


@pytest.mark.parametrize(
    ("heights", "spot"),
    [
        ((0.2, 0.2, 0.2), (False, False)),
        ((0.55, 0.55, 0.9), (True, False)),
        ((0.55, 0.55, 0.55), (False, True)),
        ((0.46, 0.55, 0.55), (True, True)),
    ],
)
def test_a_guides_name_stands_where_no_line_runs(
    heights: tuple[float, ...], spot: tuple[bool, bool]
) -> None:
    points = tuple(Point(x=float(at), y=y) for at, y in enumerate(heights))
    chart = Chart(
        id="one",
        title="",
        note="",
        x=Axis(label="", low=0.0, high=2.0, ticks=()),
        y=Axis(label="", low=0.0, high=1.0, ticks=()),
        series=(Series(name="a", style=styles(["a"], None)["a"], points=points),),
    )
    assert guide_spot(chart, Guide(y=0.5, label="target")) == spot


def test_speculation_chart_compares_twins(whole: RunView) -> None:
    chart = speculation_chart(whole)
    assert chart is not None
    assert [series.name for series in chart.series] == ["awq+spec", "awq+spec+cache"]
    assert chart.calm == pytest.approx(0.021)


def test_speculation_chart_turns_a_reversed_pair(whole: RunView) -> None:
    assert whole.comparisons is not None
    pair = next(
        one
        for one in whole.comparisons.comparisons
        if (one.candidate, one.reference, one.batch_size) == ("awq+spec", "awq", 1)
    )
    turned = replace(
        pair,
        candidate="awq",
        reference="awq+spec",
        ratio=Estimate(value=0.5, low=0.4, high=0.8, samples=3),
        verdict="worse",
    )
    chart = speculation_chart(
        replace(whole, comparisons=replace(whole.comparisons, comparisons=(turned,)))
    )
    assert chart is not None
    point = chart.series[0].points[0]
    assert (point.y, point.low, point.high) == (2.0, 1.25, 2.5)
    assert point.hover.endswith("(better)")


def test_unit_charts_keep_the_layers_in_order(whole: RunView) -> None:
    style = styles(["awq"], None)["awq"]
    charts = unit_charts(whole.quantized["awq"], style)
    assert [chart.title for chart in charts] == ["qkv", "o", "gate_up", "down"]
    assert [point.x for point in charts[0].series[1].points] == list(range(32))


def test_empty_run_has_no_charts(begun: RunView, tmp_path: Path) -> None:
    assert load_charts(begun) == ()
    assert pareto_chart(begun) is None
    assert speculation_chart(begun) is None
    with pytest.raises(UsageError, match="no figures to draw yet"):
        write_png(begun, tmp_path / "picture.png")


def test_svg_is_well_formed_and_inside_its_box(whole: RunView) -> None:
    for chart in load_charts(whole):
        root = ET.fromstring(str(draw(chart)))
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        dots = [g.attrib["transform"] for g in root.iter("g") if "dot" in g.get("class", "")]
        assert len(dots) == 24
        for transform in dots:
            x, y = map(float, re.findall(r"[-\d.]+", transform))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_higher_is_drawn_higher(whole: RunView) -> None:
    chart = next(chart for chart in load_charts(whole) if chart.id == "throughput")
    root = ET.fromstring(str(draw(chart)))
    first = next(g for g in root.iter("g") if g.get("class") == "v0")
    tops = [float(d.attrib["transform"].split()[1].rstrip(")")) for d in first.findall("g")]
    assert tops == sorted(tops, reverse=True)  # fp16's throughput rises with the batch size


def test_picture_is_a_png(whole: RunView, tmp_path: Path) -> None:
    write_png(whole, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
