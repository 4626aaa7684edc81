"""From active detectors to what changed, by name, and to the spec of a run that decides again.

A person starts that run; it is restricted to the levers that a cause puts in question.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from whet.core.quote import yaml_text
from whet.core.redact import one_line
from whet.core.spec import Spec
from whet.core.store import write_atomic

ALL_LEVERS: Final = "all"
"""A new run measures every variant of the old one again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """A named fault.

    ``what`` changed: traffic, prompts, engine, model, machine or load. ``needs`` are the detectors
    that have to be active, ``without`` those that must not. ``hides`` are causes that it explains.
    ``levers`` are the names of ``whet.levers`` that a new run has to measure again (``all``: every
    variant), empty where no run can help. ``say`` is for a person.
    """

    name: str
    what: str
    say: str
    needs: frozenset[str]
    without: frozenset[str] = frozenset()
    hides: frozenset[str] = frozenset()
    levers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause that is present, with the figures that show it."""

    cause: Cause
    evidence: tuple[str, ...]


def _read_causes() -> Iterator[Cause]:
    """The rows of ``causes.csv``, the most certain first; names within a cell stand apart."""
    file = resources.files(__package__) / "causes.csv"
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        names = {key: frozenset(row[key].split()) for key in ("needs", "without", "hides")}
        levers = tuple(row["levers"].split())
        yield Cause(name=row["cause"], what=row["what"], say=row["says"], levers=levers, **names)


CAUSES: Final = tuple(_read_causes())

_GROUPS: Final[Mapping[str, frozenset[str]]] = {
    "any_acceptance": frozenset({"acceptance", "acceptance_day"}),
    "any_hits": frozenset({"prefix_hits", "prefix_hits_day"}),
    "kv": frozenset({"kv_cache", "preemptions"}),
}
_SLOW: Final = frozenset({"slower_than_measured", "first_token_slower"})
_BROKEN_CLAIM: Final = "claim_"
_FIELDS: Final[Mapping[str, Any]] = {
    "weights": "16bit",
    "speculation": None,
    "prefix_cache": False,
}
"""A variant's key for each lever that a cause names, and its value where the lever is off."""


def diagnose(active: Mapping[str, str]) -> list[Finding]:
    """The causes behind the active detectors (name → figures in words), the most certain first.

    A cause that another one explains is left out; its figures stay with that one.
    """
    names = set(active) | {group for group, any_of in _GROUPS.items() if any_of & set(active)}
    present = [c for c in CAUSES if c.needs <= names and not c.without & names]
    present = [*(_claim(name) for name in active if name.startswith(_BROKEN_CLAIM)), *present]
    hidden: set[str] = set()
    findings = []
    for cause in present:
        if cause.name in hidden or ("*" in hidden):
            continue
        hidden |= cause.hides
        findings.append(Finding(cause=cause, evidence=_evidence(cause, active)))
    return findings


def _claim(name: str) -> Cause:
    """A claim that the engine's own log contradicts after a start."""
    kind = name.removeprefix(_BROKEN_CLAIM)
    return Cause(
        name=name,
        what="engine",
        say=f"the engine's log contradicts the claim on {kind.replace('_', ' ')}",
        needs=frozenset({name}),
        hides=_SLOW,
        levers=(kind,),
    )


def _evidence(cause: Cause, active: Mapping[str, str]) -> tuple[str, ...]:
    wanted = set().union(*(_GROUPS.get(need, {need}) for need in cause.needs))
    return tuple(words for name, words in active.items() if name in wanted)


def proposed_spec(spec: Spec, variant: str, finding: Finding) -> dict[str, Any]:
    """The spec of a run that decides again, restricted to the levers in question.

    It measures the deployed variant, the baseline and the variants that differ from the deployed
    one in these levers only; one without the lever is added where the spec has none. A cause of
    load adds twice the largest concurrency.
    """
    data = spec.model_dump(mode="json", exclude_defaults=True)
    data["name"] = f"{spec.name}-{finding.cause.name}".replace("_", "-")
    data.pop("load", None)
    load = spec.load.model_dump(mode="json", exclude_defaults=True)
    if finding.cause.levers != (ALL_LEVERS,):
        data["variants"] = dict(_restricted(spec, variant, finding.cause.levers))
    if finding.cause.what == "load" and spec.load.concurrency:
        load["concurrency"] = [*spec.load.concurrency, 2 * max(spec.load.concurrency)]
    return data | {"load": load}


def _restricted(
    spec: Spec, variant: str, levers: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, Any]]]:
    written = {
        name: item.model_dump(mode="json", exclude_defaults=True)
        for name, item in spec.variants.items()
    }
    deployed = written[variant]
    fields = [lever for lever in levers if lever in _FIELDS]
    for name, item in written.items():
        if name == spec.baseline or _without(item, fields) == _without(deployed, fields):
            yield name, item
    for field in fields:
        off = _without(deployed, [field])
        if deployed.get(field) not in (None, _FIELDS[field]) and off not in written.values():
            yield f"{variant}-no-{field}".replace("_", "-"), off


def _without(item: Mapping[str, Any], fields: list[str]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in fields}


def write_proposal(folder: Path, spec: Spec, variant: str, finding: Finding) -> Path:
    """Write the spec as ``CAUSE.yaml`` and return its path."""
    path = folder / f"{finding.cause.name}.yaml"
    words = [f"# {finding.cause.say}.", *(f"#   {one_line(item)}" for item in finding.evidence)]
    if spec.traffic is not None and finding.cause.what in ("traffic", "prompts"):
        words.append("# Put today's request log at traffic.log: the one below is the old run's.")
    words.append(f"# Start it: whet run {path.name}")
    body = yaml_text(proposed_spec(spec, variant, finding))
    write_atomic(path, "\n".join([*words, body]))
    return path
