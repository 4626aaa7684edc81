"""Throughput, latency and counters at each load that both runs measured."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean
from typing import Final

from whet.ci.result import Check, Sides
from whet.core.format import number
from whet.core.load import Load, loads_words
from whet.core.records.quality_checks import GateVerdict
from whet.core.records.summary import Estimate
from whet.core.run import Run
from whet.metrics import metrics_in
from whet.metrics.metric import CounterMetric, Metric
from whet.metrics.pooled import Cell, StartTable
from whet.metrics.run_pair import RunPair
from whet.metrics.spread import Figures
from whet.report.text import shown

ONE_START: Final = "one start has no interval; set load.trials to 2 or more"


def speed_checks(sides: Sides) -> Iterator[Check]:
    """Compare each metric at each load; the whole interval decides."""
    if not sides.loads:
        yield Check(group="speed", name="loads", verdict="unknown", sentence=_no_load(sides))
    lost = {load: check for load in sides.loads if (check := sides.lost_cell(load)) is not None}
    yield from lost.values()
    runs = sides.baseline, sides.candidate
    for metric in metrics_in("changes"):
        before, after = (start_table(run, metric) for run in runs)
        pair = RunPair(reference=before, candidate=after)
        is_paired = isinstance(metric, CounterMetric) and same_traffic(*runs)
        shared = shared_table(*runs, metric) if is_paired else None
        for load in sides.loads:
            if load not in lost and before.starts((sides.variant, load)):
                yield _compared(sides, metric, pair, shared, load)


def _compared(
    sides: Sides, metric: Metric, pair: RunPair, shared: StartTable | None, load: Load
) -> Check:
    cell, is_counter = (sides.variant, load), isinstance(metric, CounterMetric)
    before, after = (_figure(table, cell) for table in (pair.reference, pair.candidate))
    ratio: Estimate | None = None
    verdict: GateVerdict
    if sides.other_machine is not None and not is_counter:
        verdict, sentence = "unknown", sides.other_machine
    elif after is None:
        verdict, sentence, after = _without_figure(sides, metric, load)
    else:
        ratio = pair.ratio(cell) if shared is None else _paired_ratio(shared, cell)
        verdict, sentence = _judged(ratio, metric, sides.max_regression)
        if verdict == "unknown" and not is_counter and ratio is not None and ratio.low is not None:
            sentence += _more_starts(pair, cell, limit_of(metric, sides.max_regression))
    unit = f" {metric.unit}" if metric.unit else ""
    return Check(
        group="counters" if is_counter else "speed",
        name=f"{metric.title}, {load.words}",
        verdict=verdict,
        sentence=f"{before} → {after}{unit}; {sentence}",
        change=ratio,
    )


def _paired_ratio(shared: StartTable, cell: Cell) -> Estimate | None:
    """Candidate ÷ baseline of a counter whose trials sent the same requests.

    Counters follow the requests and not the time, so equal trials are paired.
    """
    before, after = ((f"{side}/{cell[0]}", cell[1]) for side in ("baseline", "candidate"))
    change = shared.difference(before, after, family=0)
    return None if change is None else change.ratio


def _without_figure(sides: Sides, metric: Metric, load: Load) -> tuple[GateVerdict, str, str]:
    """What a candidate without a figure above 0 has: a counter that stood still, or none."""
    cell = sides.candidate.cell(sides.variant, load)
    if cell is not None and cell.figures[metric.name] == 0:
        return "fail", "nothing was counted", "0"
    return "unknown", "not measured", "none"


def _judged(ratio: Estimate | None, metric: Metric, allowed: float) -> tuple[GateVerdict, str]:
    """Fail where the whole interval is beyond the limit, pass where it is within."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "unknown", ONE_START
    limit = limit_of(metric, allowed)
    beyond, within = ratio.low > limit, ratio.high <= limit
    if metric.better == "higher":
        beyond, within = ratio.high < limit, ratio.low >= limit
    change, most = shown(ratio, unit="+%").full, f"{100 * (limit - 1):+g}%"
    if beyond:
        return "fail", f"{change}, beyond {most}"
    return ("pass", change) if within else ("unknown", f"{change}, inconclusive at {most}")


def _more_starts(pair: RunPair, cell: Cell, limit: float) -> str:
    starts = pair.starts_to_decide(cell, limit)
    count = "more than 200" if starts is None else str(starts)
    return f": {count} starts of each would decide if the change stays the same"


def _figure(table: StartTable, cell: Cell) -> str | None:
    """The geometric mean over the starts of a cell."""
    if not table.starts(cell):
        return None
    return number(geometric_mean(table.blocks[cell[1]].figures[cell[0]].values()))


def _no_load(sides: Sides) -> str:
    before, after = (
        loads_words(points) if (points := run.points_of(sides.variant)) else "no load"
        for run in (sides.baseline, sides.candidate)
    )
    return (
        f"the runs share no load of {sides.variant} (baseline: {before}; candidate: {after}); "
        "measure the candidate at the baseline's loads"
    )


def limit_of(metric: Metric, allowed: float) -> float:
    """Return the ratio to the baseline at which a regression by ``allowed`` begins."""
    return 1 - allowed if metric.better == "higher" else 1 + allowed


def start_table(run: Run, metric: Metric) -> StartTable:
    """Return every start of every complete cell, confirmation included.

    More starts narrow the interval, and a cell that was chosen for its figures looks better in
    those alone that it was chosen by.
    """
    return StartTable.of(metric.name, _cells(run, metric))


def shared_table(baseline: Run, candidate: Run, metric: Metric) -> StartTable:
    """Both runs in one table, where a round is the traffic that both sent.

    The names of variants begin with ``baseline`` or ``candidate`` and a slash.
    """
    cells = {
        (f"{side}/{variant}", load): figures
        for side, run in (("baseline", baseline), ("candidate", candidate))
        for (variant, load), figures in _cells(run, metric).items()
    }
    return StartTable.of(metric.name, cells)


def same_traffic(baseline: Run, candidate: Run) -> bool:
    """Return whether all trials that both runs share sent the same requests."""
    both = baseline.workloads.keys() & candidate.workloads.keys()
    return bool(both) and all(
        baseline.workloads[key].sha256 == candidate.workloads[key].sha256 for key in both
    )


def _cells(run: Run, metric: Metric) -> dict[Cell, Figures]:
    figures = {}
    for cell in run.cells:
        place = cell.variant, cell.load
        if cell.status == "complete":
            trials = (*run.trials_of(*place), *run.trials_of(*place, confirmation=True))
            figures[place] = metric.start_figures(trials)
    return {place: each for place, each in figures.items() if each}
