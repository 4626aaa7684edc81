"""A measured load at a terminal: what came back, latencies with intervals, the objective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.core.records import Estimate, TrialRecord
from whet.core.records.objective import ObjectiveVerdict
from whet.core.redact import one_line
from whet.core.units import NS_PER_MS
from whet.metrics import METRICS, CellContext, metrics_in, request_figures, summarise
from whet.metrics.drift import drifts_of
from whet.metrics.estimates import Floats, quantile_estimate
from whet.metrics.metric import CounterMetric, RateMetric
from whet.metrics.quantiles import clustered_quantile
from whet.metrics.requests import RequestFigures
from whet.metrics.usable import usable_trials
from whet.metrics.window import first_wave, steady_requests, whole_run
from whet.report.bench.vllm_json import Selection

_TITLES: Final = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
_STYLE: Final = {"met": "green", "missed": "red", "undecided": "yellow"}


def print_load(trials: Sequence[TrialRecord], selection: Selection, console: Console) -> None:
    """One table over all usable trials; failures by their word below it."""
    good = usable_trials(trials)
    events = [event for trial in trials for event in trial.requests]
    failures = Counter(event.error for event in events if event.error is not None)
    console.print(f"\n{len(events) - failures.total()} of {len(events)} requests answered")
    for word, count in failures.most_common():
        detail = next(event.detail for event in events if event.error == word)
        console.print(Text(f"  {word} × {count}: {one_line(detail or '')}", style="red"))
    if not good:
        return
    _warn_of_drift(good, console)
    _print_rates(good, console)
    steady = (event for trial in good for event in steady_requests(trial))
    figures = [item for event in steady if (item := request_figures(event)) is not None]
    console.print(_latencies(figures, selection))


def _warn_of_drift(trials: Sequence[TrialRecord], console: Console) -> None:
    for trial in trials:
        for name, item in drifts_of(trial).items():
            if item.verdict == "drifting" and item.change is not None:
                line = f"run {trial.trial + 1}: {name} drifted by {item.change.value:+.0%}"
                console.print(Text(f"warning: {line} over the run", style="yellow"))


def print_verdict(verdict: ObjectiveVerdict, console: Console) -> None:
    """Each constraint with its figure, and why it is not decided where it is not."""
    console.print(Text(f"objective {verdict.verdict}", style=_STYLE[verdict.verdict]))
    for item in verdict.judgements:
        figure = "" if item.figure is None else f", {_number(item.figure)}"
        why = "" if item.reason is None else f" ({item.reason})"
        console.print(Text(f"  {item.verdict}: {item.asked}{figure}{why}", _STYLE[item.verdict]))


def _print_rates(good: Sequence[TrialRecord], console: Console) -> None:
    """Rates over whole runs, as ``vllm bench serve`` counts them; hit rate and acceptance."""
    cell = CellContext(price_usd_per_hour=0.0, memory_kind="device")
    summary = summarise(good, cell=cell, window=whole_run)
    for metric in METRICS.values():
        estimate = summary.estimate(metric.name)
        if isinstance(metric, RateMetric) and estimate is not None:
            line = f"{metric.title}: {_number(estimate)} {metric.unit}"
            console.print(line, highlight=False)
    if (burst := summary.estimate("burst_ttft_p95_ms")) is not None:
        median = summary.estimate("burst_ttft_p50_ms")
        waves = sum(len(first_wave(trial)) for trial in good)
        console.print(
            f"burst TTFT: p50 {_point(median)} ms, p95 {_point(burst)} ms over the {waves} "
            "requests that began on an idle server; left out below",
            highlight=False,
        )
    for metric in metrics_in("cells"):
        if isinstance(metric, CounterMetric) and summary.figures[metric.name] is not None:
            console.print(f"{metric.title}: {summary.figures[metric.name]:.3g}", highlight=False)


def _latencies(figures: Sequence[RequestFigures], selection: Selection) -> Table:
    table = Table(title="ms, from the schedule; ? too few requests to be certain", box=None)
    table.add_column("")
    table.add_column("mean", justify="right")
    table.add_column("median [95 % interval]", justify="right")
    for p in selection.percentiles:
        table.add_column(f"p{p:g}", justify="right")
    for name in [name for name in _TITLES if name in selection.metrics]:
        groups = _values_ms(figures, name)
        if not groups:
            continue
        cells = [_TITLES[name], f"{np.concatenate(groups).mean():.2f}"]
        cells.append(_number(_quantile(groups, name, 0.5)))
        for p in selection.percentiles:
            cells.append(_point(_quantile(groups, name, p / 100)))
        table.add_row(*cells)
    return table


def _values_ms(figures: Sequence[RequestFigures], name: str) -> list[Floats]:
    """Return one array per request that has values: all its gaps, or its one value."""
    values: dict[str, Callable[[RequestFigures], Sequence[float | None]]] = {
        "ttft": lambda item: [item.ttft_ns],
        "tpot": lambda item: [] if item.tpot_ns is None else [item.tpot_ns],
        "itl": lambda item: item.itl_ns,
        "e2el": lambda item: [item.e2e_ns],
    }
    arrays = [np.asarray(values[name](item), dtype=float) / NS_PER_MS for item in figures]
    return [array for array in arrays if len(array)]


def _quantile(groups: Sequence[Floats], name: str, p: float) -> Estimate | None:
    if name == "itl":
        return clustered_quantile(groups, p)
    return quantile_estimate([float(value) for (value,) in groups], p)


def _number(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"


def _point(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return f"{estimate.value:.2f}" if estimate.certified else f"{estimate.value:.2f}?"
