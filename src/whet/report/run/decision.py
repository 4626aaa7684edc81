"""The recommendation: which configuration, at what cost, why, and what to doubt."""

from __future__ import annotations

from collections.abc import Iterator

from whet.core.format import plural
from whet.core.records import Decision, Recommendation
from whet.core.run import Run
from whet.report.document import Bullets, Code, Fact, Facts, Node, Paragraph, Section, Tone
from whet.report.run.common import certainty, headline, is_win
from whet.report.text import Shown, shown

ORDER = 10


def build(run: Run) -> Section:
    """The verdict; an unfinished run has none yet."""
    if run.decision is None:
        done = plural(sum(cell.status == "complete" for cell in run.cells), "cell")
        words = f"The run is incomplete: {done} measured so far."
        return Section(
            id="decision",
            title="No decision yet",
            short="Decision",
            nodes=[Paragraph(text=words)],
            tone="warn",
        )
    section = decision_section(run.decision)
    chosen = run.decision.recommendation
    if chosen is None:
        return section
    nodes: list[Node] = [section.nodes[0], Facts(items=list(_facts(run, chosen)))]
    nodes += section.nodes[1:]
    if chosen.variant in run.engines:
        nodes.append(Code(text=run.engines[chosen.variant].serve_line, language="sh"))
    return Section(
        id="decision",
        title=section.title,
        short="Decision",
        nodes=nodes,
        tone=section.tone,
        on_console=True,
    )


def decision_section(decision: Decision) -> Section:
    """A decision without its run: headline, reasons and cautions."""
    title, sentence = headline(decision)
    chosen = decision.recommendation
    nodes: list[Node] = [Paragraph(text=sentence)]
    if chosen is not None:
        nodes += [Bullets(items=chosen.reasons), Bullets(items=chosen.cautions, tone="warn")]
    tone: Tone = "warn" if chosen is None else "good" if is_win(decision) else "plain"
    return Section(
        id="decision", title=title, short="Decision", nodes=nodes, tone=tone, on_console=True
    )


def _fleet_facts(chosen: Recommendation) -> Iterator[Fact]:
    """Servers and dollars a month where requests a second were measured."""
    fleet, usual = chosen.fleet, chosen.reference_fleet
    if fleet is None:
        return
    beside = usual if chosen.variant != chosen.reference else None
    yield Fact(
        name="Servers",
        value=Shown(text=f"{fleet.servers:,}"),
        note=f"for {fleet.demand_rps:g} req/s, {fleet.rate_rps:.3g} each"
        + (f"; {chosen.reference} {beside.servers:,}" if beside else ""),
    )
    yield Fact(
        name="Dollars a month",
        value=Shown(text=f"${fleet.usd_per_month:,.0f}"),
        note=f"{chosen.reference} ${beside.usd_per_month:,.0f}" if beside else "730 hours",
    )


def _facts(run: Run, chosen: Recommendation) -> Iterator[Fact]:
    """The recommended cell's figures, each with its interval and what it is held against."""
    base, own = chosen.reference_cost_per_1m_tokens, chosen.variant == chosen.reference
    yield from _fleet_facts(chosen)
    yield Fact(
        name="Cost per 1M tokens",
        value=shown(chosen.cost_per_1m_tokens, unit="$"),
        note=f"{chosen.reference} at best {shown(base, unit='$').text}" if base and not own else "",
    )
    if chosen.saving is not None and not own:
        yield Fact(
            name="Saving",
            value=shown(chosen.saving, unit="%"),
            note=f"against {chosen.reference}, {certainty(chosen)}",
        )
    target = f"target {chosen.ttft_target_ms:g}"
    yield Fact(name="TTFT p95, ms", value=shown(chosen.ttft_p95_ms), note=target)
    yield Fact(name="Tokens per second", value=shown(chosen.tps_mean), note="output tokens")
    record = run.quality.get(chosen.variant)
    if record is not None and own:
        yield Fact(name="Perplexity", value=shown(record.perplexity), note="the baseline's own")
    elif record is not None and record.perplexity_ratio is not None:
        tolerance = f"tolerance {100 * chosen.quality_tolerance:g}%"
        yield Fact(
            name="Perplexity", value=shown(record.perplexity_ratio, unit="+%"), note=tolerance
        )
