"""Differences over rounds of starts: textbook values, and error rates by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from whet.core.load import Load
from whet.core.records.summary import Difference
from whet.metrics.pooled import StartTable
from whet.metrics.spread import Block, pooled_spread

RUNS = 300
_MARGIN = 3 * math.sqrt(0.05 * 0.95 / RUNS)
"""Three standard errors of a simulated 5%."""


def block(*rows: list[float]) -> Block:
    """Rows of logarithms, one a variant, named a, b, c, …"""
    return Block(
        load=Load.at(8),
        figures={
            chr(ord("a") + at): {number: math.exp(value) for number, value in enumerate(row)}
            for at, row in enumerate(rows)
        },
    )


def compared(*rows: list[float], family: int = 1) -> Difference:
    """b against a."""
    one = block(*rows)
    table = StartTable(metric="tps_mean", blocks={Load.at(8): one}, pool=[one])
    found = table.difference(("a", Load.at(8)), ("b", Load.at(8)), family=family)
    assert found is not None
    return found


def test_a_balanced_block_has_the_textbook_spread_and_difference() -> None:
    # Montgomery, Design and Analysis of Experiments, 8th ed., example 4.1 (vascular grafts):
    # treatments are four pressures, blocks six batches of resin; MS_E = 7.33 with 15 degrees.
    one = block(
        [90.3, 89.2, 98.2, 93.9, 87.4, 97.9],
        [92.5, 89.5, 90.6, 94.7, 87.0, 95.8],
        [85.5, 90.8, 89.6, 86.2, 88.0, 93.4],
        [82.5, 89.5, 85.6, 87.4, 78.9, 90.7],
    )
    spread = pooled_spread([one])
    assert spread.freedom == pytest.approx(15)
    assert spread.sd is not None
    assert spread.sd**2 == pytest.approx(7.33, abs=0.005)
    change, variance = one.contrast("a", "d")
    assert change == pytest.approx(85.77 - 92.82, abs=0.01)
    assert variance == pytest.approx(2 / 6)


def test_a_missing_start_leaves_the_others_paired() -> None:
    one = Block(load=Load.at(8), figures={"a": {0: 1.0, 1: 2.0, 2: 4.0}, "b": {0: 1.1, 2: 4.4}})
    change, variance = one.contrast("a", "b")
    assert math.exp(change) == pytest.approx(1.1)
    assert variance == pytest.approx(2 / 2)  # the two rounds that both have
    assert one.freedom == 1


def test_one_round_gives_a_ratio_and_no_interval() -> None:
    found = compared([0.0], [0.5])
    assert found.ratio.value == pytest.approx(math.exp(0.5))
    assert (found.ratio.low, found.ratio.high, found.different) == (None, None, False)
    assert (found.starts_needed, found.detectable) == (None, None)


def test_correlated_concurrency_add_no_degrees_of_freedom() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(4, 3)).tolist()
    same = pooled_spread([block(*rows), block(*rows)])
    assert same.freedom == pytest.approx(6)
    other = pooled_spread([block(*rows), block(*rng.normal(size=(4, 3)).tolist())])
    assert 6 < other.freedom <= 12


def test_starts_needed_would_show_the_difference() -> None:
    found = compared([0.0, 0.02], [0.05, 0.04], [0.01, -0.01], family=2)
    assert not found.different
    assert found.starts_needed is not None
    assert found.starts_needed > 2
    sure = compared([0.0, 0.02], [0.9, 0.9], [0.01, -0.01], family=2)
    assert sure.different
    assert sure.starts_needed == 2


def test_a_cell_without_a_second_start_has_no_interval() -> None:
    assert (
        StartTable.of("tps_mean", {("a", Load.at(8)): {0: 5.0}}).interval(("a", Load.at(8)), 5.0)
        is None
    )


def figures(table: StartTable, cell: tuple[str, Load]) -> list[float]:
    return list(table.blocks[cell[1]].figures[cell[0]].values())


def _table(seed: int, sigma: float, *, starts: int, variants: int, gain: float) -> StartTable:
    """One run of identical variants at three concurrencies; variant 1 is ``gain`` times faster.

    Half of a start's effect is common to its concurrencies. Rounds drift by 2%, and 0.5% is left
    of what one trial varies.
    """
    rng = np.random.default_rng(seed)
    common = rng.normal(0, sigma * math.sqrt(0.5), (variants, starts))
    cells = {}
    for size in (1, 8, 32):
        logs = common + rng.normal(0, sigma * math.sqrt(0.5), (variants, starts))
        logs += rng.normal(0, 0.02, starts) + rng.normal(0, 0.005, (variants, starts))
        logs[1] += math.log(gain)
        cells |= {
            (str(v), Load.at(size)): dict(enumerate(np.exp(row))) for v, row in enumerate(logs)
        }
    return StartTable.of("tps_mean", cells)


def test_starts_without_any_noise_have_intervals_of_no_width() -> None:
    still = {0: 100.0, 1: 100.0}
    cells = {
        ("a", Load.at(1)): still,
        ("b", Load.at(8)): still,
        ("b", Load.at(1)): {0: 90.0, 1: 90.0},
    }
    table = StartTable.of("tps_mean", cells)
    for other, load, different in (("b", 8, False), ("b", 1, True)):
        made = table.difference(("a", Load.at(1)), (other, Load.at(load)), family=1)
        assert made is not None
        assert made.different is different
        assert made.ratio.low == pytest.approx(made.ratio.high)
    assert table.interval(("a", Load.at(1)), 100.0) == pytest.approx((100.0, 100.0))
