"""A break-even map in sentences: one for each batch size and K."""

from __future__ import annotations

from typing import Final

from whet.core.format import percent
from whet.core.records import BreakEvenMap, BreakEvenPoint, Estimate
from whet.report.text import ONE_START

_VERDICT: Final = {
    "yes": "pays",
    "no": "does not pay",
    "undecided": "not distinguishable from 1 here",
}


def sentence(point: BreakEvenPoint) -> str:
    """One batch size and K in words, from the break-even to the verdict on the draft."""
    where = f"at {point.batch_size}, K = {point.k}"
    return f"{where}: {_edge(point)}; {_draft(point)}."


def worth(point: BreakEvenPoint) -> str:
    """What the best draft of the same cost would be worth, or nothing where it is not known."""
    if point.headroom is None or point.real is None:
        return ""
    steps = (point.k + 1) / point.real.value
    shared = (
        f" (its steps alone ×{steps:.2f}; {percent(point.fixed_share)} of a plain token's time is "
        "not theirs)"
        if 0 < point.fixed_share < 1
        else ""
    )
    return f"a better draft is worth at most ×{_times(point.headroom)} more{shared}"


def headline(result: BreakEvenMap) -> str:
    """Where the draft pays, K by K, in one sentence."""
    parts = []
    for k in ks_of(result):
        yes, no, open_ = (
            ", ".join(str(p.batch_size) for p in result.points if p.k == k and p.pays == word)
            for word in ("yes", "no", "undecided")
        )
        parts_of_k = [
            f"pays at {yes} in flight" if yes else "",
            f"does not at {no}" if yes and no else f"does not pay at {no} in flight" if no else "",
            f"is undecided at {open_}" if open_ else "",
        ]
        parts.append(f"K = {k} {', '.join(each for each in parts_of_k if each)}")
    return "; ".join(parts) + "." if parts else "No point of the map has figures with evidence."


def ks_of(result: BreakEvenMap) -> tuple[int, ...]:
    """Every K of the map, rising."""
    return tuple(sorted({point.k for point in result.points}))


def _edge(point: BreakEvenPoint) -> str:
    edge, most = point.l_star, point.k + 1
    if edge is None:
        free = "even free tokens would come no faster"
        if point.reachable == "no":
            return f"speculation cannot pay here, whatever the draft: {free}"
        return f"no break-even was found ({free}), and the figures are too uncertain to rule it out"
    words = f"{edge.value:.2f} tokens a step{interval(edge)}"
    if edge.low is None and edge.high is None:
        return f"{ONE_START} on where speculation pays; the point estimate is {words}"
    if point.reachable == "no":
        return f"speculation cannot pay, whatever the draft: it takes {words} and K + 1 is {most}"
    doubt = ""
    if point.reachable == "undecided" and edge.value > most:
        doubt = f", beyond K + 1 = {most} but not with certainty"
    elif point.reachable == "undecided":
        doubt = f", which may be more than K + 1 = {most}"
    return f"speculation pays above {words}{doubt}"


def _draft(point: BreakEvenPoint) -> str:
    if point.real is None:
        return "the draft's own acceptance was not measured"
    times = "" if point.change is None else f" ({_times(point.change, '×')})"
    unbounded = point.change is not None and point.change.low is None
    verdict = ONE_START if unbounded and point.pays == "undecided" else _VERDICT[point.pays]
    return f"the draft has {point.real.value:.2f}: {verdict}{times}"


def _times(figure: Estimate, sign: str = "") -> str:
    return f"{figure.value:.2f}{sign}{interval(figure)}"


def interval(figure: Estimate) -> str:
    """`` [2.20 … 2.40]``, open where an end is not known; nothing where neither is."""
    if figure.low is None and figure.high is None:
        return ""
    low = "" if figure.low is None else f"{figure.low:.2f}"
    high = "" if figure.high is None else f"{figure.high:.2f}"
    return f" [{low} … {high}]"
