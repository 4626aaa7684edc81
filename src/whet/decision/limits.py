"""What a recommendation must not hide: open checks, and known faults of an engine build."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whet.core.records.decision import ExclusionKind
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import DegenerateTraffic, LosslessCheck
from whet.core.records.summary import CellSummary
from whet.decision.inputs import TierInputs

GREEDY_ONLY: Final = "greedy requests only"
Unfit = tuple[ExclusionKind, str]
"""Why a variant is not recommended, whatever its figures: a kind and a reason."""


def unfit(cell: CellSummary, inputs: TierInputs) -> Unfit | None:
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


def limits_of(cell: CellSummary, inputs: TierInputs) -> tuple[str, ...]:
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
