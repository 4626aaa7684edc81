"""A saturation search at a terminal, in a file, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.core.errors import MeasurementError
from whet.core.format import number, percent, plural
from whet.core.records import CellSummary, TrialRecord, encode
from whet.core.records.objective import (
    Bound,
    Constraint,
    Judgement,
    Knee,
    LoadMeasurement,
    Saturation,
)
from whet.core.redact import one_line
from whet.core.store import write_atomic
from whet.core.units import ns_to_s
from whet.metrics import METRICS, CellContext, request_figures, summarise
from whet.metrics.drift import drift
from whet.metrics.objective import goodput_text
from whet.report.bench.vllm_json import Selection, vllm_result
from whet.report.charts.palette import looks
from whet.report.charts.plots import Axis, Line, Point, plot
from whet.report.charts.svg import svg_file
from whet.report.document import Chart
from whet.report.text import DASH, shown

_STYLE: Final = {"met": "green", "missed": "red", "undecided": "yellow"}
_EACH: Final = ("ttfts", "latencies", "start_times", "output_lens", "errors")  # one a request
_FIGURES: Final = {
    "request_throughput": "rps_mean",
    "output_throughput": "tps_mean",
    "p95_ttft_ms": "ttft_p95_ms",
    "p95_tpot_ms": "tpot_p95_ms",
}
"""The metrics of each measurement, by their keys in JSON, which are those of vLLM."""
_BUILT_UP: Final = 2  # times as long as a request takes: in flight is what it will be (Little)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchView:
    """What a report reads of a search.

    ``axis`` is rate or concurrency. ``trials`` hold the trial behind each of
    ``saturation.measurements``, in the same order. ``bounds`` and ``share`` are set where single
    requests were asked, ``constraints`` otherwise. ``failure`` is why the search ended before its
    time. Raises ``MeasurementError`` where trials and measurements are not as many.
    """

    axis: str
    saturation: Saturation
    trials: tuple[TrialRecord, ...]
    constraints: tuple[Constraint, ...] = ()
    bounds: tuple[Bound, ...] | None = None
    share: float = 0.9
    knee: Knee | None = None
    interrupted: bool = False
    failure: str | None = None

    def __post_init__(self) -> None:
        trials, wanted = len(self.trials), len(self.saturation.measurements)
        if trials != wanted:
            raise MeasurementError(
                f"the search holds {plural(wanted, 'measurement')} and {plural(trials, 'trial')}; "
                "give the judged trials, one a measurement"
            )

    @property
    def unit(self) -> str:
        """The unit of a level."""
        return "requests/s" if self.axis == "rate" else "requests in flight"

    @property
    def limits(self) -> tuple[float, ...]:
        """The bound of each judgement, in the unit of its figure: ms, or a share."""
        if self.bounds is not None:
            return (self.share,)
        return tuple(
            item.limit / 100 if item.statistic is None else item.limit for item in self.constraints
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    measured: LoadMeasurement
    trial: TrialRecord
    summary: CellSummary


def print_saturation(view: SearchView, console: Console) -> None:
    """A line a measurement by rising level, the answer, and what speaks against it."""
    if view.trials:
        console.print(_table(view))
    console.print(Text(answer(view), style="bold"))
    if view.knee is not None:
        at, rate = _level(view, view.knee.level), number(view.knee.throughput)
        console.print(Text(f"Throughput bends at {at}, where {rate} requests/s completed."))
    for sentence in warnings(view):
        console.print(Text(f"warning: {sentence}", style="yellow"))


def answer(view: SearchView) -> str:
    """One sentence: the highest level that met the objective, the bracket, why it stopped there."""
    search, missed = view.saturation, _level(view, view.saturation.lowest_missed)
    if search.highest_met is None and search.lowest_missed is None:
        return f"No load was decided{_why(view)}."
    if search.highest_met is None:
        start = "No load is known to meet the objective"
        if search.stopped == "never met":
            start, missed = "No load met the objective", f"{missed}, the lowest that was allowed,"
        return f"{start}: {missed} {_missed_word(search)}{_why(view)}."
    start = f"The highest load that met the objective is {_level(view, search.highest_met)}"
    if search.lowest_missed is None:
        return f"{start}, and none was missed{_why(view)}."
    more = percent(search.lowest_missed / search.highest_met - 1)
    return f"{start}; {missed}, {more} more, {_missed_word(search)}{_why(view)}."


def warnings(view: SearchView) -> tuple[str, ...]:
    """Return the reasons to doubt the answer."""
    search, sentences = view.saturation, []
    if search.met_above_missed:
        sentences.append(
            f"{_levels(view, search.met_above_missed)} met the objective although "
            f"{_level(view, search.lowest_missed)} {_missed_word(search)}: the answer does not "
            "fall with the load, so do not trust the bracket; measure again with more requests"
        )
    if search.undecided_levels:
        wanted = _samples_wanted(view)
        sentences.append(
            f"{_levels(view, search.undecided_levels)} stayed undecided, counted as missed"
            + (f"; about {wanted:,} samples would decide it" if wanted else "; send more requests")
        )
    if search.highest_met is not None:
        sentences += _doubts(view, search.highest_met)
    return tuple(sentences)


def saturation_json(view: SearchView) -> dict[str, Any]:
    """The search as plain values under vLLM's names; figures in ms, lists in s, missing is null."""
    search = view.saturation
    return {
        "axis": view.axis,
        "unit": view.unit,
        "objective": [encode(item) for item in view.constraints],
        "goodput": None if view.bounds is None else goodput_text(view.bounds),
        "share": None if view.bounds is None else view.share,
        "highest_met": search.highest_met,
        "lowest_missed": search.lowest_missed,
        "stopped": search.stopped,
        "interrupted": view.interrupted,
        "failure": view.failure,
        "undecided_levels": list(search.undecided_levels),
        "met_above_missed": list(search.met_above_missed),
        "knee": _encoded(view.knee),
        "answer": answer(view),
        "warnings": list(warnings(view)),
        "measurements": [_measurement_json(row) for row in _rows(view)],
    }


def write_saturation_chart(view: SearchView, path: Path) -> bool:
    """Completed requests/s over the load, as SVG; False where nothing was measured.

    A load's last measurement is drawn; one that did not meet the objective is a cross.
    """
    rows = {row.measured.level: row for row in _rows(view)}
    points = [
        Point(
            series=row.measured.outcome.verdict,
            x=level,
            y=rate.value,
            low=rate.low,
            high=rate.high,
            label=f"{_level(view, level)}: {number(rate.value)} requests/s, "
            f"{row.measured.outcome.verdict}",
            order=level,
            counts=row.measured.outcome.verdict == "met",
        )
        for level, row in sorted(rows.items())
        if (rate := row.summary.rps_mean) is not None
    ]
    if not points:
        return False
    best = view.saturation.highest_met
    lines = [] if best is None else [Line(x=best, label="highest met")]
    chart = Chart(
        name="saturation",
        title="Completed requests by load",
        description="Cross: the objective was not met.",
        picture=plot(
            points,
            looks(["met", "missed", "undecided"]),
            x=Axis(title=view.unit, zero=True, form="~r"),
            y=Axis(title="requests/s completed", zero=True, form="~r"),
            lines=lines,
            joined=False,
        ),
    )
    write_atomic(path, svg_file(chart))
    return True


def _rows(view: SearchView) -> list[_Row]:
    """In the order of measuring."""
    cell = CellContext(price_usd_per_hour=0.0, memory_kind="device")
    pairs = zip(view.saturation.measurements, view.trials, strict=True)
    return [
        _Row(measured=measured, trial=trial, summary=summarise([trial], cell=cell))
        for measured, trial in pairs
    ]


def _table(view: SearchView) -> Table:
    targets = [item.asked for item in view.saturation.measurements[0].outcome.judgements]
    table = Table(title="latencies in ms, from the schedule; ? too few requests to be certain")
    sent = f"{view.unit} sent" if view.axis == "rate" else view.unit
    shown_names = [METRICS[name].heading for name in _FIGURES.values()]
    for name in (sent, "requests", "failed", *shown_names):
        table.add_column(name, justify="right")
    for text in targets:
        table.add_column(Text(one_line(text)), justify="right")
    table.add_column("answer")
    for row in sorted(_rows(view), key=lambda row: (row.measured.level, row.measured.effort)):
        summary, verdict = row.summary, row.measured.outcome.verdict
        table.add_row(
            _plain(row.measured.level),
            str(summary.requests),
            str(summary.errors or DASH),
            *(shown(summary.figures[name]).marked for name in _FIGURES.values()),
            *(
                _figure(item, share=_is_share(view, place))
                for place, item in enumerate(row.measured.outcome.judgements)
            ),
            Text(verdict, style=_STYLE[verdict]),
        )
    return table


def _figure(judgement: Judgement, *, share: bool) -> Text:
    """The figure with its interval, open where an end is not known."""
    figure, style = judgement.figure, _STYLE[judgement.verdict]
    if figure is None:
        return Text(DASH, style=style)
    text = percent if share else number
    low = "" if figure.low is None else text(figure.low)
    high = "" if figure.high is None else text(figure.high)
    interval = f" ({low} … {high})" if low or high else ""
    return Text(f"{text(figure.value)}{'' if figure.certified else ' ?'}{interval}", style=style)


def _measurement_json(row: _Row) -> dict[str, Any]:
    summary, raw = row.summary, vllm_result(row.trial, Selection(metrics=()))
    return {
        "level": row.measured.level,
        "effort": row.measured.effort,
        "verdict": row.measured.outcome.verdict,
        "judgements": [encode(item) for item in row.measured.outcome.judgements],
        "trial": row.trial.trial,
        "completed": summary.requests - summary.errors,
        "failed": summary.errors,
        **{key: _encoded(summary.figures[name]) for key, name in _FIGURES.items()},
    } | {name: raw[name] for name in _EACH}


def _encoded(record: object | None) -> Any:
    return None if record is None else encode(record)


def _missed_word(search: Saturation) -> str:
    undecided = search.lowest_missed in search.undecided_levels
    return "stayed undecided, which counts as missed" if undecided else "was missed"


def _why(view: SearchView) -> str:
    if view.failure is not None:
        return f" (ended early: {one_line(view.failure).rstrip('.')})"
    if view.interrupted:
        return " (stopped on request)"
    return {
        "found": " (the bracket is as narrow as requested)",
        "budget": " (the budget of measurements ran out before the bracket was closed)",
        "never met": " (there is no lower level to try)",
        "never missed": " (the highest that was allowed; raise the limit to go on)",
    }[view.saturation.stopped]


def _samples_wanted(view: SearchView) -> int | None:
    """Return the most samples an undecided judgement needs; None where one does not state it."""
    last = {item.level: item.outcome.judgements for item in view.saturation.measurements}
    judgements = [item for level in view.saturation.undecided_levels for item in last[level]]
    wanted = [item.samples_wanted for item in judgements if item.verdict == "undecided"]
    known = [count for count in wanted if count is not None]
    return max(known) if known and len(known) == len(wanted) else None


def _doubts(view: SearchView, level: float) -> list[str]:
    """Whether the measurement that carries the answer saw the load in full."""
    pairs = zip(view.saturation.measurements, view.trials, strict=True)
    trial = next(at for of, at in pairs if of.level == level and of.outcome.verdict == "met")
    ended, sentences = _ended(trial), []
    if trial.loop != "open" or not ended:
        return []
    sent_s = ns_to_s(max(event.scheduled_ns for event in trial.requests))
    e2e_s = ns_to_s(round(float(np.median([e2e_ns for _, _, e2e_ns in ended]))))
    if sent_s < _BUILT_UP * e2e_s:
        sentences.append(
            f"{_level(view, level)} was sent for {sent_s:.3g} s and a request takes {e2e_s:.3g} s: "
            "the load had not built up; send more requests"
        )
    moved = drift([at for at, _, _ in ended], [ttft_ns for _, ttft_ns, _ in ended])
    if moved.verdict == "drifting" and moved.change is not None and moved.change.value > 0:
        sentences.append(
            f"TTFT still rose by {percent(moved.change.value)} of its median while "
            f"{_level(view, level)} was measured: a longer load may miss; send more requests"
        )
    return sentences


def _ended(trial: TrialRecord) -> list[tuple[int, int, int]]:
    """(end, TTFT, E2E) in ns of each completed request, in the order of their end."""
    return sorted(
        (event.ended_ns, figures.ttft_ns, figures.e2e_ns)
        for event in trial.requests
        if (figures := request_figures(event)) is not None
    )


def _is_share(view: SearchView, place: int) -> bool:
    return view.bounds is not None or view.constraints[place].statistic is None


def _level(view: SearchView, level: float | None) -> str:
    return f"{DASH if level is None else _plain(level)} {view.unit}"


def _levels(view: SearchView, levels: Sequence[float]) -> str:
    return f"{', '.join(map(_plain, levels))} {view.unit}"


def _plain(level: float) -> str:
    return f"{level:.4g}" if level < 10_000 else f"{level:,.0f}"
