"""The decision matrix: the cheapest variant by latency target and quality tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from whet.core.format import plural
from whet.core.records.decision import Decision, MatrixEntry
from whet.core.run import Run
from whet.report.document import Bullets, Cell, Node, Section, Table, Tone, table
from whet.report.run.common import is_win, target_words, tolerance_words
from whet.report.run.verdict import costs_less
from whet.report.text import DASH, shown

ORDER = 20
_CHOSEN: Final = ("good", "strong")


def build(run: Run) -> Section | None:
    """Matrix and blank corners."""
    return None if run.decision is None else matrix_section(run.decision)


def matrix_section(decision: Decision) -> Section:
    """The same without a run."""
    nodes: list[Node] = list(_tables(decision))
    nodes.append(Bullets(items=list(_blank_corners(decision)), tone="muted"))
    return Section(
        id="matrix",
        title="Decision matrix",
        group="Decision",
        nodes=nodes,
    )


def _tables(decision: Decision) -> Iterator[Table]:
    for tier in dict.fromkeys(entry.tier for entry in decision.matrix):
        own = [entry for entry in decision.matrix if entry.tier == tier]
        entries = {(e.ttft_target_ms, e.quality_tolerance): e for e in own}
        targets = sorted({entry.ttft_target_ms for entry in own})
        tolerances = sorted({entry.quality_tolerance for entry in own})
        rows = _merged(
            (target_words(x), [_entry(entries.get((x, each)), decision) for each in tolerances])
            for x in targets
        )
        cells = zip(*(line for _, line in rows), strict=True)
        columns = _merged(zip(map(tolerance_words, tolerances), cells, strict=True))
        heads = ["your objective", *(head for head, _ in columns)]
        lines = zip((head for head, _ in rows), *(line for _, line in columns), strict=True)
        yield table(f"Cheapest variant that qualifies on {tier}", heads, lines)


def _merged(lines: Iterable[tuple[str, Sequence[Cell]]]) -> list[tuple[str, Sequence[Cell]]]:
    """Return neighbouring lines of the same words as one; the recommended cell's tone stays."""
    merged: list[tuple[str, Sequence[Cell]]] = []
    for _, group in groupby(lines, key=lambda line: [(x.text, x.detail) for x in line[1]]):
        heads, same = zip(*group, strict=True)
        cells = [max(each, key=lambda x: x.tone in _CHOSEN) for each in zip(*same, strict=True)]
        merged.append((", ".join(heads), cells))
    return merged


def _entry(entry: MatrixEntry | None, decision: Decision) -> Cell:
    if entry is None:
        return Cell(text=DASH, tone="muted")
    if entry.meets is None or entry.load is None:
        return Cell(text="none", tone="muted")
    title = f"{entry.variant} at {entry.load.words}"
    cost = f"{shown(entry.cost_per_1m_tokens, unit='$').text} per 1M"
    if entry.fleet is not None:
        servers = plural(entry.fleet.servers, "server")
        cost = f"${entry.fleet.usd_per_month:,.0f} a month ({servers}), {cost}"
    latency = f"TTFT p95 {shown(entry.ttft_p95_ms).marked} ms"
    best = decision.recommendation
    chosen = best is not None and (best.tier, best.ttft_target_ms, best.quality_tolerance) == (
        entry.tier,
        entry.ttft_target_ms,
        entry.quality_tolerance,
    )
    tone: Tone = "good" if chosen and is_win(decision) else "strong" if chosen else "plain"
    detail = f"{cost}, {latency}; meets its limits: {entry.meets}"
    if entry.variant != decision.reference:
        detail += f"; {costs_less(entry, decision.reference)}"
    return Cell(text=title, tone=tone, detail=detail)


def _blank_corners(decision: Decision) -> Iterator[str]:
    """Why no variant qualifies at a corner: each reason once, with where it holds."""
    tolerances = {entry.quality_tolerance for entry in decision.matrix}
    tiers = {entry.tier for entry in decision.matrix}
    reasons: dict[str, dict[tuple[str, float], list[float]]] = {}
    for entry in decision.matrix:
        if entry.meets is None:
            corners = reasons.setdefault(entry.reason, {})
            place = (entry.tier, entry.ttft_target_ms)
            corners.setdefault(place, []).append(entry.quality_tolerance)
    for reason, corners in reasons.items():
        places = []
        for (tier, target), limits in corners.items():
            some = "" if len(limits) == len(tolerances) else f" at {_percents(limits)}"
            places.append(f"{f'{tier}, ' if len(tiers) > 1 else ''}{target_words(target)}{some}")
        yield f"{', '.join(places)}: {reason}"


def _percents(limits: list[float]) -> str:
    return ", ".join(f"{100 * limit:g}%" for limit in limits)
