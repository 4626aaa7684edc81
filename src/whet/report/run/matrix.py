"""The decision matrix: the cheapest variant by latency target and quality tolerance."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.format import plural
from whet.core.records import Decision, MatrixEntry
from whet.core.run import Run
from whet.report.document import Bullets, Cell, Column, Heading, Node, Row, Section, Table, Tone
from whet.report.run.common import is_corner, is_win, target_words, tolerance_words
from whet.report.text import DASH, shown

ORDER = 20


def build(run: Run) -> Section | None:
    """Matrix, blank corners, exclusions, and where speculation stops paying."""
    return None if run.decision is None else matrix_section(run.decision)


def matrix_section(decision: Decision) -> Section:
    """The same without a run."""
    nodes: list[Node] = list(_tables(decision))
    nodes.append(Bullets(items=list(_blank_corners(decision)), tone="muted"))
    if decision.break_even:
        nodes.append(Heading(text="Where speculation stops paying"))
        nodes.append(Bullets(items=[each.sentence for each in decision.break_even]))
    if decision.excluded:
        nodes.append(Heading(text="Excluded, and why"))
        nodes.append(Bullets(items=list(_exclusions(decision)), tone="muted"))
    return Section(
        id="matrix", title="Decision matrix", short="Matrix", nodes=nodes, on_console=True
    )


def _tables(decision: Decision) -> Iterator[Table]:
    entries = {(e.tier, e.ttft_target_ms, e.quality_tolerance): e for e in decision.matrix}
    for tier in dict.fromkeys(entry.tier for entry in decision.matrix):
        own = [entry for entry in decision.matrix if entry.tier == tier]
        tolerances = sorted({entry.quality_tolerance for entry in own})
        yield Table(
            caption=f"Cheapest variant that qualifies on {tier}",
            columns=[Column(name=""), *(Column(name=tolerance_words(t)) for t in tolerances)],
            rows=[
                Row(
                    cells=[
                        Cell(text=target_words(target)),
                        *(_entry(entries.get((tier, target, t)), decision) for t in tolerances),
                    ]
                )
                for target in sorted({entry.ttft_target_ms for entry in own})
            ],
        )


def _entry(entry: MatrixEntry | None, decision: Decision) -> Cell:
    if entry is None or entry.outcome == "none":
        return Cell(text=DASH if entry is None else "none", tone="muted")
    title = f"{entry.variant} @ {entry.batch_size}"
    cost = f"{shown(entry.cost_per_1m_tokens, unit='$').text} per 1M"
    if entry.fleet is not None:
        servers = plural(entry.fleet.servers, "server")
        cost = f"${entry.fleet.usd_per_month:,.0f} a month ({servers}), {cost}"
    latency = f"TTFT p95 {shown(entry.ttft_p95_ms).marked} ms"
    chosen = is_corner(decision.recommendation, entry)
    tone: Tone = "good" if chosen and is_win(decision) else "strong" if chosen else "plain"
    return Cell(text=title, tone=tone, detail=f"{cost}, {latency}; {entry.outcome}")


def _blank_corners(decision: Decision) -> Iterator[str]:
    """Why no variant qualifies at a corner: each reason once, with where it holds."""
    tolerances = {entry.quality_tolerance for entry in decision.matrix}
    tiers = {entry.tier for entry in decision.matrix}
    reasons: dict[str, dict[tuple[str, float], list[float]]] = {}
    for entry in decision.matrix:
        if entry.outcome == "none":
            corners = reasons.setdefault(entry.reason, {})
            place = (entry.tier, entry.ttft_target_ms)
            corners.setdefault(place, []).append(entry.quality_tolerance)
    for reason, corners in reasons.items():
        words = []
        for (tier, target), limits in corners.items():
            some = "" if len(limits) == len(tolerances) else f" at {_percents(limits)}"
            words.append(f"{f'{tier}, ' if len(tiers) > 1 else ''}{target_words(target)}{some}")
        yield f"{', '.join(words)}: {reason}"


def _percents(limits: list[float]) -> str:
    return ", ".join(f"{100 * limit:g}%" for limit in limits)


def _exclusions(decision: Decision) -> Iterator[str]:
    """Cells of one variant with one reason are one sentence."""
    several = len({entry.tier for entry in decision.matrix}) > 1
    sizes: dict[tuple[str, str], list[str]] = {}
    for item in decision.excluded:
        reason = f"{item.reason} ({item.tier})" if several and item.tier else item.reason
        own = sizes.setdefault((item.variant, reason), [])
        own += [] if item.batch_size is None else [str(item.batch_size)]
    for (variant, reason), batch_sizes in sizes.items():
        at = f" @ {', '.join(batch_sizes)}" if batch_sizes else ""
        yield f"{variant}{at} excluded: {reason}"
