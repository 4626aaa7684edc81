"""Figures as text: unit, interval, and a mark if a percentile has too few samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from whet.core.format import plural, significant
from whet.core.records.summary import CellSummary, Estimate

if TYPE_CHECKING:
    from whet.decision.eligible import EligibleCell


def cost(item: EligibleCell) -> str:
    """What a cell costs: ``$0.412 [0.400 … 0.425] per 1M output tokens``, or its fleet.

    ``$186 a month for 6 req/s (3 servers at 2 req/s)``.
    """
    fleet = item.fleet
    if fleet is None:
        interval = _interval(item.cost, lambda value: significant(value, 3))
        return f"${significant(item.cost.value, 3)}{interval} per 1M output tokens"
    return (
        f"${significant(fleet.usd_per_month, 3)} a month for {fleet.demand_rps:g} req/s "
        f"({plural(fleet.servers, 'server')} at {fleet.rate_rps:.3g} req/s)"
    )


def milliseconds(figure: Estimate) -> str:
    """``312 ms [300 … 331]``, with ``?`` if the percentile has too few samples."""
    mark = "" if figure.enough else "?"
    return f"{figure.value:,.0f}{mark} ms{_interval(figure, lambda value: f'{value:,.0f}')}"


def regression(ratio: Estimate) -> str:
    """``+0.61% [+0.40% … +0.83%]`` from a perplexity ratio; ``no change`` where it is 1."""
    if {_signed(each) for each in (ratio.value, ratio.low or 1, ratio.high or 1)} == {"+0.00%"}:
        return "no change"
    return f"{_signed(ratio.value)}{_interval(ratio, _signed)}"


def percent(share: Estimate) -> str:
    """``38.2% [36.0% … 40.1%]`` from a share."""
    return f"{_per_cent(share.value)}{_interval(share, _per_cent)}"


def cell_label(cell: CellSummary) -> str:
    """``awq at concurrency 8``."""
    return f"{cell.variant} at {cell.load.words}"


def _per_cent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _signed(ratio: float) -> str:
    return f"{100 * (ratio - 1):+z.2f}%"


def _interval(figure: Estimate, show: Callable[[float], str]) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f" [{show(figure.low)} … {show(figure.high)}]"
