"""Figures as pure functions of the raw events, each with the interval that it deserves."""

from whet.metrics.estimates import certified, certified_from, quantile_estimate
from whet.metrics.requests import RequestFigures, request_figures
from whet.metrics.starts import METRICS
from whet.metrics.summary import CellContext, summarise
from whet.metrics.table import events_table

__all__ = [
    "METRICS",
    "CellContext",
    "RequestFigures",
    "certified",
    "certified_from",
    "events_table",
    "quantile_estimate",
    "request_figures",
    "summarise",
]
