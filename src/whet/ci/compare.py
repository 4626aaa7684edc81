"""A candidate run against a stored baseline run; nothing is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whet.ci.answers import evidence_checks, quality_checks
from whet.ci.changes import changes
from whet.ci.objective import objective_checks
from whet.ci.options import CiOptions
from whet.ci.result import Check, CiResult, Sides
from whet.ci.speed import speed_checks
from whet.core.errors import MeasurementError, UsageError
from whet.core.names import did_you_mean
from whet.core.run import Run


def open_sides(candidate_dir: Path, against: Path, options: CiOptions) -> Sides:
    """Read both runs and find the variant to compare.

    Raises ``StorageError`` for a folder without a run, ``MeasurementError`` for an unfinished one,
    ``UsageError`` where the variant is not in both runs, or the baseline recommends none.
    """
    baseline, candidate = _finished(against), _finished(candidate_dir)
    variant = options.variant or _recommended(baseline)
    if variant not in baseline.engines:
        raise UsageError(
            f"the baseline {baseline.root} has not measured {variant!r}"
            f"{did_you_mean(variant, baseline.engines)}",
            fix=f"name a variant of it with --variant ({', '.join(baseline.engines)})",
        )
    if variant not in candidate.variants:
        raise UsageError(
            f"the candidate {candidate.root} has no variant {variant!r} "
            f"(it has {', '.join(candidate.variants)})",
            fix="add it to the candidate's spec, or compare another one with --variant",
        )
    return Sides(
        baseline=baseline,
        candidate=candidate,
        variant=variant,
        max_regression=options.max_regression,
    )


def compare_runs(sides: Sides) -> CiResult:
    """Hold the candidate against the baseline, check by check."""
    return CiResult(
        candidate=str(sides.candidate.root),
        baseline=str(sides.baseline.root),
        variant=sides.variant,
        max_regression=sides.max_regression,
        checks=tuple(_checks(sides)),
        changes=changes(sides),
    )


def _finished(root: Path) -> Run:
    run = Run.read(root)
    if run.unmeasured or run.decision is None:
        raise MeasurementError(f"{root} is unfinished: {run.missing[0]} Finish it: --resume")
    return run


def _recommended(baseline: Run) -> str:
    chosen = baseline.decision.recommendation if baseline.decision else None
    if chosen is None:
        raise UsageError(
            f"the baseline {baseline.root} recommends no variant",
            fix=f"name the deployed one with --variant ({', '.join(baseline.engines)})",
        )
    return chosen.variant


def _checks(sides: Sides) -> Iterator[Check]:
    refused = sides.candidate.left_out.get(sides.variant)
    if refused is not None:
        why = f"cannot run on the candidate's machine: {refused}"
        yield Check(group="evidence", name="variant", verdict="fail", sentence=why)
        return
    for checks in (evidence_checks, quality_checks, objective_checks, speed_checks):
        yield from checks(sides)
