"""The decision matrix: the cheapest variant by latency target and quality tolerance."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.format import plural
from whet.core.records.decision import Decision, MatrixEntry
from whet.core.run import Run
from whet.report.document import Bullets, Cell, Node, Section, Table, Tone, table
from whet.report.run.common import is_win, target_words, tolerance_words
from whet.report.run.verdict import costs_less
from whet.report.text import DASH, shown

ORDER = 20


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
    entries = {(e.tier, e.ttft_target_ms, e.quality_tolerance): e for e in decision.matrix}
    for tier in dict.fromkeys(entry.tier for entry in decision.matrix):
        own = [entry for entry in decision.matrix if entry.tier == tier]
        targets = sorted({entry.ttft_target_ms for entry in own})
        tolerances = sorted({entry.quality_tolerance for entry in own})
        rows = [
            [
                target_words(target),
                *(_entry(entries.get((tier, target, t)), decision) for t in tolerances),
            ]
            for target in targets
        ]
        heads = ["your objective", *map(tolerance_words, tolerances)]
        yield table(f"Cheapest variant that qualifies on {tier}", heads, rows)


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
