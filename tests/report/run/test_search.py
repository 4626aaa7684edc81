"""What a search tried, what its changes are worth, what it cost and when that is paid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.forms import FORMS, nodes, printed, section, table
from tests.report.run_factory import make_run
from tests.report.run_texts import PRICE, VARIANTS
from tests.run_copy import replace
from whet.core.load import Load
from whet.core.records.decision import Fleet
from whet.core.records.load import TrafficFacts
from whet.core.records.search import SearchRecord, Tried, Worth
from whet.core.records.summary import Estimate
from whet.core.run import Run
from whet.core.store import RunStore
from whet.report.document import Folded
from whet.report.run.payback import payback

RECORD = SearchRecord(
    time_s=1800.0,
    elapsed_s=1000.0,
    spent=(("starts", 400.0), ("measuring", 500.0)),
    first_cell_s=75.0,
    stopped="nothing left is expected to be cheaper",
    not_tried=(("mtp", "the model brings no layers for it"),),
    chosen="awq+cache",
    worth=(
        Worth(change="awq", without="fp16+cache", ratio=1.5),
        Worth(change="prefix cache", without=None, ratio=None),
    ),
)


def tried(name: str, **change: Any) -> Tried:
    values = {"variant": name, "wave": 0, "loads": (Load.at(8),), "value": "{}", **change}
    return Tried(**values)


def searched(root: Path, *extra: Tried, record: SearchRecord | None = RECORD) -> Run:
    """The synthetic run as a search made it; without ``record`` it is not over."""
    make_run(root)
    with RunStore.open(root, resume=True) as store:
        store.put("tried", "fp16", tried("fp16", standing="start"))
        store.put(
            "tried",
            "awq+cache",
            tried(
                "awq+cache",
                wave=1,
                move="awq",
                base="fp16",
                why="weights fill the bandwidth",
                standing="adopted",
                ratio=1.5,
            ),
        )
        for each in extra:
            store.put("tried", each.variant, each)
        if record is not None:
            store.put("search", "search", record)
    return Run.read(root)


def test_each_configuration_has_its_move_reason_figures_and_standing(tmp_path: Path) -> None:
    run = searched(tmp_path / "run")
    rows = table(run, "search", "What was tried, in order")
    assert list(rows) == ["fp16", "awq+cache"]
    move, base, load, tps, ttft, cost, change, standing, why = rows["awq+cache"]
    assert (move, base, load, change, standing) == ("awq", "fp16", "8", "-33.3%", "adopted")
    assert why == "weights fill the bandwidth"
    cell = run.cell("awq+cache", Load.at(8))
    assert cell is not None
    assert cell.ttft_p95_ms is not None
    assert f"{cell.ttft_p95_ms.value:.0f}" in ttft
    assert tps.split()[0].replace(",", "").isdigit()
    assert cost.startswith("$")
    for form in FORMS:
        text = " ".join(form(run).split())
        assert "2 configurations in 16 min 40 s of 30 min 00 s" in text
        assert "first figure after 1 min 15 s" in text
        assert "nothing left is expected to be cheaper" in text


def test_changes_times_and_what_was_left_out_have_their_tables(tmp_path: Path) -> None:
    run = searched(tmp_path / "run")
    worth = table(run, "search", "What each change of awq+cache is worth")
    assert worth == {"awq": ["fp16+cache", "-33.3%"], "prefix cache": ["–", "not separated"]}
    times = table(run, "search", "Where the time went")
    assert times == {
        "starts": ["6 min 40 s", "40.0%"],
        "measuring": ["8 min 20 s", "50.0%"],
        "other": ["1 min 40 s", "10.0%"],
    }
    (folded,) = (node for node in nodes(run, "search") if isinstance(node, Folded))
    assert folded.summary == "Not tried, and why (1 move)"


def test_the_change_of_cost_is_that_of_the_costs_in_the_table(tmp_path: Path) -> None:
    """Whatever was measured again, a row has the figures that the search compared."""
    run = searched(tmp_path / "run")
    cell = run.cell("awq+cache", Load.at(8))
    assert cell is not None
    shown = replace(cell, load=Load.rate(16.0))
    rows = {
        "fp16": tried("fp16", standing="start", cell=shown, usd=4.0),
        "awq+cache": tried(
            "awq+cache", base="fp16", standing="worse", cell=shown, usd=5.0, ratio=0.8
        ),
    }
    rated = replace(run, tried=rows, loads=(Load.rate(16.0),))
    found = table(rated, "search", "What was tried, in order")
    assert [each[5] for each in found.values()] == ["$4.00", "$5.00"]
    assert [each[2] for each in found.values()] == ["16 req/s"] * 2
    assert found["awq+cache"][6] == "+25.0%"


def test_worths_are_of_the_recommended_configuration_or_are_not_shown(tmp_path: Path) -> None:
    run = searched(tmp_path / "run", record=replace(RECORD, chosen=None))
    assert "is worth" not in FORMS[0](run)


def test_more_than_fifteen_configurations_are_folded(tmp_path: Path) -> None:
    more = [tried(f"v{number}", standing="failed") for number in range(20)]
    run = searched(tmp_path / "run", *more, record=None)
    assert len(table(run, "search", "What was tried, in order")) == 15
    assert len(table(run, "search", "Tried after these")) == 7
    assert all(len(line) <= 60 for line in printed(run, 60).splitlines() if "v1 " in line)


def test_a_run_without_a_search_has_no_such_section(whole: Run) -> None:
    assert section(whole, "search") is None
    assert payback(whole) is None


def test_a_run_requires_the_loads_of_what_was_tried_and_no_other_variant(tmp_path: Path) -> None:
    run = searched(tmp_path / "run", tried("new", loads=(Load.at(4),)))
    assert run.points_of("awq+cache") == (Load.at(8),)
    assert run.variants == (*VARIANTS, "new")
    assert run.unmeasured == ("Not measured yet: new.",)


USD = 1000 / 3600 * PRICE


def saving(run: Run, **change: Any) -> Run:
    """The run with a reference that costs 3 and a recommendation that costs 2 a million tokens."""
    assert run.decision is not None

    def at(value: float) -> Estimate:
        return Estimate(value=value, low=None, high=None, samples=1)

    chosen = replace(
        run.decision.recommendation,
        **{
            "cost_per_1m_tokens": at(2.0),
            "reference_cost_per_1m_tokens": at(3.0),
            "cheaper": True,
            **change,
        },
    )
    return replace(run, decision=replace(run.decision, recommendation=chosen))


def fleet(usd: float) -> Fleet:
    return Fleet(demand_rps=8.0, rate_rps=4.0, servers=2, usd_per_month=usd)


def test_without_times_the_search_is_paid_after_so_many_tokens(tmp_path: Path) -> None:
    run = saving(searched(tmp_path / "run"))
    paid = payback(run)
    assert paid is not None
    assert paid.search_usd == pytest.approx(USD)
    assert paid.saved_usd_per_1m_tokens == pytest.approx(1.0)
    assert paid.paid_after_tokens == pytest.approx(USD * 1e6)
    assert paid.saved_usd_per_month is None
    for form in FORMS:
        text = " ".join(form(run).replace("\\", "").split())
        assert "The search took 16 min 40 s and cost $0.692, paid after 0.69 million output" in text


@pytest.mark.parametrize("tokens_per_s", [1000.0, 250.0])
def test_the_log_says_what_a_month_saves(tmp_path: Path, tokens_per_s: float) -> None:
    run = searched(tmp_path / "run")
    with RunStore.open(run.root, resume=True) as store:
        facts = TrafficFacts(requests=9, greedy=9, output_tokens_per_s=tokens_per_s)
        store.put("traffic", "log", facts)
    paid = payback(saving(Run.read(run.root)))
    assert paid is not None
    usd_per_hour = tokens_per_s * 3600 / 1e6 * 1.0
    assert paid.saved_usd_per_month == pytest.approx(730 * usd_per_hour)
    assert paid.paid_after_hours == pytest.approx(USD / usd_per_hour)


def test_at_rates_the_fleets_say_it(tmp_path: Path) -> None:
    run = searched(tmp_path / "run")
    paid = payback(saving(run, fleet=fleet(730.0), reference_fleet=fleet(2190.0)))
    assert paid is not None
    assert paid.saved_usd_per_month == pytest.approx(1460.0)
    assert paid.paid_after_hours == pytest.approx(USD / 2.0)


def test_only_a_shown_saving_pays(tmp_path: Path) -> None:
    paid = payback(saving(searched(tmp_path / "run"), cheaper=False))
    assert paid is not None
    assert (paid.paid_after_tokens, paid.paid_after_hours) == (None, None)
    assert list(paid.sentences) == ["The search took 16 min 40 s and cost $0.692."]
