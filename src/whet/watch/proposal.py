"""From a cause to the spec of a new run, which a person starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from whet.core.quote import yaml_text
from whet.core.redact import one_line
from whet.core.spec import Spec
from whet.core.store import write_atomic
from whet.watch.causes import ALL_LEVERS, Finding

_FIELDS: Final[Mapping[str, Any]] = {
    "weights": "16bit",
    "speculation": None,
    "prefix_cache": False,
}
"""A variant's key for each lever that a cause names, and its value where the lever is off."""


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
    others = {
        name
        for name, item in written.items()
        if _without(item, fields) == _without(deployed, fields)
    }
    for name in spec.variants:
        if name in (spec.baseline, variant) or name in others:
            yield name, written[name]
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
