"""No loss is recommended, whatever was measured: main and confirmed rounds, loads and rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decision.cells import cell, decided, quality, tier
from whet.core.load import Load
from whet.core.records.decision import Decision
from whet.core.records.summary import CellSummary
from whet.decision import TierInputs
from whet.metrics.pooled import StartTable
from whet.report.run.common import is_win
from whet.report.run.verdict import verdict_section

_VARIANTS = ("usual", "awq", "spec")
_COSTS = st.sampled_from([0.5, 0.9, 0.97, 1.0, 1.03, 1.1, 2.0])
_LATENCIES = st.sampled_from([100.0, 499.0, 900.0])


@st.composite
def measured(draw: st.DrawFn, loads: list[Load], names: tuple[str, ...]) -> Any:
    """Cells of these variants, and the starts that they are the figures of."""
    count, cells, figures = draw(st.integers(1, 3)), [], {}
    for name in names:
        for load in loads:
            rates = [1e6 / 3600 / draw(_COSTS) for _ in range(count)]
            mean = float(np.exp(np.mean(np.log(rates))))
            # A cell's figure is not always the mean of its starts: trials may be of other lengths.
            cost = 1e6 / 3600 / mean * draw(st.sampled_from([1.0, 1.0, 0.96, 1.04]))
            item = cell(name, 1, cost, draw(_LATENCIES), starts=count)
            cells.append(replace(item, load=load))
            figures[name, load] = dict(enumerate(rates))
    return cells, figures


@st.composite
def tiers(draw: st.DrawFn, name: str, at_rates: bool) -> TierInputs:
    loads: list[Load] = [Load.rate(2.0), Load.rate(6.0)] if at_rates else [Load.at(1), Load.at(8)]
    names = tuple(
        n for n in _VARIANTS if n != "usual" or draw(st.booleans()) or draw(st.booleans())
    )
    cells, figures = draw(measured(loads, names))
    table = StartTable.of("tps_mean", figures)
    again: list[CellSummary] = []
    sure = None
    if draw(st.booleans()):
        again, fresh = draw(measured(loads, names))
        sure = StartTable.of("tps_mean", fresh, more=table)
    passes = st.sampled_from([("pass",) * 3, ("pass",) * 3, ("fail",) * 3])
    return tier(
        cells,
        tier=name,
        quality={each: quality(each, draw(passes)) for each in names},
        tables={"tps_mean": table},
        confirmation=again,
        fresh={} if sure is None else {"tps_mean": sure},
        price_usd_per_hour=1.0,
        demand_rps=draw(st.sampled_from([1.0, 6.0, 23.0])) if at_rates else None,
    )


def cost_of(inputs: TierInputs, item: CellSummary) -> float:
    """Dollars that the decision ranks by: a million tokens, or servers for the demand."""
    if inputs.demand_rps is not None:
        return -(-inputs.demand_rps // item.load.value)
    assert item.cost_per_1m_tokens is not None
    return item.cost_per_1m_tokens.value


def usual_costs(inputs: TierInputs, *, confirmed: bool) -> list[float]:
    """Costs of the default's cells that meet the limits, by the figures that count.

    A rate counts where no lower one has missed.
    """
    passes = dict(inputs.quality["usual"].verdicts)[0.01] == "pass"
    again = {(c.variant, c.load): c for c in inputs.confirmation} if confirmed else {}
    cells = [c for c in inputs.cells if c.variant == "usual"]
    late = {p for p, c in again.items() if c.ttft_p95_ms.value >= 500}  # type: ignore[union-attr]
    newest = {(c.variant, c.load): c for c in (*cells, *inputs.confirmation)}
    lost = [
        c.load
        for c in newest.values()
        if c.variant == "usual"
        if c.load.is_open and (c.ttft_p95_ms is None or c.ttft_p95_ms.value >= 500)
    ]
    met = [
        c
        for c in cells
        if passes
        and c.ttft_p95_ms is not None
        and c.ttft_p95_ms.value < 500
        and (c.variant, c.load) not in late
        and not any(load < c.load for load in lost)
    ]
    cheapest = sorted(met, key=lambda c: cost_of(inputs, c))[:1]
    return [cost_of(inputs, again.get((c.variant, c.load), c)) for c in cheapest]


def check(decision: Decision, *every: TierInputs) -> None:
    chosen = decision.recommendation
    if chosen is None:
        return
    own = next(each for each in every if each.tier == chosen.tier)
    assert (chosen.variant == "usual") <= (chosen.saving is None)
    assert chosen.saving is None or chosen.saving.value > 0
    assert "dearer" not in str(verdict_section(decision))
    if is_win(decision) and chosen.fleet is None and chosen.reference_load is not None:
        assert chosen.difference is not None
        assert chosen.difference.ratio.value > 1
    if chosen.variant == "usual":
        return
    usd = chosen.cost_per_1m_tokens.value if chosen.fleet is None else chosen.fleet.servers
    known = "usual" in own.quality
    for cost in usual_costs(own, confirmed=chosen.measured_again) if known else ():
        assert usd < cost


@pytest.mark.parametrize("at_rates", [False, True])
def test_what_is_recommended_is_cheaper_than_a_default_that_meets_its_limits(
    at_rates: bool,
) -> None:
    @settings(max_examples=400, deadline=None, derandomize=True)
    @given(tiers("L4", at_rates))
    def holds(own: TierInputs) -> None:
        check(decided(own, reference="usual"), own)

    holds()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(tiers("L4", False), tiers("H100", False))
def test_so_it_is_over_two_machines(small: TierInputs, large: TierInputs) -> None:
    check(decided(small, large, reference="usual"), small, large)
