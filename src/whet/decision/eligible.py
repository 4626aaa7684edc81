"""Which cells may be recommended: complete, error-free, real answers, every claim proved."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from whet.core.records.decision import GREEDY_ONLY, Excluded, ExclusionKind, Fleet
from whet.core.records.evidence import SUFFICIENT, Verdict
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import DegenerateTraffic, GateVerdict, LosslessCheck
from whet.core.records.summary import CellSummary, Estimate
from whet.core.spec import ObjectiveSpec
from whet.core.units import HOURS_PER_MONTH
from whet.metrics.pooled import Cell, StartTable

_TOLERANCE_STEP = 1e-9
_ROUNDING = 1e-9
"""1.1 ÷ 0.1 is 11.000000000000002, which is 11 servers and not 12."""
Unfit = tuple[ExclusionKind, str]
"""Why a variant is not recommended, whatever its figures: a kind and a reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TierInputs:
    """One machine's run. ``quality`` maps a variant's name to its record.

    ``tables`` have the figures of every start by metric. ``confirmation`` are the cells that were
    measured again after the selection, ``fresh`` their starts, and ``looks`` how often the starts
    were to be looked at while they grew. ``degenerate`` maps a variant's name to the check of its
    timed answers. ``price_usd_per_hour`` is one server's; ``demand_rps`` what all together
    take, None for closed loops.

    ``faults`` maps a variant to what its engine build is known to get wrong in such requests as the
    traffic has, ``limits`` to what it gets wrong in others. ``speculating`` are the variants
    that draft. ``sampled`` says which requests of the traffic may be sampled, None where all are
    greedy. ``dropped`` maps a variant whose answers a search did not check to the reason.
    """

    tier: str
    cells: Sequence[CellSummary]
    quality: Mapping[str, QualityRecord]
    verdicts: Sequence[Verdict]
    tables: Mapping[str, StartTable]
    price_usd_per_hour: float = 0.0
    demand_rps: float | None = None
    confirmation: Sequence[CellSummary] = ()
    fresh: Mapping[str, StartTable] = field(default_factory=dict)
    looks: int = 1
    degenerate: Mapping[str, DegenerateTraffic] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    speculating: Collection[str] = ()
    sampled: str | None = None
    dropped: Mapping[str, Unfit] = field(default_factory=dict)

    @property
    def throughput(self) -> StartTable:
        """Output tokens a second; cost at one price is its inverse."""
        return self.tables["tps_mean"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionInputs:
    """All inputs of ``decide``.

    ``reference`` is the variant that savings are against.
    """

    baseline: str
    reference: str
    tiers: Sequence[TierInputs]
    objective: ObjectiveSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class EligibleCell:
    """An eligible cell with its cost, its tail TTFT and its quality.

    ``accepted`` are its claims that count without proof, each as ``kind (statement)``. ``unfit`` is
    why its variant is not recommended all the same, ``limits`` what a recommendation of it leaves
    open. ``lower`` are its variant's cells at lower rates, each with its newest figures.
    """

    tier: str
    cell: CellSummary
    cost: Estimate
    ttft: Estimate
    quality: QualityRecord | None
    accepted: tuple[str, ...] = ()
    unfit: Unfit | None = None
    limits: tuple[str, ...] = ()
    fleet: Fleet | None = None
    lower: tuple[CellSummary, ...] = ()

    @property
    def place(self) -> Cell:
        """The variant and the concurrency."""
        return self.cell.variant, self.cell.load

    @property
    def usd(self) -> float:
        """What cells are ranked by: dollars a month for the demand, else for a million tokens."""
        return self.cost.value if self.fleet is None else self.fleet.usd_per_month


def split_eligible(
    inputs: TierInputs, *, again: bool = False
) -> tuple[list[EligibleCell], list[Excluded]]:
    """Return the tier's eligible cells, and every other cell with the reason for its exclusion.

    With ``again`` of the cells that were measured again.
    A variant that passes the quality gate at no tolerance, or is unfit, is excluded by name as
    well; its cells stay eligible, so that the matrix can report how near they came.
    """
    eligible, excluded = [], []
    newest = {(each.variant, each.load): each for each in (*inputs.cells, *inputs.confirmation)}
    rates = [x for x in newest.values() if x.load.is_open and x.status == "complete"]
    for cell in inputs.confirmation if again else inputs.cells:
        claim = unproved(cell, inputs.verdicts)
        why = _unfinished(cell) or _garbled(inputs.degenerate.get(cell.variant))
        why = why or (None if claim is None else ("evidence", claim))
        if why is not None:
            excluded.append(
                Excluded(
                    variant=cell.variant,
                    load=cell.load,
                    reason=why[1],
                    tier=inputs.tier,
                    kind=why[0],
                )
            )
        elif cell.cost_per_1m_tokens is not None and cell.ttft_p95_ms is not None:
            eligible.append(
                EligibleCell(
                    tier=inputs.tier,
                    cell=cell,
                    cost=cell.cost_per_1m_tokens,
                    ttft=cell.ttft_p95_ms,
                    quality=inputs.quality.get(cell.variant),
                    accepted=_accepted(cell, inputs.verdicts),
                    unfit=_unfit(cell, inputs),
                    limits=_limits_of(cell, inputs),
                    fleet=_fleet(cell, inputs),
                    lower=tuple(
                        x for x in rates if x.variant == cell.variant and x.load < cell.load
                    ),
                )
            )
    named: dict[str, Unfit] = {}
    for item in eligible:
        name, reason = item.cell.variant, quality_words(item.quality)
        if item.quality is None:
            named[name] = inputs.dropped.get(name, ("answers not checked", reason))
        elif not passes_somewhere(item.quality):
            named[name] = "quality", reason
        elif item.unfit is not None:
            named[name] = item.unfit
    excluded += (
        Excluded(variant=variant, load=None, reason=reason, tier=inputs.tier, kind=kind)
        for variant, (kind, reason) in named.items()
    )
    return eligible, excluded


def _unfinished(cell: CellSummary) -> Unfit | None:
    """Return why a cell's figures are not a result, or None."""
    if cell.status != "complete":
        why = f": {cell.failure}" if cell.failure else ""
        return cell.status, f"the cell is {cell.status}{why}"
    if cell.errors:
        return "failed requests", f"{cell.errors} of {cell.requests} requests failed"
    missing = [
        name
        for name, figure in (("cost", cell.cost_per_1m_tokens), ("TTFT p95", cell.ttft_p95_ms))
        if figure is None
    ]
    return ("no figures", f"no {' and no '.join(missing)} was measured") if missing else None


def _garbled(timed: DegenerateTraffic | None) -> Unfit | None:
    """Return that the timed answers are degenerate text, or None."""
    if timed is None or timed.verdict != "fail":
        return None
    reason = timed.reason or f"{sum(count for _, count in timed.found)} of {timed.answers}"
    return "degenerate text", f"its timed answers are degenerate text: {reason}"


def unproved(cell: CellSummary, verdicts: Sequence[Verdict]) -> str | None:
    """Return which claim of the cell lacks evidence, in words, or None if all are proved.

    A claim judged once per server holds for all its cells. A claim judged per cell needs a verdict
    at this concurrency: a verdict at another one proves nothing here.
    """
    own = [verdict for verdict in verdicts if verdict.variant == cell.variant]
    if not own:
        return "no evidence of what was running was recorded"
    for verdict in own:
        here = verdict.load in (None, cell.load)
        if here and verdict.outcome not in SUFFICIENT:
            return f"{verdict.claim.statement}: {verdict.outcome} ({verdict.observed})"
    # By kind: the statement of a claim may differ between concurrencies.
    judged = {verdict.claim.kind for verdict in own if verdict.load == cell.load}
    for verdict in own:
        if verdict.claim.per_cell and verdict.claim.kind not in judged:
            return f"{verdict.claim.statement}: not judged at this load"
    return None


def _fleet(cell: CellSummary, inputs: TierInputs) -> Fleet | None:
    """Return how many servers at the cell's rate take the demand, None for a closed loop."""
    rate = cell.load.rate_rps
    if inputs.demand_rps is None or rate is None:
        return None
    servers = math.ceil(inputs.demand_rps / rate - _ROUNDING)
    return Fleet(
        demand_rps=inputs.demand_rps,
        rate_rps=inputs.demand_rps / servers,
        servers=servers,
        usd_per_month=servers * inputs.price_usd_per_hour * HOURS_PER_MONTH,
    )


def _accepted(cell: CellSummary, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the claims of a cell that count without proof."""
    return tuple(
        f"{verdict.claim.kind} ({verdict.claim.statement})"
        for verdict in verdicts
        if (verdict.variant, verdict.outcome) == (cell.variant, "accepted")
        and verdict.load in (None, cell.load)
    )


def _unfit(cell: CellSummary, inputs: TierInputs) -> Unfit | None:
    """Return why the variant's answers are known to be wrong, or were not checked, or None."""
    if fault := inputs.faults.get(cell.variant):
        return "known fault", fault
    speculates = cell.variant in inputs.speculating or cell.acceptance_length is not None
    record = inputs.quality.get(cell.variant)
    if record is None or not speculates:  # without a record the gate excludes it
        return None
    why = _not_compared(record.lossless, inputs.sampled)
    return None if why is None else ("not checked", f"whether speculation changes {why}")


def _not_compared(check: LosslessCheck | None, sampled: str | None) -> str | None:
    """Return which answers were not compared with a plain server's, and the fix, or None."""
    if check is None:
        return (
            "answers was not checked; measure it in one run with a variant with the same weights "
            "and no speculation, and quality.lossless_prompts above 0"
        )
    if check.verdict != "pass":
        reason = next(iter(check.reasons), "the check did not finish")
        return f"answers is {check.verdict}: {reason}"
    if check.sampling is None and sampled is not None:
        return f"sampled answers was not checked, and {sampled}; set quality.sampled: true"
    return None


def _limits_of(cell: CellSummary, inputs: TierInputs) -> tuple[str, ...]:
    """Return what a recommendation of this cell leaves open, in sentences without a full stop."""
    known, record = inputs.limits.get(cell.variant, ()), inputs.quality.get(cell.variant)
    limits = [*known, *_timed(inputs.degenerate.get(cell.variant))]
    if record is not None:
        limits += [f"quality: {record.reason}"] if record.reason else []
        limits += (
            f"{what}: {why}"
            for what, why in _open_checks(record, known=any(GREEDY_ONLY in each for each in known))
            if why not in (record.reason or "")
        )
    return tuple(dict.fromkeys(limits))


def _timed(timed: DegenerateTraffic | None) -> Iterator[str]:
    if timed is None:
        yield "timed answers: not checked for degenerate text"
    elif timed.verdict == "unknown":
        yield f"timed answers: {timed.reason or 'whether they are degenerate text is unknown'}"


def _open_checks(record: QualityRecord, *, known: bool) -> Iterator[tuple[str, str]]:
    """Yield (what, why) of each check that was not made or not finished.

    ``known``: a fault of sampled text is stated already.
    """
    check = record.lossless
    if check is not None and check.verdict == "unknown":
        yield "speculation", next(iter(check.reasons), "whether it changes answers is open")
    elif check is not None and check.sampling is None and not known:
        yield GREEDY_ONLY, "whether speculation changes sampled answers was not checked"
    if record.twin not in (None, record.variant) and record.twin_distances is None:
        yield "predictions", f"not compared with {record.twin}, which serves the same weights"
    if record.identity is not None and record.identity.missing is not None:
        yield "tokens", record.identity.missing


def quality_verdict(record: QualityRecord | None, tolerance: float) -> GateVerdict:
    """Return the verdict at a tolerance, ``unknown`` if the quality was not measured."""
    for at, verdict in () if record is None else record.verdicts:
        if abs(at - tolerance) < _TOLERANCE_STEP:
            return verdict
    return "unknown"


def passes_somewhere(record: QualityRecord | None) -> bool:
    """Return whether the variant passes at some tolerance."""
    return record is not None and any(verdict == "pass" for _, verdict in record.verdicts)


def quality_words(record: QualityRecord | None) -> str:
    """Return why a variant does not pass the quality gate."""
    if record is None:
        return "its answers were not checked"
    failed = any(verdict == "fail" for _, verdict in record.verdicts)
    word = "its quality fails" if failed else "its quality is unknown"
    return word if record.reason is None else f"{word}: {record.reason}"
