"""A measured load as a chart: TTFT and E2E of each request over the schedule."""

from __future__ import annotations

from collections.abc import Sequence

from whet.core.records.load import TrialRecord
from whet.core.units import NS_PER_MS, ns_to_s
from whet.metrics import request_figures
from whet.report.charts.palette import looks
from whet.report.charts.plots import Axis, Point, plot
from whet.report.document import Chart


def latency_chart(trials: Sequence[TrialRecord]) -> Chart | None:
    """The answered requests of all trials; None without such a request."""
    points = [
        Point(
            series=name,
            x=ns_to_s(event.scheduled_ns),
            y=value_ns / NS_PER_MS,
            label=f"{name} of request {event.index}: {value_ns / NS_PER_MS:.4g} ms",
        )
        for trial in trials
        for event in trial.requests
        if (figures := request_figures(event)) is not None
        for name, value_ns in (("TTFT", figures.ttft_ns), ("E2E", figures.e2e_ns))
        if value_ns > 0
    ]
    if not points:
        return None
    styles = looks(["TTFT", "E2E"])
    return Chart(
        name="latency",
        title="Latency by scheduled send",
        description="Every answered request.",
        picture=plot(
            points,
            styles,
            x=Axis(title="scheduled send, s", zero=True, form="~r"),
            y=Axis(title="ms (blue: TTFT, orange: E2E)", scale="log"),
            joined=False,
        ),
    )
