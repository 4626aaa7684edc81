"""The recommendation: which configuration, at what cost, why, and what to doubt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from whet.core.format import plural
from whet.core.records.decision import Recommendation
from whet.core.run import Run
from whet.report.document import Bullets, Fact, Facts, Folded, Node, Paragraph, Section
from whet.report.run.load import cost_charts
from whet.report.run.payback import payback
from whet.report.run.setup import measured_line, serve_line
from whet.report.run.verdict import verdict_section
from whet.report.text import Shown, shown

ORDER = 10
_DEPLOYED = "Serve it on this machine; whet deploy writes it with containers and monitoring"
_AS_MEASURED = "As measured; whet deploy leaves out what only the measurement needs"


def build(run: Run) -> Section:
    """The verdict; an unfinished run has none yet."""
    if run.decision is None:
        done = plural(sum(cell.status == "complete" for cell in run.cells), "cell")
        words = f"The run is incomplete: {done} measured so far."
        nodes = [Paragraph(text=words), *cost_charts(run)]
        title = "No decision yet"
        return Section(id="decision", title=title, group="Decision", nodes=nodes, tone="warn")
    section = verdict_section(run.decision, run)
    chosen = run.decision.recommendation
    tiles = [Facts(items=list(_facts(run, chosen)))] if chosen else []
    lead, *points = section.nodes
    nodes = [lead, *tiles, *points, *cost_charts(run), *_invalid(run)]
    if chosen is not None and chosen.variant in run.engines:
        own = chosen.serve_line
        line = serve_line(own) if own else measured_line(run.engines[chosen.variant])
        summary = _DEPLOYED if own else _AS_MEASURED
        nodes.append(Folded(summary=summary, nodes=[line], is_open=True))
    return replace(section, nodes=nodes)


def _invalid(run: Run) -> list[Node]:
    """Cells that stayed invalid: each may have been the cheapest."""
    reasons = {
        f"{trial.variant} at {trial.load.words}": trial.health.reason
        for trial in run.trials
        if trial.is_invalid
    }
    lines = [f"{cell} does not count, its trial is invalid: {why}" for cell, why in reasons.items()]
    return [Bullets(items=lines, tone="warn")] if lines else []


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
    """How much cheaper, at what latency, still right, and proved: what a reader asks first."""
    yield from _fleet_facts(chosen)
    own = chosen.variant == chosen.reference
    if chosen.saving is not None and chosen.saving.value > 0:
        note = chosen.reference if chosen.cheaper else f"{chosen.reference}, not distinguished"
        yield Fact(name="Costs less by", value=shown(chosen.saving, unit="%"), note=note)
    paid = payback(run)
    if chosen.fleet is None and paid is not None and paid.saved_usd_per_month is not None:
        saved = Shown(text=f"${paid.saved_usd_per_month:,.0f}")
        yield Fact(name="Saved a month", value=saved, note="at the volume of the log")
    cost, usual = shown(chosen.cost_per_1m_tokens, unit="$"), chosen.reference_cost_per_1m_tokens
    note = f"{chosen.reference} {shown(usual, unit='$').text}" if usual else ""
    yield Fact(name="Cost per 1M tokens", value=cost, note=note)
    target, usual = f"limit {chosen.ttft_target_ms:g}", chosen.reference_ttft_p95_ms
    note = f"{target}; {chosen.reference} {shown(usual).marked}" if usual else target
    yield Fact(name="TTFT p95, ms", value=shown(chosen.ttft_p95_ms), note=note)
    yield Fact(name="Meets its limits", value=Shown(text=chosen.meets))
    yield Fact(name="Tokens per second", value=shown(chosen.tps_mean), note="output tokens")
    record = run.quality.get(chosen.variant)
    if record is not None and record.perplexity_ratio is not None and not own:
        tolerance = f"tolerance {100 * chosen.quality_tolerance:g}%"
        yield Fact(
            name="Perplexity", value=shown(record.perplexity_ratio, unit="+%"), note=tolerance
        )
    cells = [cell for cell in run.cells if cell.status == "complete"]
    proved = sum(run.evidence(cell.variant, cell.load) == "proved" for cell in cells)
    yield Fact(name="Features proved", value=Shown(text=f"{proved} of {len(cells)}"), note="cells")
