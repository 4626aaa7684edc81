"""The speculation map as a section, on points made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from whet.core.load import Load
from whet.core.records.speculation_map import AcceptanceLevel, SpeculationMap, SpeculationPoint
from whet.core.records.summary import Estimate
from whet.report.document import Bullets, Table
from whet.report.run.speculation_map import map_section
from whet.report.writers.console import print_sections


def estimate(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value=value, low=low, high=high, samples=2)


def level(length: float, change: Estimate, *, synthetic: bool = True) -> AcceptanceLevel:
    return AcceptanceLevel(
        variant="level" if synthetic else "draft",
        synthetic=length if synthetic else None,
        acceptance_length=length,
        change=change,
    )


DRAFT = level(3.52, estimate(1.5, 1.45, 1.55), synthetic=False)
SIMULATED = (level(1.0, estimate(0.44, 0.43, 0.45)), level(5.0, estimate(2.1, 2.0, 2.2)))


def point(size: int = 8, **change: Any) -> SpeculationPoint:
    given: dict[str, Any] = {
        "plain": "fp16",
        "load": Load.at(size),
        "k": 4,
        "levels": (SIMULATED[0], DRAFT, SIMULATED[1]),
        "l_star": estimate(2.31, 2.2, 2.4),
    }
    return SpeculationPoint(**(given | change))


def row(one: SpeculationPoint) -> list[str]:
    """The texts of a point's row, each interval behind its figure."""
    (table,) = (n for n in map_section(SpeculationMap(points=(one,))).nodes if isinstance(n, Table))
    return [f"{cell.text} {cell.detail}".strip() for cell in table.rows[0].cells]


def test_a_row_has_the_levels_the_break_even_and_the_draft() -> None:
    assert row(point()) == [
        *("fp16", "8", "4", "1.00: 0.44, 5.00: 2.10"),
        *("2.31 2.20 … 2.40", "3.52", "1.50 1.45 … 1.55", "pays"),
    ]


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (estimate(0.8, 0.7, 0.9), "does not pay"),
        (estimate(1.1, 0.9, 1.2), "undecided"),
        (estimate(1.5), "one start: no verdict"),
    ],
)
def test_the_verdict_on_the_draft(change: Estimate, verdict: str) -> None:
    levels = (SIMULATED[0], level(3.5, change, synthetic=False))
    assert row(point(levels=levels))[-1] == verdict


def test_a_draft_that_was_not_measured() -> None:
    assert row(point(levels=SIMULATED))[-3:] == ["–", "–", "not measured"]


def test_a_break_even_outside_the_levels_says_on_which_side() -> None:
    assert row(point(levels=SIMULATED[:1], l_star=None))[4] == "> 1.00"
    assert row(point(levels=SIMULATED[1:], l_star=None))[4] == "< 5.00"


def test_a_break_even_without_an_interval_says_what_would_give_one() -> None:
    def notes(one: SpeculationPoint) -> list[str]:
        nodes = map_section(SpeculationMap(points=(one,))).nodes
        return [item for n in nodes if isinstance(n, Bullets) for item in n.items]

    alone = (level(1.0, estimate(0.44)), level(5.0, estimate(2.1)))
    assert notes(point()) == []
    assert notes(point(l_star=None)) == []
    assert notes(point(l_star=estimate(2.31), levels=alone)) == []  # one start: the row says so
    assert notes(point(l_star=estimate(2.31))) == [
        "fp16 at concurrency 8, K = 4: the break-even has no interval; set synthetic_acceptance "
        "levels further apart on both sides of it, or raise load.trials"
    ]


def test_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    made = SpeculationMap(
        points=(point(),), left_out=("k4.<b>: no variant is the same without speculation; add it",)
    )
    print_sections([map_section(made)], Console(width=160))
    out = capsys.readouterr().out
    assert "k4.<b>: no variant is the same without speculation; add it" in out
    assert "1.00: 0.44, 5.00: 2.10" in out
