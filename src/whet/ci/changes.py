"""What differs between two runs, as information beside the verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from whet.ci.result import Change, Sides, machine_words
from whet.core.run import Run
from whet.core.spec import redacted_spec

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
    """The first trial's traffic at each load."""
    for key, workload in run.workloads.items():
        if key.endswith("-t0"):
            yield (
                f"traffic {key.removesuffix('-t0')}",
                f"{workload.sha256[:_DIGITS]} ({workload.input_tokens_mean:.0f} tokens in, "
                f"{workload.output_tokens_mean:.0f} out)",
            )


def _spec_keys(run: Run, variant: str) -> dict[str, str]:
    """Every key of the spec that concerns the variant, by its dotted path."""
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
