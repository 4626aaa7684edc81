"""From a cause to a spec for a new run, and from that run to a proposal that a person decides."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from whet.core.errors import StorageError, UsageError
from whet.core.records import Decision
from whet.core.run import Run
from whet.core.spec import Spec
from whet.core.store import translate_disk_errors, write_atomic
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
    load adds twice the largest batch size.
    """
    data = spec.model_dump(mode="json", exclude_defaults=True)
    data["name"] = f"{spec.name}-{finding.cause.name}".replace("_", "-")
    data.pop("load", None)
    load = spec.load.model_dump(mode="json", exclude_defaults=True)
    if finding.cause.levers != (ALL_LEVERS,):
        variants = dict(_restricted(spec, variant, finding.cause.levers))
        data["variants"] = variants
        groups = (
            [name for name in group if name in variants] for group in load.get("together", [])
        )
        load["together"] = [group for group in groups if len(group) > 1]
    if finding.cause.what == "load" and spec.load.batch_sizes:
        load["batch_sizes"] = [*spec.load.batch_sizes, 2 * max(spec.load.batch_sizes)]
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
    words = [f"# {finding.cause.say}.", *(f"#   {line}" for line in finding.evidence)]
    if spec.traffic is not None and finding.cause.what in ("traffic", "prompts"):
        words.append("# Put today's request log at traffic.log: the one below is the old run's.")
    words.append(f"# Start it: whet run {path.name}")
    body = yaml.safe_dump(
        proposed_spec(spec, variant, finding), sort_keys=False, allow_unicode=True
    )
    write_atomic(path, ("\n".join(words) + "\n" + body).encode())
    return path


@dataclass
class Retune:
    """A run of a proposed spec on a device of its own, beside the watch."""

    spec_file: Path
    variant: str
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, spec_file: Path, variant: str, device: str) -> Retune:
        """Start ``whet run`` on ``device`` in a process group of its own."""
        command = [sys.executable, "-m", "whet", "run", str(spec_file), "--quiet"]
        command += ["--output-dir", str(spec_file.parent / "runs"), "--name", spec_file.stem]
        path = spec_file.with_suffix(".log")
        with translate_disk_errors(path), path.open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": visible_devices(device)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(spec_file=spec_file, variant=variant, process=process)

    def finished(self) -> Path | None:
        """The proposal once the run has ended, else None."""
        if self.process.poll() is None:
            return None
        path = self.spec_file.with_suffix(".md")
        write_atomic(path, self._words().encode())
        return path

    def stop(self) -> None:
        """End the run; what it measured is kept and --resume goes on."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def _words(self) -> str:
        root = self.spec_file.parent / "runs" / self.spec_file.stem
        try:
            decision = Run.read(root).decision
        except StorageError:
            decision = None
        return "\n".join(_proposal(root, self.variant, decision)) + "\n"


def _proposal(root: Path, variant: str, decision: Decision | None) -> Iterator[str]:
    yield f"# Proposal after {root.name}\n"
    chosen = None if decision is None else decision.recommendation
    if chosen is None:
        yield f"The run recommends nothing; read {root / 'report.md'}. Nothing was switched."
        return
    cost = f"${chosen.cost_per_1m_tokens.value:.4g} per 1M output tokens"
    if chosen.variant == variant:
        yield f"Keep {variant}: it is still the cheapest that qualifies ({cost}, {chosen.result})."
        yield "Deploy this run, so that the alerts get its thresholds:"
    else:
        yield f"Deploy {chosen.variant} instead of {variant} ({cost}, {chosen.result})."
        yield "Nothing was switched; to do it:"
    yield f"\n    whet deploy {root}"


def visible_devices(device: str) -> str:
    """``CUDA_VISIBLE_DEVICES`` for ``cpu`` or ``cuda:1``; ``UsageError`` for anything else."""
    kind, _, number = device.partition(":")
    if kind == "cpu" and not number:
        return ""
    if kind == "cuda" and number.isdecimal():
        return number
    raise UsageError(f"--retune {device} is not a device; write cpu, or cuda:1 for the second GPU")
