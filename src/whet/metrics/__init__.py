"""Figures as pure functions of the raw events, each with the interval that it deserves."""

from whet.metrics.compare import METRICS, compare, noise_floors
from whet.metrics.estimates import certified, certified_from, quantile_estimate
from whet.metrics.requests import RequestFigures, request_figures
from whet.metrics.summary import CellContext, summarise
from whet.metrics.table import events_table

__all__ = [
    "METRICS",
    "CellContext",
    "RequestFigures",
    "certified",
    "certified_from",
    "compare",
    "events_table",
    "noise_floors",
    "quantile_estimate",
    "request_figures",
    "summarise",
]
