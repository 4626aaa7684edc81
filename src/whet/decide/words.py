"""Figures as a person reads them: unit, interval, and a mark where a tail is not certified."""

from __future__ import annotations

from whet.core.records import CellSummary, Estimate


def money(figure: Estimate) -> str:
    """``$0.412 [0.400, 0.425] per 1M output tokens``."""
    return f"${figure.value:.3g}{_interval(figure, 1, '.3g')} per 1M output tokens"


def milliseconds(figure: Estimate) -> str:
    """``312 ms [300, 331]``, with ``?`` where the percentile has too few samples."""
    mark = "" if figure.certified else "?"
    return f"{figure.value:.0f}{mark} ms{_interval(figure, 1, '.0f')}"


def throughput(figure: Estimate) -> str:
    """``1204 tok/s [1190, 1221]``."""
    return f"{figure.value:.4g} tok/s{_interval(figure, 1, '.4g')}"


def regression(ratio: Estimate) -> str:
    """``+0.61 % [+0.40 %, +0.83 %]`` from a perplexity ratio."""
    return f"{_signed(ratio.value)}{_signed_interval(ratio)}"


def percent(share: Estimate) -> str:
    """``38.2 % [36.0, 40.1]`` from a share."""
    return f"{100 * share.value:.1f} %{_interval(share, 100, '.1f')}"


def times(change: Estimate) -> str:
    """``1.42× [1.38, 1.46]`` from a ratio."""
    return f"{change.value:.2f}×{_interval(change, 1, '.2f')}"


def place(cell: CellSummary) -> str:
    """``awq at batch size 8``."""
    return f"{cell.variant} at batch size {cell.batch_size}"


def _signed(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f} %"


def _signed_interval(ratio: Estimate) -> str:
    if ratio.low is None or ratio.high is None:
        return ""
    return f" [{_signed(ratio.low)}, {_signed(ratio.high)}]"


def _interval(figure: Estimate, scale: float, form: str) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f" [{format(scale * figure.low, form)}, {format(scale * figure.high, form)}]"
