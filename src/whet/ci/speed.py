"""The cost that decides, and the figures of each load that only advise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import geometric_mean
from typing import Final

from whet.ci.paired import RunPair, paired_at, same_traffic, start_table
from whet.ci.result import Check, Sides, Word
from whet.core.format import number
from whet.core.load import loads_words
from whet.core.records.quality_checks import GateVerdict
from whet.core.records.summary import Estimate
from whet.metrics import METRICS, metrics_in
from whet.metrics.metric import CounterMetric, Metric
from whet.metrics.pooled import Cell, StartTable
from whet.report.text import shown

_ONE_START: Final = "one start has no interval; set load.trials to 2 or more"


def primary_check(sides: Sides) -> Check:
    """Compare the cost of the primary cell at the baseline's price: throughput decides."""
    load = sides.load
    if load is None or load not in sides.loads:
        name = "cost" if load is None else f"cost, {load.words}"
        return _primary(name, "unknown", _no_load(sides))
    if (lost := sides.lost_cell(load)) is not None:
        return replace(lost, role="primary")
    name, cell, metric = f"cost, {load.words}", (sides.variant, load), METRICS["tps_mean"]
    if sides.other_machine is not None:
        return _primary(name, "unknown", sides.other_machine)
    before, after = (start_table(run, metric) for run in (sides.baseline, sides.candidate))
    if not before.starts(cell) or not after.starts(cell):
        return _primary(name, "unknown", "a run has no throughput here")
    # A cost is 1 ÷ a rate: the candidate's cost ÷ the baseline's is the other ratio of the rates.
    pair = paired_at(
        cell, after, before, same_traffic=same_traffic(sides.baseline, sides.candidate)
    )
    cost = pair.ratio(cell)
    verdict = cost_verdict(cost, sides.max_regression)
    sentence = _cost_words(pair, cell, sides.max_regression)
    return replace(_primary(name, verdict, sentence), change=cost)


def cost_verdict(cost: Estimate | None, allowed: float) -> GateVerdict:
    """Judge candidate ÷ baseline: pass below the allowance, fail where dearer and beyond it.

    Passes where the upper end of the interval is below 1 + ``allowed``. Fails where the lower end
    is above 1 and the figure itself above 1 + ``allowed``.
    """
    if cost is None or cost.low is None or cost.high is None:
        return "unknown"
    if cost.high < 1 + allowed:
        return "pass"
    return "fail" if cost.low > 1 and cost.value > 1 + allowed else "unknown"


def _cost_words(pair: RunPair, cell: Cell, allowed: float) -> str:
    """The change of the cost, and how many starts would decide one that is unknown."""
    cost = pair.ratio(cell)
    if cost is None or cost.low is None:
        return _ONE_START
    verdict, words = cost_verdict(cost, allowed), shown(cost, unit="+%").full
    most = f"{100 * allowed:+g}%"
    if verdict != "unknown":
        words = f"{words}, every start the same" if cost.low == cost.high else words
        return words if verdict == "pass" else f"{words}, above {most}"
    # It may fail where the interval reaches 0, and pass where it reaches the allowance.
    starts = pair.starts_to_decide(cell, 1.0 if cost.value > 1 + allowed else 1 + allowed)
    count = "more than 200" if starts is None else str(starts)
    return f"{words}, not decided at {most}: {count} starts of each would decide if it stays so"


def _primary(name: str, verdict: GateVerdict, sentence: str) -> Check:
    return Check(group="speed", name=name, verdict=verdict, sentence=sentence, role="primary")


def lost_checks(sides: Sides) -> Iterator[Check]:
    """The loads besides the primary one at which the candidate has no figures."""
    for load in sides.loads:
        if load != sides.load and (lost := sides.lost_cell(load)) is not None:
            yield lost


def advisory_checks(sides: Sides) -> Iterator[Check]:
    """Say of each metric at each load where its interval is; a counter that stood still fails."""
    loads = [load for load in sides.loads if sides.lost_cell(load) is None]
    runs = sides.baseline, sides.candidate
    is_same = same_traffic(*runs)
    for metric in metrics_in("changes"):
        before, after = (start_table(run, metric) for run in runs)
        for load in loads:
            cell = sides.variant, load
            if before.starts(cell):
                pair = paired_at(cell, before, after, same_traffic=is_same)
                yield _advised(sides, metric, pair, cell)


def _advised(sides: Sides, metric: Metric, pair: RunPair, cell: Cell) -> Check:
    is_counter, load = isinstance(metric, CounterMetric), cell[1]
    check = Check(
        group="counters" if is_counter else "speed",
        name=f"{metric.title}, {load.words}",
        verdict="not distinguished",
        sentence=sides.other_machine or "",
        role="advisory",
    )
    if sides.other_machine is not None and not is_counter:
        return check
    if not pair.candidate.starts(cell):
        measured = sides.candidate.cell(*cell)
        if measured is None or measured.figures[metric.name] != 0:
            return replace(check, sentence="the candidate has no figure")
        return replace(check, verdict="fail", sentence="nothing was counted", role="required")
    ratio = pair.ratio(cell)
    before, after = (number(_mean(table, cell)) for table in (pair.reference, pair.candidate))
    unit = f" {metric.unit}" if metric.unit else ""
    word, change = _advice(ratio, metric, sides.max_regression)
    return replace(
        check, verdict=word, sentence=f"{before} → {after}{unit}; {change}", change=ratio
    )


def _advice(ratio: Estimate | None, metric: Metric, allowed: float) -> tuple[Word, str]:
    """Beyond where the whole interval is worse than the allowance, within where none of it is."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "not distinguished", _ONE_START
    limit = 1 - allowed if metric.better == "higher" else 1 + allowed
    beyond, within = ratio.low > limit, ratio.high <= limit
    if metric.better == "higher":
        beyond, within = ratio.high < limit, ratio.low >= limit
    change = shown(ratio, unit="+%").full
    if within:
        return "within", change
    return "beyond" if beyond else "not distinguished", f"{change} at {100 * (limit - 1):+g}%"


def _mean(table: StartTable, cell: Cell) -> float:
    """The geometric mean over the starts of a cell."""
    return geometric_mean(table.blocks[cell[1]].figures[cell[0]].values())


def _no_load(sides: Sides) -> str:
    before, after = (
        loads_words(points) if (points := run.points_of(sides.variant)) else "no load"
        for run in (sides.baseline, sides.candidate)
    )
    at = "a common load" if sides.load is None else sides.load.words
    return (
        f"{sides.variant} was not measured at {at} in both runs (baseline: {before}; candidate: "
        f"{after}); measure the candidate at the baseline's loads"
    )
