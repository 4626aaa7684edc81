"""A metric: its names, its direction, where it is shown, and its formula by scope."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from whet.core.records.load import RequestEvent, TrialRecord
from whet.core.records.summary import Estimate, Figure
from whet.metrics.counted import CounterRatio
from whet.metrics.estimates import Floats
from whet.metrics.measured import Measured, steady_figures
from whet.metrics.requests import RequestFigures
from whet.metrics.starts import by_start, pooled_rate, quantile_over_starts
from whet.metrics.usable import usable_trials

Direction = Literal["lower", "higher"]
"""Whether a lower or a higher figure is better."""

View = Literal[
    "differences", "cells", "live", "charts", "compare", "changes", "envelope", "dashboard"
]
"""Where a metric may be shown besides ``results.csv`` and JSON, which hold every one.

``differences``: tested over starts, which gives it its interval. ``cells``: the report's table of
cells and ``whet ci --metrics``. ``live``: as soon as a cell is measured, and of what a search
tried. ``charts``: against the load. ``compare``: ``bench --against``.
``changes``: the effects of levers and the checks of ``whet ci``. ``envelope``: what a deployment
must hold. ``dashboard``: a panel, if the server exports the metric.
"""
EVERYWHERE: Final[frozenset[View]] = frozenset(get_args(View))


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric(ABC):
    """One figure of a cell, with everything that a table or a chart needs to show it.

    ``name`` is its key in JSON and its column in ``results.csv``, unless ``column`` differs.
    ``title`` is written as within a sentence. ``sign`` is ``$`` for money. ``axis`` is the unit of
    a chart in full. A narrow console leaves out columns by ``drop``, highest first; 0 stays.
    ``marked``: the file says where its samples are too few; ``bounds``: it has the interval.
    """

    name: str
    title: str
    unit: str = ""
    better: Direction
    views: frozenset[View] = EVERYWHERE
    sign: Literal["", "$"] = ""
    axis: str = ""
    drop: int = 6
    column: str = ""
    marked: bool = True
    bounds: bool = True

    @abstractmethod
    def of_cell(self, cell: Measured) -> Figure:
        """Return the figure of a cell, None where nothing was measured."""

    def of_start(self, start: Sequence[TrialRecord]) -> float | None:
        """Return the figure of the usable trials of one start; None without one."""
        return None

    def start_figures(self, trials: Sequence[TrialRecord]) -> dict[int, float]:
        """Return each start's figure above 0, keyed by the start's first usable trial."""
        return {
            min(trial.trial for trial in start): value
            for start in by_start(usable_trials(trials))
            if (value := self.of_start(start))
        }

    @property
    def heading(self) -> str:
        """The title with a capital, as the head of a column."""
        return self.title[0].upper() + self.title[1:]

    @property
    def label(self) -> str:
        """Title and unit: ``TTFT p95, ms``."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestMetric(Metric):
    """A quantile of what ``of`` gives for each answered request: a value, several, or None.

    ``wave`` says whose: the requests after the first wave, or those of it. ``histogram`` is the
    one in which the server counts the same, in seconds.
    """

    of: Callable[[RequestFigures], float | Sequence[float] | Floats | None]
    quantile: float
    wave: Literal["steady", "first"] = "steady"
    histogram: str | None = None
    unit: str = "ms"
    better: Direction = "lower"

    def of_cell(self, cell: Measured) -> Estimate | None:
        """Return the quantile over the requests of all starts."""
        starts = cell.steady if self.wave == "steady" else cell.burst
        values = [[self._values(figures) for figures in start] for start in starts]
        return quantile_over_starts(values, self.quantile)

    def of_start(self, start: Sequence[TrialRecord]) -> float | None:
        """Return the quantile over the start's requests after the first wave."""
        if self.wave == "first":
            return None
        values = [self._values(figures) for figures in steady_figures(start)]
        pooled = np.concatenate([*values, np.empty(0)])
        return float(np.quantile(pooled, self.quantile)) if len(pooled) else None

    def _values(self, figures: RequestFigures) -> Floats:
        value = self.of(figures)
        return np.empty(0) if value is None else np.atleast_1d(np.asarray(value, dtype=float))


@dataclass(frozen=True, kw_only=True, slots=True)
class RateMetric(Metric):
    """Work per second of the steady window; ``work`` is how much a request counts."""

    work: Callable[[RequestEvent], float]

    def of_cell(self, cell: Measured) -> Estimate | None:
        """Return the geometric mean over the starts."""
        return cell.rate(self.work)

    def of_start(self, start: Sequence[TrialRecord]) -> float:
        """Return the work of all trials ÷ their seconds."""
        return pooled_rate(start, self.work)


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterMetric(Metric):
    """A ratio of counters that the server keeps, read around the timed requests."""

    ratio: CounterRatio
    bounds: bool = False

    def of_cell(self, cell: Measured) -> float | None:
        """Return the ratio over all trials."""
        return self.ratio(cell.trials)

    def of_start(self, start: Sequence[TrialRecord]) -> float | None:
        """Return the ratio over the trials of one start."""
        return self.ratio(start)


@dataclass(frozen=True, kw_only=True, slots=True)
class CellMetric(Metric):
    """A figure of a whole cell, which no single start has."""

    of: Callable[[Measured], Figure]

    def of_cell(self, cell: Measured) -> Figure:
        """Return what the formula gives."""
        return self.of(cell)
