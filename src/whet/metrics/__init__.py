"""Figures as pure functions of the raw events, each with the interval that it deserves."""

from whet.metrics.estimates import enough_from, is_enough, quantile_estimate
from whet.metrics.measured import UNPRICED, CellContext
from whet.metrics.requests import RequestFigures, request_figures
from whet.metrics.summary import summarise
from whet.metrics.table import METRICS, metrics_in

__all__ = [
    "METRICS",
    "UNPRICED",
    "CellContext",
    "RequestFigures",
    "enough_from",
    "is_enough",
    "metrics_in",
    "quantile_estimate",
    "request_figures",
    "summarise",
]
