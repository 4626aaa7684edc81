"""Whether the candidate's features are proved, its answers still right and its limits met."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from whet.ci.result import Check, Sides, Word
from whet.core.format import number, percent, plural
from whet.core.load import loads_words
from whet.core.records.evidence import Evidence, Verdict
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import GateVerdict
from whet.core.run import Run
from whet.decision.eligible import quality_verdict
from whet.decision.matrix import meets_limit, recommended_point
from whet.quality import rejudge
from whet.report.text import shown

_OUTCOMES: Final[Mapping[Evidence, GateVerdict]] = {
    "contradicted": "fail",
    "unproved": "unknown",
    "accepted": "pass",
    "proved": "pass",
}
"""The worst first."""


def evidence_checks(sides: Sides) -> Iterator[Check]:
    """Each claim over the server and all loads; the worst outcome counts."""
    before, after = (_by_claim(run, sides.variant) for run in (sides.baseline, sides.candidate))
    for kind in {**before, **after}:
        verdict, sentence = _proved(sides, after.get(kind, []), any_claim=bool(after))
        yield Check(group="evidence", name=f"evidence: {kind}", verdict=verdict, sentence=sentence)


def _by_claim(run: Run, variant: str) -> dict[str, list[Verdict]]:
    claims = defaultdict(list)
    for verdict in run.verdicts:
        if verdict.variant == variant:
            claims[verdict.claim.kind].append(verdict)
    return dict(claims)


def _proved(sides: Sides, verdicts: list[Verdict], *, any_claim: bool) -> tuple[GateVerdict, str]:
    if not any_claim:
        return "unknown", "no evidence of what was running was recorded; run the candidate again"
    if not verdicts:
        return "fail", "the baseline proves it and the candidate no longer claims it"
    worst = min(verdicts, key=lambda each: list(_OUTCOMES).index(each.outcome))
    judged = {each.load for each in verdicts}
    lacking = [load for load in sides.loads if not judged & {None, load}]
    sentence = f"{worst.outcome}: {worst.observed}"
    if _OUTCOMES[worst.outcome] != "pass":
        sentence = f"{worst.claim.statement}: {sentence}"
    if lacking and _OUTCOMES[worst.outcome] == "pass":
        return "unknown", f"{sentence}; not judged at {loads_words(lacking)}"
    return _OUTCOMES[worst.outcome], sentence


def quality_checks(sides: Sides) -> Iterator[Check]:
    """The candidate's own gate, and its figures against those of the baseline run."""
    record = sides.candidate.quality.get(sides.variant)
    before = sides.baseline.quality.get(sides.variant)
    tolerance = _tolerance(sides.baseline)
    if record is None:
        why = sides.candidate.store.reason("quality", sides.variant) or "it was not measured"
        yield _quality("quality gate", "unknown", f"the candidate has no quality record: {why}")
        return
    verdict = quality_verdict(record, tolerance)
    sentence = f"against its own run's {record.baseline} at {100 * tolerance:g}%"
    if tolerance not in dict(record.verdicts):
        sentence += ", which the candidate's objective.quality does not name"
    yield _quality("quality gate", verdict, _with_reason(sentence, record.reason))
    if before is None:
        sentence = f"the baseline has no quality record of {sides.variant}"
        yield _quality("answers against the baseline", "unknown", sentence)
        return
    yield _against(rejudge(record, before, (tolerance,)), tolerance)


def _against(record: QualityRecord, tolerance: float) -> Check:
    ratio, words = record.perplexity_ratio, []
    if ratio is not None:
        documents = plural(len(record.nll), "document")
        words.append(f"perplexity {shown(ratio, unit='+%').full} on {documents}")
    flips = [f"{s.task} {s.lost} lost, {s.gained} gained" for s in record.tasks if s.lost]
    if record.tasks and ratio is not None and not flips:
        words.append(f"no answer lost in {plural(len(record.tasks), 'task')}")
    return Check(
        group="quality",
        name="answers against the baseline",
        verdict=quality_verdict(record, tolerance),
        sentence=_with_reason(", ".join([*words, *flips]), record.reason),
        change=ratio,
    )


def _with_reason(sentence: str, reason: str | None) -> str:
    return "; ".join(filter(None, (sentence, reason)))


def _tolerance(baseline: Run) -> float:
    """The quality tolerance that the baseline's recommendation was made for."""
    return baseline.require_spec().objective.recommend_quality


def _quality(name: str, verdict: GateVerdict, sentence: str) -> Check:
    return Check(group="quality", name=name, verdict=verdict, sentence=sentence)


def objective_checks(sides: Sides) -> Iterator[Check]:
    """Hold each limit against the candidate's interval; ``no`` fails, ``unknown`` only advises.

    A cell that did not qualify in the baseline is not held to the limits.
    """
    load, run = sides.load, sides.baseline
    cell = None if load is None else sides.candidate.cell(sides.variant, load)
    if load is None or cell is None or load not in sides.qualified or sides.lost_cell(load):
        return
    point = recommended_point(run.tier, run.require_spec().objective)
    for metric, limit, figure in point.bounds(cell):
        one_start = figure is None or figure.low is None
        is_open = sides.other_machine or one_start
        meets = "unknown" if is_open else meets_limit(figure, limit)
        why = sides.other_machine or f"{shown(figure).full} ms, limit {number(limit)} ms"
        verdict: Word = "fail" if meets == "no" else "pass"
        yield Check(
            group="objective",
            name=f"{metric.title} limit, {load.words}",
            verdict="not distinguished" if meets == "unknown" else verdict,
            sentence=f"{meets}: {why}",
            role="advisory" if meets == "unknown" else "required",
        )
    for name, floor, rate in point.below_floor(cell):
        yield Check(
            group="objective",
            name=f"{name} limit, {load.words}",
            verdict="fail",
            sentence=f"no: {percent(rate)}, below {percent(floor)}",
        )
