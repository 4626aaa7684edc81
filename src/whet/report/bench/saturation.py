"""A saturation search as a section and in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from whet.core.format import number, percent
from whet.core.records.codec import encode
from whet.core.records.objective import Judgement, SearchResult
from whet.core.redact import one_line
from whet.metrics import METRICS, UNPRICED, summarise
from whet.metrics.objective_text import goodput_text
from whet.report.bench.vllm_json import vllm_result
from whet.report.document import (
    Bullets,
    Cell,
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
from whet.report.text import shown

_FIGURES: Final = [METRICS[name] for name in ("rps_mean", "tps_mean", "ttft_p95_ms", "tpot_p95_ms")]
_NOTE: Final = "Latencies in ms, from the schedule; ? too few requests to be certain."
_WHY: Final = {
    "found": "the bracket is as narrow as requested",
    "budget": "the budget of measurements ran out before the bracket was closed",
    "never met": "there is no lower level to try",
    "never missed": "there is no higher level to try",
}


def search_section(result: SearchResult) -> Section:
    """The answer, a line per measurement by rising level, and what speaks against the answer."""
    nodes: list[Node] = []
    if result.trials:
        nodes += [Paragraph(text=_NOTE, tone="muted"), _table(result)]
    nodes.append(Bullets(items=warnings(result), tone="warn"))
    return Section(id="search", title=answer(result), group="Search", nodes=nodes)


def answer(result: SearchResult) -> str:
    """One sentence: the highest level that met the objective, the bracket, why it stopped there."""
    search, why = result.saturation, _WHY[result.saturation.stopped]
    if result.error is not None:
        why = "stopped on request" if result.interrupted else "ended early: "
        why += "" if result.interrupted else one_line(str(result.error)).rstrip(".")
    if search.highest_met is None and search.lowest_missed is None:
        return f"No load was decided ({why})."
    best = "No load met the objective"
    if search.highest_met is not None:
        best = f"The highest load that met the objective is {_level(result, search.highest_met)}"
    if search.lowest_missed is None:
        return f"{best}, and none was missed ({why})."
    undecided = search.lowest_missed in search.undecided_levels
    word = "stayed undecided, which counts as missed" if undecided else "was missed"
    return f"{best}; {_level(result, search.lowest_missed)} {word} ({why})."


def warnings(result: SearchResult) -> tuple[str, ...]:
    """Return the reasons to doubt the answer: undecided levels."""
    return tuple(
        f"{_level(result, level)} stayed undecided, counted as missed; send more requests"
        for level in result.saturation.undecided_levels
    )


def saturation_json(
    result: SearchResult, percentiles: Sequence[float] = (), *, detailed: bool = True
) -> dict[str, Any]:
    """The search as plain values; each measurement has what a run of its load has."""
    search, objective = result.saturation, result.objective
    pairs = zip(search.measurements, result.trials, strict=True)
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
        "answer": answer(result),
        "warnings": list(warnings(result)),
        "measurements": [
            {
                "level": measured.level,
                "effort": measured.effort,
                "verdict": measured.outcome.verdict,
                "judgements": encode(measured.outcome.judgements),
                "trial": trial.trial,
                **vllm_result(trial, percentiles, bounds=objective.bounds, detailed=detailed),
            }
            for measured, trial in pairs
        ],
    }


def _table(result: SearchResult) -> Table:
    first = result.saturation.measurements[0].outcome
    columns = [
        Column(name="load", unit=result.unit, figure=True),
        Column(name="requests", figure=True, drop=4),
        Column(name="failed", figure=True, drop=1),
        *map(metric_column, _FIGURES),
        *figure_columns(*(item.asked for item in first.judgements)),
        Column(name="answer"),
    ]
    pairs = zip(result.saturation.measurements, result.trials, strict=True)
    rows = []
    for measured, trial in sorted(pairs, key=lambda pair: (pair[0].level, pair[0].effort)):
        summary = summarise([trial], cell=UNPRICED)
        rows.append(
            [
                f"{measured.level:.4g}",
                summary.requests,
                summary.errors or None,
                *(shown(summary.figures[metric.name]).marked for metric in _FIGURES),
                *map(_figure, measured.outcome.judgements),
                verdict_cell(measured.outcome.verdict),
            ]
        )
    return table(_NOTE, columns, rows)


def _figure(judgement: Judgement) -> Cell:
    """The figure with its interval, open where an end is not known."""
    figure, tone = judgement.figure, tone_of(judgement.verdict)
    if figure is None:
        return text_cell(None, tone)
    text = percent if "%" in judgement.asked else number
    low, high = ("" if end is None else text(end) for end in (figure.low, figure.high))
    interval = f" ({low} … {high})" if low or high else ""
    return text_cell(f"{text(figure.value)}{'' if figure.enough else ' ?'}{interval}", tone)


def _level(result: SearchResult, level: float) -> str:
    return f"{level:.4g} {result.unit}"
