"""The break-even map told: sentences, picture and files, on points made by hand."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from whet.core.records import (
    AcceptanceLevel,
    BreakEvenMap,
    BreakEvenPoint,
    Estimate,
    UncountedLevel,
)
from whet.report.break_even.document import break_even_document
from whet.report.break_even.files import (
    LEVEL_COLUMNS,
    POINT_COLUMNS,
    print_break_even,
    write_break_even,
)
from whet.report.break_even.sentences import headline, sentence, worth
from whet.report.document import Chart
from whet.report.writers.markdown import safe


def estimate(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value=value, low=low, high=high, samples=50)


def point(size: int = 8, k: int = 4, **change: Any) -> BreakEvenPoint:
    level = AcceptanceLevel(
        variant=f"k{k}.draft",
        level="draft",
        acceptance_length=estimate(3.52, 3.5, 3.54),
        tps=estimate(150, 145, 155),
    )
    given: dict[str, Any] = {
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
    return BreakEvenPoint(**(given | change))


def whole(*points: BreakEvenPoint, **change: Any) -> BreakEvenMap:
    given: dict[str, Any] = {
        "name": "demo",
        "tier": "2 cores",
        "base": "fp16",
        "weights": "16bit",
        "method": "draft_model",
        "draft": "draft",
        "points": points,
        "left_out": (),
    }
    return BreakEvenMap(**(given | change))


def test_a_sentence_has_the_edge_its_band_the_draft_and_the_verdict() -> None:
    assert sentence(point()) == (
        "at 8, K = 4: speculation pays above 2.31 tokens a step [2.20 … 2.40]; "
        "the draft has 3.52: pays (1.50× [1.45 … 1.55])."
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pays": "no", "change": estimate(0.8)}, "the draft has 3.52: does not pay (0.80×)."),
        ({"pays": "undecided"}, "not distinguishable from 1 here"),
        (
            {"l_star": estimate(5.6, 5.2, 6.1), "reachable": "no"},
            "cannot pay, whatever the draft: it takes 5.60 tokens a step [5.20 … 6.10] and "
            "K + 1 is 5",
        ),
        ({"l_star": None, "reachable": "no"}, "even free tokens would come no faster;"),
        ({"l_star": None, "reachable": "undecided"}, "no break-even was found (even free tokens"),
        (
            {"l_star": estimate(4.6, 3.9), "reachable": "undecided"},
            "above 4.60 tokens a step [3.90 … ], which may be more than K + 1 = 5",
        ),
        (
            {"l_star": estimate(5.6, 3.9), "reachable": "undecided"},
            "above 5.60 tokens a step [3.90 … ], beyond K + 1 = 5 but not with certainty",
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


def marks(result: BreakEvenMap, k: int) -> list[dict[str, Any]]:
    """The marks of one K's chart, as they are drawn."""
    nodes = break_even_document(result).sections[0].nodes
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


def test_the_files(tmp_path: Path) -> None:
    lost = UncountedLevel(variant="k4.<b>", batch_size=8, reason="speculation contradicted: x")
    never = point(8, l_star=None, reachable="no", real=None, change=None)
    made = whole(point(1), never, left_out=(lost,))
    write_break_even(made, tmp_path)
    [first, second] = csv.DictReader(io.StringIO((tmp_path / "break_even.csv").read_text()))
    assert tuple(first) == POINT_COLUMNS
    assert (first["l_star"], first["l_star_high"], first["draft_length"]) == ("2.31", "2.4", "3.52")
    assert (second["l_star"], second["draft_length"], second["speedup"]) == ("", "", "")
    [level, _] = csv.DictReader(io.StringIO((tmp_path / "break_even_levels.csv").read_text()))
    assert tuple(level) == LEVEL_COLUMNS
    assert (level["level"], level["acceptance_length"], level["tps"]) == ("draft", "3.52", "150")
    picture = ElementTree.fromstring((tmp_path / "charts" / "break-even-k4.svg").read_text())
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    page = (tmp_path / "break_even.html").read_text()
    assert "<script" not in page
    assert "k4.&lt;b&gt;" in page
    text = (tmp_path / "break_even.md").read_text()
    assert safe(sentence(point(1))) in text
    assert (
        r"| 1 | 4 | 2.31 \[2.20 … 2.40\] | 3.52 \[3.50 … 3.54\] | 1.50 \[1.45 … 1.55\] | yes |"
        in text
    )
    assert "| 8 | 4 | never | – | – |" in text


def test_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    lost = UncountedLevel(variant="k4.noise1", batch_size=8, reason="it was not measured")
    document = break_even_document(whole(point(), left_out=(lost,)))
    print_break_even(document, Console(width=160))
    out = capsys.readouterr().out
    assert sentence(point()) in out
    assert "left out: k4.noise1 at 8: it was not measured" in out
    assert "K = 4 pays at 8 in flight." in out
