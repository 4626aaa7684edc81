"""The speculation map as a section: sentences, table and chart, on points made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from whet.core.records import Estimate
from whet.core.records.speculation_map import AcceptanceLevel, SpeculationMap, SpeculationPoint
from whet.report.document import Chart
from whet.report.run.speculation_map import headline, map_section, sentence, worth
from whet.report.writers.console import print_sections


def estimate(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value=value, low=low, high=high, samples=50)


def point(size: int = 8, k: int = 4, **change: Any) -> SpeculationPoint:
    level = AcceptanceLevel(
        variant=f"k{k}.draft",
        synthetic=None,
        acceptance_length=estimate(3.52, 3.5, 3.54),
        tps=estimate(150, 145, 155),
    )
    given: dict[str, Any] = {
        "plain": "fp16",
        "batch_size": size,
        "k": k,
        "plain_tps": estimate(100, 98, 102),
        "levels": (level,),
        "l_star": estimate(2.31, 2.2, 2.4),
        "reachable": "yes",
        "fixed_share": 0.0,
        "spread": 0.01,
        "real": level.acceptance_length,
        "change": estimate(1.5, 1.45, 1.55),
        "pays": "yes",
        "headroom": estimate(1.42),
    }
    return SpeculationPoint(**(given | change))


def whole(*points: SpeculationPoint, **change: Any) -> SpeculationMap:
    return SpeculationMap(points=points, **change)


def test_a_sentence_has_the_edge_its_band_the_draft_and_the_verdict() -> None:
    assert sentence(point()) == (
        "at 8, K = 4: speculation pays above 2.31 tokens per step [2.20 … 2.40]; "
        "the draft has 3.52: pays (1.50× [1.45 … 1.55])."
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pays": "no", "change": estimate(0.8)}, "the draft has 3.52: does not pay (0.80×)."),
        ({"pays": "undecided"}, "not distinguishable from 1 here"),
        (
            {"l_star": estimate(5.6, 5.2, 6.1), "reachable": "no"},
            "cannot pay, whatever the draft: it takes 5.60 tokens per step [5.20 … 6.10] and "
            "K + 1 is 5",
        ),
        ({"l_star": None, "reachable": "no"}, "even free tokens would come no faster;"),
        ({"l_star": None, "reachable": "undecided"}, "no break-even was found (even free tokens"),
        (
            {"l_star": estimate(4.6, 3.9), "reachable": "undecided"},
            "above 4.60 tokens per step [3.90 … ], which may be more than K + 1 = 5",
        ),
        (
            {"l_star": estimate(5.6, 3.9), "reachable": "undecided"},
            "above 5.60 tokens per step [3.90 … ], beyond K + 1 = 5 but not with certainty",
        ),
        ({"real": None, "change": None}, "the draft's own acceptance was not measured."),
    ],
)
def test_what_else_a_sentence_says(change: dict[str, Any], said: str) -> None:
    assert said in sentence(point(**change))


def test_what_a_better_draft_is_worth() -> None:
    assert worth(point()) == "a better draft is worth at most ×1.42 more"
    shared = worth(point(headroom=estimate(1.3, 1.2, 1.4), fixed_share=0.25))
    assert shared == (
        "a better draft is worth at most ×1.30 [1.20 … 1.40] more "
        "(its steps alone ×1.42; 25.0% of a plain token's time is not theirs)"
    )
    assert worth(point(real=None, headroom=None)) == ""


def test_the_headline_names_where_the_draft_pays() -> None:
    found = whole(point(1), point(8), point(1, 2, pays="no"), point(8, 2, pays="undecided"))
    assert headline(found) == (
        "K = 2 does not pay at 1 in flight, is undecided at 8; K = 4 pays at 1, 8 in flight."
    )
    both = whole(point(1), point(8, pays="no"))
    assert headline(both) == "K = 4 pays at 1 in flight, does not at 8."
    assert headline(whole()) == "No point of the map has figures with evidence."


def marks(result: SpeculationMap, k: int) -> list[dict[str, Any]]:
    """The marks of one K's chart, as they are drawn."""
    nodes = map_section(result).nodes
    (chart,) = (n for n in nodes if isinstance(n, Chart) and n.title == f"K = {k}")
    return [dict(row) for row in next(iter(chart.picture.to_dict()["datasets"].values()))]


def test_a_chart_a_k_with_the_line_its_interval_and_the_draft() -> None:
    result = whole(point(1), point(2), point(4), point(4, 2))
    drawn = marks(result, 4)
    edge = [mark for mark in drawn if mark["series"] == "break-even"]
    assert [(m["x"], m["y"], m["low"], m["high"]) for m in edge] == [
        (size, 2.31, 2.2, 2.4) for size in ("1", "2", "4")
    ]
    assert {mark["y"] for mark in drawn if mark["series"] == "the draft"} == {3.52}
    assert len(marks(result, 2)) == 2


def test_an_edge_beyond_k_plus_1_is_a_cross_on_the_rim_and_says_how_far() -> None:
    beyond = point(l_star=estimate(7.5, 6.8, 8.1), reachable="no", pays="no")
    never = point(16, l_star=None, reachable="no", pays="no")
    edge = [mark for mark in marks(whole(beyond, never), 4) if mark["series"] == "break-even"]
    assert [(mark["y"], mark["counts"]) for mark in edge] == [(5.0, False), (5.0, False)]
    assert "7.50 [6.80 … 8.10]" in edge[0]["label"]
    assert "no break-even" in edge[1]["label"]


def test_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    never = point(16, l_star=None, reachable="no", real=None, change=None)
    made = whole(point(), never, left_out=("k4.<b> at 8: it was not measured",))
    print_sections([map_section(made)], Console(width=160))
    out = capsys.readouterr().out
    assert sentence(point()) in out
    assert "left out: k4.<b> at 8: it was not measured" in out
    assert "K = 4 pays at 8, 16 in flight." in out
    [row] = [line for line in out.splitlines() if "never" in line]
    assert row.split()[:3] == ["fp16", "16", "4"]
