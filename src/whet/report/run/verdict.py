"""The verdict in plain words: what to serve, what it saves, its price, and what was checked."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import neg
from typing import Final

from whet.core.format import percent, plural
from whet.core.records.decision import GREEDY_ONLY, Decision, MatrixEntry, Recommendation
from whet.core.records.quality import QualityRecord
from whet.core.records.summary import Estimate
from whet.core.run import Run
from whet.report.document import Bullets, Node, Paragraph, Section, Tone
from whet.report.run.common import is_win, limit_words
from whet.report.run.payback import payback
from whet.report.text import shown

_UNCHECKED: Final = {"answers not checked", "no better than its base", "misses its limits"}
"""Kinds of exclusion by which answers were not checked."""


def verdict_section(decision: Decision, run: Run | None = None) -> Section:
    """What a reader needs to know of a decision; ``run`` is that of the recommended machine.

    The first section of the report, the end of the console, the summary and the notebook's view.
    """
    chosen = decision.recommendation
    if chosen is None:
        words = "No configuration met the limits with its features proved and its answers checked."
        return _section("Nothing qualifies", [Paragraph(text=words)], "warn")
    cautions = (each for each in chosen.cautions if each not in decision.limits)
    points: tuple[tuple[Tone, list[str]], ...] = (
        ("plain", [*_checked(chosen, run), *chosen.reasons]),
        ("warn", [*decision.limits, *cautions]),
        ("muted", list(_left_out(decision, run))),
    )
    names = {cell.variant for cell in decision.cells}
    nodes: list[Node] = [Paragraph(text=" ".join(_price(chosen, run)))]
    nodes += [
        Bullets(items=[_sentence(each, names) for each in items], tone=tone)
        for tone, items in points
        if items
    ]
    look: Tone = "warn" if decision.limits else "good" if is_win(decision) else "plain"
    return _section(title(decision), nodes, look)


def _sentence(words: str, names: Collection[str]) -> str:
    """Begin with a capital, unless the first word is a configuration's name."""
    first = words.split(" ", 1)[0].rstrip(",:;")
    return words if first in names else words[:1].upper() + words[1:]


def _section(words: str, nodes: list[Node], tone: Tone) -> Section:
    return Section(
        id="decision", title=words, group="Decision", nodes=nodes, tone=tone, on_console=True
    )


def title(decision: Decision) -> str:
    """``Serve draft+cache at 8 requests in flight, for greedy requests only``."""
    chosen = decision.recommendation
    if chosen is None:
        return "Nothing qualifies" if decision.cells else "Nothing could be measured"
    verb = "Keep" if chosen.variant == chosen.reference else "Serve"
    where = f"at {plural(chosen.load.slots, 'request')} in flight"
    if chosen.fleet is not None:
        where = f"on {plural(chosen.fleet.servers, 'server')}"
    greedy = any(each.startswith(GREEDY_ONLY) for each in decision.limits)
    return f"{verb} {chosen.variant} {where}{f', for {GREEDY_ONLY}' if greedy else ''}"


def _price(chosen: Recommendation, run: Run | None) -> Iterator[str]:
    """What it saves, its cost beside the reference's, and what that is a month."""
    own = chosen.variant == chosen.reference
    fleet, usual = chosen.fleet, chosen.reference_fleet
    none = "Nothing cheaper qualifies" if fleet is None else "Nothing qualifies with fewer servers"
    saving = none if own else costs_less(chosen, chosen.reference)
    if fleet is None:
        cost, other = chosen.cost_per_1m_tokens, chosen.reference_cost_per_1m_tokens
        words = f"{shown(cost, unit='$').text} per million output tokens"
        beside = "" if other is None else f" instead of {shown(other, unit='$').text}"
    else:
        words = f"${fleet.usd_per_month:,.0f} a month for {fleet.demand_rps:g} requests a second"
        beside = f" instead of ${usual.usd_per_month:,.0f}" if usual and not own else ""
        beside += f", {fleet.rate_rps:.3g} a second each"
    price = run.spec.hardware.price_usd_per_hour if run and run.spec else None
    hourly = "" if price is None else f", at ${price:,g} an hour"
    yield f"{saving[:1].upper()}{saving[1:]}: {words}{beside}{hourly}."
    paid = None if run is None else payback(run)
    yield from () if paid is None else paid.sentences


def _checked(chosen: Recommendation, run: Run | None) -> Iterator[str]:
    """Latencies, answers and proofs, each beside the reference's."""
    ttft, usual = shown(chosen.ttft_p95_ms), chosen.reference_ttft_p95_ms
    spread = f" [{ttft.interval}]" if ttft.interval else ""
    beside = "" if usual is None else f" instead of {shown(usual).marked}"
    limit = f"the limit is {limit_words(chosen.ttft_target_ms)}, {meets_words(chosen)}"
    yield f"first token at p95: {ttft.marked} ms{spread}{beside}; {limit}"
    if (each := _per_token(chosen, run)) is not None:
        yield each
    record = None if run is None else run.quality.get(chosen.variant)
    if record is not None and chosen.variant != record.baseline:
        yield f"answers compared with {record.baseline}'s: {', '.join(_answers(record))}"
    if not any(each.startswith("accepted without proof") for each in chosen.cautions):
        yield "each of its features was proved by the engine's log and counters"


def _per_token(chosen: Recommendation, run: Run | None) -> str | None:
    """The median time of each further token, beside the reference's."""
    cells = {} if run is None else {(cell.variant, cell.load): cell for cell in run.cells}
    own = cells.get((chosen.variant, chosen.load))
    if own is None or own.tpot_p50_ms is None:
        return None
    at = chosen.reference_load
    usual = None if at is None else cells.get((chosen.reference, at))
    beside = "" if usual is None else f" instead of {shown(usual.tpot_p50_ms).marked}"
    return f"each further token, median: {shown(own.tpot_p50_ms).marked} ms{beside}"


def _answers(record: QualityRecord) -> Iterator[str]:
    """Perplexity, right answers and greedy texts, as the gate found them."""
    if record.perplexity_ratio is not None:
        yield f"perplexity {shown(record.perplexity_ratio, unit='+%').full}"
    if tasks := [task for task in record.tasks if not task.graded]:
        right = sum(task.right for task in tasks)
        usual = sum(task.baseline_right or 0 for task in tasks)
        yield f"{right} of {sum(task.n for task in tasks)} right (there {usual})"
    parity = record.lossless.parity if record.lossless else None
    if parity is not None:
        own = ""
        if parity.aa_same is not None and parity.aa_same < parity.prompts:
            own = f" (the plain server repeats {parity.aa_same})"
        yield f"{parity.same} of {parity.prompts} greedy texts the same{own}"


def _left_out(decision: Decision, run: Run | None) -> Iterator[str]:
    """Each excluded configuration once, with the kind of reason; the report has the whole one."""
    kinds: dict[str, dict[str, None]] = {}
    for item in decision.excluded:
        if item.variant not in decision.qualified:
            kinds.setdefault(item.variant, {})[item.kind or item.reason] = None
    plain = [variant for variant, why in kinds.items() if set(why) <= _UNCHECKED]
    if len(plain) > 2:
        yield f"{len(plain)} others were not in the lead, and their answers were not checked"
    for variant, why in kinds.items():
        if len(plain) > 2 and variant in plain:
            continue
        record = None if run is None else run.quality.get(variant)
        words = ", ".join(why)
        tasks = [task for task in record.tasks if not task.graded] if record else []
        if "quality" in why and (lost := sum(task.lost or 0 for task in tasks)):
            usual = sum(task.baseline_right or 0 for task in tasks)
            words += f": {lost} of {usual} right answers lost"
        yield f"excluded: {variant} ({words})"


def meets_words(chosen: Recommendation) -> str:
    """``and every limit is met``, ``likely met: TTFT p95 needs 6 starts to be sure``."""
    if chosen.meets == "yes":
        return "and every limit is met"
    needs = (
        f"{each.metric} needs {plural(each.starts, 'start')} to be sure"
        if each.starts
        else f"{each.metric} is not sure"
        for each in chosen.advice
    )
    known = {"likely": "likely met", "no": "missed"}.get(chosen.meets, "not known to be met")
    return ": ".join(filter(None, (known, ", ".join(needs))))


def costs_less(chosen: Recommendation | MatrixEntry, reference: str) -> str:
    """What a choice costs against the default: shown, not distinguished, or nothing to state.

    ``27.2% [9.3% … 41.6%] cheaper than default``, or
    ``cost not distinguished from default; 12 starts of each would show 4.1%``.
    """
    saving, change = chosen.saving, chosen.difference
    if saving is None:
        return f"no saving to state, since {reference} does not meet the limits"
    bounds = [end for end in (saving.low, saving.high) if end is not None]
    shown_ = (len(bounds) == 2 and min(bounds) > 0) if change is None else change.different
    if shown_ and saving.value > 0:
        return f"{_share(saving)} cheaper than {reference}"
    if shown_:
        return f"{_share(saving.mapped(neg, falling=True))} dearer than {reference}"
    needed = None if change is None else change.starts_needed
    why = f": {_share(saving)} less"
    if not bounds:
        why = ": one start has no interval"
    elif needed is not None:
        why = f"; {plural(needed, 'start')} of each would show {percent(abs(saving.value))}"
    return f"cost not distinguished from {reference}{why}"


def _share(value: Estimate) -> str:
    figure = shown(value, unit="%")
    return f"{figure.text}{f' [{figure.interval}]' if figure.interval else ''}"
