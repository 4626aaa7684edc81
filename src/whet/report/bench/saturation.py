"""A saturation search as a section, in a file, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from whet.core.format import number, percent
from whet.core.records.codec import encode
from whet.core.records.load import TrialRecord
from whet.core.records.objective import Judgement, LoadMeasurement, Saturation, SearchResult
from whet.core.records.summary import CellSummary
from whet.core.redact import one_line
from whet.core.units import ns_to_s
from whet.metrics import METRICS, UNPRICED, request_figures, summarise
from whet.metrics.drift import drift
from whet.metrics.objective_text import goodput_text
from whet.report.bench.vllm_json import Selection, vllm_result
from whet.report.charts.palette import looks
from whet.report.charts.plots import Axis, Line, Point, plot
from whet.report.document import (
    Bullets,
    Cell,
    Chart,
    Column,
    Node,
    Paragraph,
    Section,
    Table,
    figure_columns,
    metric_column,
    table,
    text_cell,
    tone_of,
    verdict_cell,
)
from whet.report.text import DASH, shown

_EACH: Final = ("ttfts", "latencies", "start_times", "output_lens", "errors")  # one a request
_FIGURES: Final = {
    "request_throughput": "rps_mean",
    "output_throughput": "tps_mean",
    "p95_ttft_ms": "ttft_p95_ms",
    "p95_tpot_ms": "tpot_p95_ms",
}
"""The metrics of each measurement, by their keys in JSON, which are those of vLLM."""
_BUILT_UP: Final = 2  # times as long as a request takes: in flight is what it will be (Little)
_NOTE: Final = "Latencies in ms, from the schedule; ? too few requests to be certain."


_Line = tuple[LoadMeasurement, TrialRecord, CellSummary]


def search_section(result: SearchResult) -> Section:
    """The answer, a line a measurement by rising level, and what speaks against the answer."""
    nodes: list[Node] = []
    if result.trials:
        nodes += [Paragraph(text=_NOTE, tone="muted"), _table(result)]
    if result.knee is not None:
        at, rate = _level(result, result.knee.level), number(result.knee.throughput)
        nodes.append(
            Paragraph(text=f"Throughput bends at {at}, where {rate} requests/s completed.")
        )
    nodes.append(Bullets(items=warnings(result), tone="warn"))
    return Section(id="search", title=answer(result), group="Search", nodes=nodes)


def answer(result: SearchResult) -> str:
    """One sentence: the highest level that met the objective, the bracket, why it stopped there."""
    search, missed = result.saturation, _level(result, result.saturation.lowest_missed)
    if search.highest_met is None and search.lowest_missed is None:
        return f"No load was decided{_why(result)}."
    if search.highest_met is None:
        start = "No load is known to meet the objective"
        if search.stopped == "never met":
            start, missed = "No load met the objective", f"{missed}, the lowest that was allowed,"
        return f"{start}: {missed} {_missed_word(search)}{_why(result)}."
    start = f"The highest load that met the objective is {_level(result, search.highest_met)}"
    if search.lowest_missed is None:
        return f"{start}, and none was missed{_why(result)}."
    more = percent(search.lowest_missed / search.highest_met - 1)
    return f"{start}; {missed}, {more} more, {_missed_word(search)}{_why(result)}."


def warnings(result: SearchResult) -> tuple[str, ...]:
    """Return the reasons to doubt the answer."""
    search, sentences = result.saturation, []
    if search.met_above_missed:
        sentences.append(
            f"{_levels(result, search.met_above_missed)} met the objective although "
            f"{_level(result, search.lowest_missed)} {_missed_word(search)}: the answer does not "
            "fall with the load, so do not trust the bracket; measure again with more requests"
        )
    if search.undecided_levels:
        wanted = _samples_wanted(result)
        sentences.append(
            f"{_levels(result, search.undecided_levels)} stayed undecided, counted as missed"
            + (f"; about {wanted:,} samples would decide it" if wanted else "; send more requests")
        )
    if search.highest_met is not None:
        sentences += _doubts(result, search.highest_met)
    return tuple(sentences)


def saturation_json(result: SearchResult) -> dict[str, Any]:
    """The search as plain values under vLLM's names; figures in ms, lists in s, missing is null."""
    search, objective = result.saturation, result.objective
    return {
        "axis": result.axis,
        "unit": result.unit,
        "objective": encode(objective.constraints),
        "goodput": None if objective.bounds is None else goodput_text(objective.bounds),
        "share": None if objective.bounds is None else objective.share,
        "highest_met": search.highest_met,
        "lowest_missed": search.lowest_missed,
        "stopped": search.stopped,
        "interrupted": result.interrupted,
        "failure": None if result.error is None or result.interrupted else str(result.error),
        "undecided_levels": list(search.undecided_levels),
        "met_above_missed": list(search.met_above_missed),
        "knee": encode(result.knee),
        "answer": answer(result),
        "warnings": list(warnings(result)),
        "measurements": [_measurement_json(*line) for line in _lines(result)],
    }


def search_chart(result: SearchResult) -> Chart | None:
    """Completed requests/s over the load; None where nothing was measured.

    A load's last measurement is drawn; one that did not meet the objective is a cross.
    """
    last = {measured.level: (measured, summary) for measured, _, summary in _lines(result)}
    points = [
        Point(
            series=measured.outcome.verdict,
            x=level,
            y=rate.value,
            low=rate.low,
            high=rate.high,
            label=f"{_level(result, level)}: {number(rate.value)} requests/s, "
            f"{measured.outcome.verdict}",
            order=level,
            counts=measured.outcome.verdict == "met",
        )
        for level, (measured, summary) in sorted(last.items())
        if (rate := summary.rps_mean) is not None
    ]
    if not points:
        return None
    best = result.saturation.highest_met
    return Chart(
        name="saturation",
        title="Completed requests by load",
        description="Cross: the objective was not met.",
        picture=plot(
            points,
            looks(["met", "missed", "undecided"]),
            x=Axis(title=result.unit, zero=True, form="~r"),
            y=Axis(title="requests/s completed", zero=True, form="~r"),
            lines=[] if best is None else [Line(x=best, label="highest met")],
            joined=False,
        ),
    )


def _lines(result: SearchResult) -> list[_Line]:
    """Each measurement with its trial and the trial's figures, in the order of measuring."""
    return [
        (measured, trial, summarise([trial], cell=UNPRICED))
        for measured, trial in zip(result.saturation.measurements, result.trials, strict=True)
    ]


def _table(result: SearchResult) -> Table:
    sent = f"{result.unit} sent" if result.axis == "rate" else result.unit
    targets = [item.asked for item in result.saturation.measurements[0].outcome.judgements]
    columns = [
        Column(name="load", unit=sent, figure=True),
        Column(name="requests", figure=True, drop=4),
        Column(name="failed", figure=True, drop=1),
        *(metric_column(METRICS[name]) for name in _FIGURES.values()),
        *figure_columns(*targets),
        Column(name="answer"),
    ]
    lines = sorted(_lines(result), key=lambda line: (line[0].level, line[0].effort))
    return table(_NOTE, columns, (_row(result, *line) for line in lines))


def _row(
    result: SearchResult, measured: LoadMeasurement, _: TrialRecord, summary: CellSummary
) -> list[object]:
    outcome = measured.outcome
    return [
        _plain(measured.level),
        summary.requests,
        summary.errors or None,
        *(shown(summary.figures[name]).marked for name in _FIGURES.values()),
        *(_figure(item, share=_is_share(result, at)) for at, item in enumerate(outcome.judgements)),
        verdict_cell(outcome.verdict),
    ]


def _figure(judgement: Judgement, *, share: bool) -> Cell:
    """The figure with its interval, open where an end is not known."""
    figure, tone = judgement.figure, tone_of(judgement.verdict)
    if figure is None:
        return text_cell(None, tone)
    text = percent if share else number
    low = "" if figure.low is None else text(figure.low)
    high = "" if figure.high is None else text(figure.high)
    interval = f" ({low} … {high})" if low or high else ""
    return text_cell(f"{text(figure.value)}{'' if figure.certified else ' ?'}{interval}", tone)


def _measurement_json(
    measured: LoadMeasurement, trial: TrialRecord, summary: CellSummary
) -> dict[str, Any]:
    raw = vllm_result(trial, Selection(metrics=()))
    return {
        "level": measured.level,
        "effort": measured.effort,
        "verdict": measured.outcome.verdict,
        "judgements": encode(measured.outcome.judgements),
        "trial": trial.trial,
        "completed": summary.requests - summary.errors,
        "failed": summary.errors,
        **{key: encode(summary.figures[name]) for key, name in _FIGURES.items()},
    } | {name: raw[name] for name in _EACH}


def _missed_word(search: Saturation) -> str:
    undecided = search.lowest_missed in search.undecided_levels
    return "stayed undecided, which counts as missed" if undecided else "was missed"


def _why(result: SearchResult) -> str:
    if result.interrupted:
        return " (stopped on request)"
    if result.error is not None:
        return f" (ended early: {one_line(str(result.error)).rstrip('.')})"
    return {
        "found": " (the bracket is as narrow as requested)",
        "budget": " (the budget of measurements ran out before the bracket was closed)",
        "never met": " (there is no lower level to try)",
        "never missed": " (the highest that was allowed; raise the limit to go on)",
    }[result.saturation.stopped]


def _samples_wanted(result: SearchResult) -> int | None:
    """Return the most samples an undecided judgement needs; None where one does not state it."""
    last = {item.level: item.outcome.judgements for item in result.saturation.measurements}
    judgements = [item for level in result.saturation.undecided_levels for item in last[level]]
    wanted = [item.samples_wanted for item in judgements if item.verdict == "undecided"]
    known = [count for count in wanted if count is not None]
    return max(known) if known and len(known) == len(wanted) else None


def _doubts(result: SearchResult, level: float) -> list[str]:
    """Whether the measurement that carries the answer saw the load in full."""
    pairs = zip(result.saturation.measurements, result.trials, strict=True)
    trial = next(at for of, at in pairs if of.level == level and of.outcome.verdict == "met")
    ended, sentences = _ended(trial), []
    if trial.loop != "open" or not ended:
        return []
    sent_s = ns_to_s(max(event.scheduled_ns for event in trial.requests))
    e2e_s = ns_to_s(round(float(np.median([e2e_ns for _, _, e2e_ns in ended]))))
    if sent_s < _BUILT_UP * e2e_s:
        sentences.append(
            f"{_level(result, level)} was sent for {sent_s:.3g} s and a request takes "
            f"{e2e_s:.3g} s: the load had not built up; send more requests"
        )
    moved = drift([at for at, _, _ in ended], [ttft_ns for _, ttft_ns, _ in ended])
    if moved.verdict == "drifting" and moved.change is not None and moved.change.value > 0:
        sentences.append(
            f"TTFT still rose by {percent(moved.change.value)} of its median while "
            f"{_level(result, level)} was measured: a longer load may miss; send more requests"
        )
    return sentences


def _ended(trial: TrialRecord) -> list[tuple[int, int, int]]:
    """(end, TTFT, E2E) in ns of each completed request, in the order of their end."""
    return sorted(
        (event.ended_ns, figures.ttft_ns, figures.e2e_ns)
        for event in trial.requests
        if (figures := request_figures(event)) is not None
    )


def _is_share(result: SearchResult, place: int) -> bool:
    return (
        result.objective.bounds is not None or result.objective.constraints[place].statistic is None
    )


def _level(result: SearchResult, level: float | None) -> str:
    return f"{DASH if level is None else _plain(level)} {result.unit}"


def _levels(result: SearchResult, levels: Sequence[float]) -> str:
    return f"{', '.join(map(_plain, levels))} {result.unit}"


def _plain(level: float) -> str:
    return f"{level:.4g}" if level < 10_000 else f"{level:,.0f}"
