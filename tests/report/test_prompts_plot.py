"""Hit rate against cache size: a logarithmic axis, two lines, the size at hand."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.report.prompts_factory import curve, empty, plain
from whet.report.prompts_plot import cache_curve_svg, curve_chart


def test_two_lines_of_rates_against_kv_tokens() -> None:
    chart = curve_chart(plain().curve, plain().repaired_curve, None)
    assert chart is not None
    as_is, mended = chart.series
    assert [(point.x, point.y) for point in as_is.points] == [
        (16, 0.016),
        (1024, 0.32),
        (8192, 0.612),
    ]
    assert [point.label for point in as_is.points] == ["", "", "61.2%"]
    assert mended.points[-1].label == "93.4%"
    assert mended.points[-1].hover.endswith("93.4% (nothing is evicted)")
    assert (chart.y.low, chart.y.high) == (0, 1)


def test_equal_steps_for_doubled_sizes() -> None:
    chart = curve_chart(curve((1, 0), (2, 10), (4, 20)), curve((1, 5)), None)
    assert chart is not None
    one, two, four = (chart.x.place(16 * size) for size in (1, 2, 4))
    assert two - one == pytest.approx(four - two)
    assert 0 < one < four < 1


def test_the_cache_at_hand_is_an_upright_line_where_the_curves_leave_room() -> None:
    chart = curve_chart(plain().curve, plain().repaired_curve, 256)
    assert chart is not None
    mark = chart.series[0]
    assert [(point.x, point.y) for point in mark.points] == [(4096, 0), (4096, 0.04), (4096, 1)]
    assert mark.points[1].label == "cache at hand: 4,096"


def test_a_size_beyond_the_curve_widens_the_axis() -> None:
    chart = curve_chart(plain().curve, plain().repaired_curve, 10**6)
    assert chart is not None
    assert chart.x.place(16e6) < 1
    assert all(chart.x.low <= value <= chart.x.high for value, _ in chart.x.ticks)


def test_the_same_curve_is_drawn_once_and_near_ends_share_a_label() -> None:
    once = curve_chart(plain().curve, plain().curve, None)
    assert once is not None
    assert len(once.series) == 1
    near = curve_chart(curve((1, 6000)), curve((1, 6300)), None)
    assert near is not None
    assert [line.points[-1].label for line in near.series] == ["", "60.0% → 63.0%"]


def test_many_points_are_thinned_with_both_ends_kept() -> None:
    many = curve(*((blocks, min(blocks, 9000)) for blocks in range(1, 5001)))
    chart = curve_chart(many, many, None)
    assert chart is not None
    drawn = chart.series[0].points
    assert len(drawn) <= 33
    assert (drawn[0].x, drawn[-1].x) == (16, 80_000)


def test_the_picture_is_well_formed_or_empty() -> None:
    picture = cache_curve_svg(plain().curve, plain().repaired_curve, 256)
    root = ElementTree.fromstring(picture)
    lines = [item for item in root.iter("path") if item.attrib.get("class") == "line"]
    assert len(lines) == 3
    assert cache_curve_svg(empty().curve, empty().curve, None) == ""
