"""A measured load as one picture: TTFT and E2E over the schedule, and their distribution."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from whet.core.records import TrialRecord
from whet.core.store import translate_disk_errors
from whet.core.units import NS_PER_MS, ns_to_s
from whet.metrics import request_figures

_COLORS: Final = {"TTFT": "#1f6feb", "E2E": "#b35900"}


def write_load_plot(trials: Sequence[TrialRecord], path: Path) -> bool:
    """Draw the answered requests of all trials; False where there is none to draw."""
    rows = [
        (ns_to_s(event.scheduled_ns), figures.ttft_ns / NS_PER_MS, figures.e2e_ns / NS_PER_MS)
        for trial in trials
        for event in trial.requests
        if (figures := request_figures(event)) is not None
    ]
    if not rows:
        return False
    from matplotlib.figure import Figure

    at_s, ttft_ms, e2e_ms = np.array(rows).T
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    over, spread = figure.subplots(1, 2)
    for name, values in (("TTFT", ttft_ms), ("E2E", e2e_ms)):
        color = _COLORS[name]
        over.plot(at_s, values, ".", markersize=4, alpha=0.6, color=color, label=name)
        share = np.arange(1, len(values) + 1) / len(values)
        spread.step(np.sort(values), share, where="post", color=color, label=name)
    over.set(xlabel="scheduled send, s", ylabel="ms", yscale="log")
    spread.set(xlabel="ms", ylabel="share of requests", xscale="log", ylim=(0, 1.02))
    over.legend(frameon=False)
    with translate_disk_errors(path):
        figure.savefig(path, dpi=130)
    return True
