"""A candidate run against a stored baseline run, and what differs between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from whet.ci.answers import evidence_checks, objective_checks, quality_checks
from whet.ci.options import CiOptions
from whet.ci.result import Change, Check, CiResult, Sides, machine_words
from whet.ci.speed import advisory_checks, lost_checks, primary_check
from whet.core.errors import MeasurementError, UsageError
from whet.core.names import did_you_mean
from whet.core.run import Run
from whet.core.spec import redacted_spec


def open_sides(candidate_dir: Path, against: Path, options: CiOptions) -> Sides:
    """Read both runs and find the variant to compare.

    Raises ``StorageError`` for a folder without a run, ``MeasurementError`` for an unfinished one,
    ``UsageError`` where the variant is not in both runs, or the baseline recommends none.
    """
    baseline, candidate = _finished(against), _finished(candidate_dir)
    measured = list(dict.fromkeys(x.variant for x in baseline.cells if x.status == "complete"))
    variant = options.variant or _recommended(baseline, measured)
    if variant not in measured:
        why = next((x.failure for x in baseline.cells if x.variant == variant and x.failure), None)
        raise UsageError(
            f"the baseline {baseline.root} has no figures of {variant!r}"
            f"{did_you_mean(variant, measured) if why is None else f': {why}'}",
            fix=f"name a variant of it with --variant ({', '.join(measured)})",
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
    """Compare the candidate with the baseline, check by check; the primary one comes first."""
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
        raise MeasurementError(
            f"{root} is unfinished: {run.missing[0]}", fix=f"finish it with {run.resume_command}"
        )
    return run


def _recommended(baseline: Run, measured: Sequence[str]) -> str:
    chosen = baseline.decision.recommendation if baseline.decision else None
    if chosen is None:
        raise UsageError(
            f"the baseline {baseline.root} recommends no variant",
            fix=f"name the deployed one with --variant ({', '.join(measured)})",
        )
    return chosen.variant


def _checks(sides: Sides) -> Iterator[Check]:
    refused = sides.candidate.left_out.get(sides.variant)
    if refused is not None:
        why = f"cannot run on the candidate's machine: {refused}"
        yield Check(group="evidence", name="variant", verdict="fail", sentence=why)
        return
    yield primary_check(sides)
    for checks in (
        evidence_checks,
        quality_checks,
        objective_checks,
        lost_checks,
        advisory_checks,
    ):
        yield from checks(sides)


_DIGITS: Final = 12
_ABSENT: Final = "none"
_BY_CONTENT: Final = (
    "name",
    "model.target",
    "model.draft",
    "traffic.log",
    "load.trace",
    "quality.heldout",
    "quality.tasks",
)
"""Paths, which differ between checkouts: the facts have hashes of what is stored there."""


def changes(sides: Sides) -> tuple[Change, ...]:
    """Machine, engine, packages, weights, traffic, questions and keys of the spec that differ."""
    before, after = (
        {**_facts(run, sides.variant), **_spec_keys(run, sides.variant)}
        for run in (sides.baseline, sides.candidate)
    )
    return tuple(
        Change(what=key, baseline=before.get(key, _ABSENT), candidate=after.get(key, _ABSENT))
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    )


def _facts(run: Run, variant: str) -> dict[str, str]:
    environment, engine = run.require_environment(), run.engines.get(variant)
    facts = {"machine": machine_words(run), "driver": environment.device.driver or _ABSENT}
    if engine is not None:
        facts["engine"] = f"{engine.engine} {engine.engine_version}"
    facts |= {f"package {name}": version for name, version in environment.packages}
    for role, model in run.models.items():
        facts[f"{role} weights"] = model.weights_sha256[:_DIGITS]
        facts[f"{role} chat template"] = (model.tokenizer.chat_template_sha256 or _ABSENT)[:_DIGITS]
    for name in run.quantized.keys() & run.require_spec().recipes_of(variant):
        facts[f"weights of recipe {name}"] = run.quantized[name].weights_sha256[:_DIGITS]
    record = run.quality.get(variant)
    if record is not None and record.data_sha256 is not None:
        facts["quality questions"] = record.data_sha256[:_DIGITS]
    return facts | dict(_traffic(run))


def _traffic(run: Run) -> Iterator[tuple[str, str]]:
    """Return the first trial's traffic at each load."""
    for key, workload in run.workloads.items():
        if key.endswith("-t0"):
            yield (
                f"traffic {key.removesuffix('-t0')}",
                f"{workload.sha256[:_DIGITS]} ({workload.input_tokens_mean:.0f} tokens in, "
                f"{workload.output_tokens_mean:.0f} out)",
            )


def _spec_keys(run: Run, variant: str) -> dict[str, str]:
    """Return every key of the spec that concerns the variant, by its dotted path."""
    spec = redacted_spec(run.require_spec().model_dump(mode="json"))
    used = {"variants": {variant}, "recipes": set(run.require_spec().recipes_of(variant))}
    for section, names in used.items():
        spec[section] = {name: item for name, item in spec[section].items() if name in names}
    return {key: value for key, value in _flat(spec) if key not in _BY_CONTENT}


def _flat(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", json.dumps(value, ensure_ascii=False)
