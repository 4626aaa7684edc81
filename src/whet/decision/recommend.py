"""One deployment for the objective's recommended point, with reasons and cautions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from whet.core.records import Estimate, MatrixEntry, QualityRecord, Recommendation
from whet.core.spec import ObjectiveSpec
from whet.decision import words
from whet.decision.eligible import EligibleCell
from whet.decision.matrix import (
    SloPoint,
    best_of_others,
    qualifying,
    recommended_point,
    uncertified,
)
from whet.decision.ratios import SignificanceTest, saving

_ENOUGH_STARTS = 3


def recommend(
    eligible: Sequence[EligibleCell],
    matrix: Sequence[MatrixEntry],
    objective: ObjectiveSpec,
    significance_by_tier: Mapping[str, SignificanceTest],
    baseline: str,
    cached: str | None = None,
) -> Recommendation | None:
    """Recommend the cheapest entry over the tiers at the recommended point, or None.

    ``cached`` is the variant of the baseline with the prefix cache, which engines enable by
    default: a reason reports the saving over its cost too.
    """
    entries = [
        entry
        for entry in matrix
        if entry.ttft_target_ms == objective.recommend_ttft_ms
        and entry.quality_tolerance == objective.recommend_quality
        and entry.cost_per_1m_tokens is not None
    ]
    if not entries:
        return None
    entry = min(entries, key=_cost)
    chosen = next(
        item
        for item in eligible
        if (item.tier, item.cell.variant, item.cell.batch_size)
        == (entry.tier, entry.variant, entry.batch_size)
    )
    reference = _best_of(eligible, objective, baseline)
    usual = None if cached is None else _best_of(eligible, objective, cached)
    saved = None if reference is None else _saved(chosen, reference)
    return Recommendation(
        variant=chosen.cell.variant,
        batch_size=chosen.cell.batch_size,
        tier=chosen.tier,
        ttft_target_ms=entry.ttft_target_ms,
        quality_tolerance=entry.quality_tolerance,
        cost_per_1m_tokens=chosen.cost,
        baseline_cost_per_1m_tokens=None if reference is None else reference.cost,
        saving=saved,
        reasons=(
            _cheapest(chosen, entry, eligible, recommended_point(entry.tier, objective)),
            *_reasons(chosen, entry, reference, saved, usual),
        ),
        cautions=_cautions(chosen, entry, reference, saved, significance_by_tier[chosen.tier]),
    )


def _cost(entry: MatrixEntry) -> float:
    assert entry.cost_per_1m_tokens is not None
    return entry.cost_per_1m_tokens.value


def _best_of(
    eligible: Sequence[EligibleCell], objective: ObjectiveSpec, variant: str
) -> EligibleCell | None:
    """Return the variant's cheapest qualifying cell at the point, over all tiers."""
    matches = [
        item
        for tier in dict.fromkeys(item.tier for item in eligible)
        for item in qualifying(
            [c for c in eligible if c.tier == tier], recommended_point(tier, objective)
        )
        if item.cell.variant == variant
    ]
    return min(matches, key=lambda item: item.cost.value, default=None)


def _saved(chosen: EligibleCell, reference: EligibleCell) -> Estimate:
    if chosen is reference:
        return Estimate(value=0.0, low=0.0, high=0.0, samples=chosen.cost.samples)
    return saving(chosen.cost, reference.cost)


def _cheapest(
    chosen: EligibleCell, entry: MatrixEntry, eligible: Sequence[EligibleCell], point: SloPoint
) -> str:
    """Name the cost and the next variant. Rivals are a caution; the matrix has their costs."""
    sure = "" if chosen.cost.low is not None else ", as a point estimate"
    reason = f"cheapest that qualifies on {chosen.tier}{sure}: {words.money(chosen.cost)}"
    if entry.rivals:
        return reason
    others = best_of_others(
        qualifying([item for item in eligible if item.tier == chosen.tier], point)
    )
    if not others:
        return f"{reason}; no other variant qualifies"
    return f"{reason}; next is {words.cell_label(others[0].cell)}, {words.price(others[0].cost)}"


def _reasons(
    chosen: EligibleCell,
    entry: MatrixEntry,
    reference: EligibleCell | None,
    saved: Estimate | None,
    usual: EligibleCell | None,
) -> tuple[str, ...]:
    cell, record = chosen.cell, chosen.quality
    reasons = []
    if cell.tps_mean is not None:
        reasons.append(
            f"throughput {words.throughput(cell.tps_mean)} at batch size {cell.batch_size}"
        )
    reasons.append(
        f"TTFT p95 {words.milliseconds(chosen.ttft)}, below the target of "
        f"{entry.ttft_target_ms:g} ms"
    )
    if record is not None and record.perplexity_ratio is not None and chosen is not reference:
        scores = ", ".join(f"{s.task} {s.right} of {s.n}" for s in record.tasks)
        reasons.append(
            f"perplexity {words.regression(record.perplexity_ratio)} against {record.baseline}, "
            f"within {100 * entry.quality_tolerance:g}%"
            + (f"; right answers: {scores}" if scores else "")
        )
    if saved is not None and reference is not None and chosen is not reference:
        elsewhere = "" if reference.tier == chosen.tier else f" on {reference.tier}"
        sure = "" if saved.low is not None else "as a point estimate "
        reasons.append(
            f"{sure}saves {words.percent(saved)} of the baseline's best cost, "
            f"{words.price(reference.cost)} ({words.cell_label(reference.cell)}{elsewhere})"
        )
    if usual is not None and chosen is not reference and chosen.cell.variant != usual.cell.variant:
        reasons.append(
            f"saves {words.percent(_saved(chosen, usual))} of {words.price(usual.cost)} "
            f"({words.cell_label(usual.cell)}), the baseline with the prefix cache, which vLLM "
            "enables by default"
        )
    if (lossless := _lossless(record)) is not None:
        reasons.append(lossless)
    if not chosen.accepted:
        reasons.append("every feature that it claims was proved to be running")
    return tuple(reasons)


def _cautions(
    chosen: EligibleCell,
    entry: MatrixEntry,
    reference: EligibleCell | None,
    saved: Estimate | None,
    significance: SignificanceTest,
) -> tuple[str, ...]:
    cell = chosen.cell
    starts = min(item.cell.starts for item in (chosen, reference or chosen))
    cautions = []
    cautions += [f"accepted without proof: {claim}" for claim in chosen.accepted]
    if starts < _ENOUGH_STARTS:
        cautions.append(_few_starts(starts))
    if entry.rivals and starts > 1:
        cautions.append(
            f"its cost does not differ significantly from that of {' or '.join(entry.rivals)}"
        )
    if chosen is reference:
        cautions.append("it is the baseline itself: nothing cheaper qualifies, so nothing is saved")
    elif reference is None:
        cautions.append("the baseline does not qualify here, so there is no saving to state")
    elif (
        saved is not None
        and starts > 1
        and significance.same(_unsaved(saved), cell.batch_size, reference.cell.batch_size)
    ):
        cautions.append("the saving is within the noise of this run")
    if chosen.disturbed:
        cautions.append(
            "another process slowed its cell down; it may cost less when measured again"
        )
    if reference is not None and reference is not chosen and reference.disturbed:
        cautions.append(
            "another process slowed the baseline's cell down; measure it again before you trust "
            "the saving"
        )
    if not chosen.ttft.certified:
        cautions.append(uncertified(chosen))
    if "resident" in cell.memory_kind:
        cautions.append(
            "measured on a CPU: the price is this machine's, and a GPU may rank the variants "
            "differently"
        )
    if significance.noise_floor is None:
        cautions.append("the baseline was not repeated, so the noise of this run is unknown")
    return (*cautions, *_gate_cautions(chosen))


def _few_starts(starts: int) -> str:
    caution = "one start per configuration shows no significant differences"
    if starts > 1:
        caution = f"{starts} starts per configuration show only large differences"
    return (
        f"{caution}; set load.trials to {_ENOUGH_STARTS} or more with load.order: interleaved, so "
        "that each trial is a start"
    )


def _lossless(record: QualityRecord | None) -> str | None:
    """Return that speculation changed no answer, or None if the check did not pass."""
    check = None if record is None else record.lossless
    if check is None or check.verdict != "pass" or check.parity is None:
        return None
    parity = check.parity
    own = "" if parity.aa_same is None else f", whose own repeat gives {parity.aa_same}"
    return (
        "no effect of speculation on answers was observed: "
        f"{parity.same} of {parity.prompts} greedy continuations equal the plain server's{own}"
    )


def _gate_cautions(chosen: EligibleCell) -> Iterator[str]:
    """Yield what the timed answers and the quality gate leave open."""
    timed, record = chosen.timed, chosen.quality
    if timed is None:
        yield "timed answers: not checked for degenerate text"
    elif timed.verdict == "unknown":
        yield f"timed answers: {timed.reason or 'whether they are degenerate text is unknown'}"
    if record is None:
        return
    reason = record.reason or ""
    if reason:
        yield f"quality: {reason}"
    speculates = chosen.cell.acceptance_length is not None
    for what, why in dict.fromkeys(_open_questions(record, speculates=speculates)):
        if why not in reason:
            yield f"{what}: {why}"


def _open_questions(record: QualityRecord, *, speculates: bool) -> Iterator[tuple[str, str]]:
    """Yield (what, why) of each check that was not made or not finished."""
    if record.lossless is None and speculates:
        yield "speculation", "whether it changes answers was not checked"
    elif record.lossless is not None and record.lossless.verdict == "unknown":
        yield (
            "speculation",
            next(iter(record.lossless.reasons), "whether it changes answers is open"),
        )
    if record.twin not in (None, record.variant) and record.twin_distances is None:
        yield "predictions", f"not compared with {record.twin}, which serves the same weights"
    if record.identity is not None and record.identity.missing is not None:
        yield "tokens", record.identity.missing
    for score in record.structured:
        if score.missing is not None:
            yield "structured output", score.missing


def _unsaved(saved: Estimate) -> Estimate:
    """Return the cost ratio that a saving came from."""
    return Estimate(
        value=1 - saved.value,
        low=None if saved.high is None else 1 - saved.high,
        high=None if saved.low is None else 1 - saved.low,
        samples=saved.samples,
    )
