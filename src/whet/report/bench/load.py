"""A measured load: what came back, rates, latencies with intervals, the objective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from whet.core.records.load import TrialRecord
from whet.core.records.objective import Bound, Constraint
from whet.core.records.summary import Estimate
from whet.core.redact import one_line
from whet.core.units import NS_PER_MS
from whet.metrics import METRICS, UNPRICED, metrics_in, summarise
from whet.metrics.estimates import Floats
from whet.metrics.metric import CounterMetric, RateMetric
from whet.metrics.objective import attainment, judge
from whet.metrics.objective_text import goodput_text
from whet.metrics.request_groups import RequestGroups, request_groups
from whet.metrics.requests import request_figures
from whet.metrics.usable import usable_trials
from whet.metrics.window import first_wave, whole_run
from whet.report.bench.vllm_json import VALUES
from whet.report.document import (
    Fact,
    Facts,
    Node,
    Paragraph,
    Section,
    Table,
    figure_columns,
    table,
    tone_of,
)
from whet.report.text import DASH, Shown

if TYPE_CHECKING:
    import pandas as pd

_TITLES: Final = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
_NOTE: Final = "Latencies in ms, from the schedule; ? too few requests to be certain."


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Mean and percentiles in ms over the requests that count; None where none has a value."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, groups: RequestGroups, name: str) -> Latency:
        """Return one of the latencies that the table has."""
        values = _values_ms(groups, name)
        quantiles = {f"p{p}": groups.quantile(values, p / 100) for p in (50, 90, 95, 99)}
        figures = {name: each.value for name, each in quantiles.items() if each is not None}
        return cls(mean=float(np.concatenate(values).mean()), **figures) if figures else cls()


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadFigures:
    """The figures that the section shows: latencies from the schedule, rates over whole runs.

    ``trials`` has every request.
    """

    tokens_per_s: float | None
    requests_per_s: float | None
    ttft: Latency
    tpot: Latency
    itl: Latency
    e2e: Latency
    trials: Sequence[TrialRecord]

    @classmethod
    def of(cls, trials: Sequence[TrialRecord]) -> LoadFigures:
        """Return the figures of the trials of one load; at least one has to be usable."""
        good = usable_trials(trials)
        groups, summary = request_groups(good), summarise(good, cell=UNPRICED, window=whole_run)
        rates = (summary.tps_mean, summary.rps_mean)
        tokens_per_s, requests_per_s = (None if rate is None else rate.value for rate in rates)
        return cls(
            tokens_per_s=tokens_per_s,
            requests_per_s=requests_per_s,
            ttft=Latency.of(groups, "ttft"),
            tpot=Latency.of(groups, "tpot"),
            itl=Latency.of(groups, "itl"),
            e2e=Latency.of(groups, "e2el"),
            trials=trials,
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row with the load; latencies are in ms, such as ``ttft_p95``."""
        import pandas as pd

        first = self.trials[0]
        load = {"concurrency": first.load.slots or None, "request_rate": first.health.asked_rps}
        figures = asdict(replace(self, trials=()))
        return pd.json_normalize(load | figures, sep="_").drop(columns="trials")


def load_section(
    trials: Sequence[TrialRecord],
    percentiles: Sequence[float],
    *,
    expected_hit_rate: float | None = None,
    bounds: Sequence[Bound] | None = None,
    constraints: Sequence[Constraint] | None = None,
) -> Section:
    """Failures by their word, rates, latencies and objectives over all usable trials."""
    good = usable_trials(trials)
    events = [event for trial in trials for event in trial.requests]
    failures = Counter(event.error for event in events if event.error is not None)
    details = {event.error: one_line(event.detail or "") for event in reversed(events)}
    nodes: list[Node] = [
        Paragraph(text=f"{word} × {count}: {details[word]}", tone="bad")
        for word, count in failures.most_common()
    ]
    if expected_hit_rate is not None:
        nodes.append(Paragraph(text=f"prefix hit rate to expect: {expected_hit_rate:.3g}"))
    groups = request_groups(good)
    if good:
        nodes += [
            Facts(items=list(_rates(good))),
            Paragraph(text=_NOTE, tone="muted"),
            _latencies(groups, percentiles),
        ]
    if groups.problem is not None:
        nodes.append(Paragraph(text=groups.problem, tone="warn"))
    nodes += _objectives(groups, bounds, constraints)
    title = f"{len(events) - failures.total()} of {len(events)} requests answered"
    return Section(id="load", title=title, group="Load", nodes=nodes)


def _objectives(
    groups: RequestGroups, bounds: Sequence[Bound] | None, constraints: Sequence[Constraint] | None
) -> Iterator[Node]:
    """The share within the bounds; each constraint, and why it is not decided where it is not."""
    if bounds is not None and (share := attainment(groups, bounds)) is not None:
        ends = "" if share.low is None else f" [{share.low:.1%}, {share.high:.1%}]"
        yield Paragraph(text=f"{share.value:.1%}{ends} of requests within {goodput_text(bounds)}")
    if constraints is None or not groups.events:
        return
    verdict = judge(groups, constraints)
    yield Paragraph(text=f"objective {verdict.verdict}", tone=tone_of(verdict.verdict))
    for item in verdict.judgements:
        figure = "" if item.figure is None else f", {_shown(item.figure).full}"
        why = "" if item.reason is None else f" ({item.reason})"
        text = f"  {item.verdict}: {item.asked}{figure}{why}"
        yield Paragraph(text=text, tone=tone_of(item.verdict))


def _rates(good: Sequence[TrialRecord]) -> Iterator[Fact]:
    """Rates over whole runs, as ``vllm bench serve`` counts them; hit rate and acceptance."""
    summary = summarise(good, cell=UNPRICED, window=whole_run)
    for metric in METRICS.values():
        estimate = summary.estimate(metric.name)
        if isinstance(metric, RateMetric) and estimate is not None:
            yield Fact(name=metric.label, value=_shown(estimate))
    if (burst := summary.estimate("burst_ttft_p95_ms")) is not None:
        waves = sum(len(first_wave(trial)) for trial in good)
        p50, p95 = _point(summary.estimate("burst_ttft_p50_ms")), _point(burst)
        note = f"over the {waves} requests that began on an idle server; left out below"
        yield Fact(name="burst TTFT", value=Shown(text=f"p50 {p50} ms, p95 {p95} ms"), note=note)
    for metric in metrics_in("cells"):
        value = summary.figures[metric.name]
        if isinstance(metric, CounterMetric) and value is not None:
            yield Fact(name=metric.title, value=Shown(text=f"{value:.3g}"))


def _latencies(groups: RequestGroups, percentiles: Sequence[float]) -> Table:
    rows = []
    for name, title in _TITLES.items():
        values = _values_ms(groups, name)
        if any(map(len, values)):
            rows.append(
                [
                    title,
                    f"{np.concatenate(values).mean():.2f}",
                    _shown(groups.quantile(values, 0.5)).full,
                    *(_point(groups.quantile(values, p / 100)) for p in percentiles),
                ]
            )
    heads = figure_columns("mean", "median (95% interval)", *(f"p{p:g}" for p in percentiles))
    return table(_NOTE, ["", *heads], rows)


def _values_ms(groups: RequestGroups, name: str) -> list[Floats]:
    """Return one array per request: all its gaps, its one value, or nothing."""
    figures = map(request_figures, groups.events)
    values = ([] if item is None else VALUES[name](item) for item in figures)
    return [
        np.array([ns for ns in each if ns is not None], dtype=float) / NS_PER_MS for each in values
    ]


def _shown(estimate: Estimate | None) -> Shown:
    """Four digits, with the interval."""
    if estimate is None:
        return Shown(text=DASH)
    if estimate.low is None or estimate.high is None:
        return Shown(text=f"{estimate.value:.4g}")
    return Shown(text=f"{estimate.value:.4g}", interval=f"{estimate.low:.4g} … {estimate.high:.4g}")


def _point(estimate: Estimate | None) -> str:
    if estimate is None:
        return DASH
    return f"{estimate.value:.2f}" if estimate.enough else f"{estimate.value:.2f}?"
