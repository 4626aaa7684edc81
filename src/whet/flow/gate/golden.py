"""``whet quality --golden``: compare a deployment with stored golden probes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from whet.core.protocols import Observer
from whet.core.records.quality_checks import GoldenProbes
from whet.core.spec import EngineSpec
from whet.core.store import write_json
from whet.flow.gate.baseline import BASELINE, GOLDEN
from whet.flow.gate.endpoints import find_candidate, serve_candidate
from whet.flow.gate.options import QualityOptions
from whet.quality.asking import ModelEndpoint
from whet.quality.golden import read_golden, retake_golden
from whet.quality.golden_drift import GoldenDrift, add_start, compare_golden, starts_of

__all__ = ["GoldenDrift", "add_golden_start", "check_golden"]


def check_golden(
    ref: str, probes: Path, options: QualityOptions, observer: Observer
) -> GoldenDrift:
    """Ask the probes of ``probes`` again: a golden file, or the folder of a saved baseline.

    Raises as ``run_gate``; ``UsageError`` or ``StorageError`` if the file cannot be used.
    """
    before = read_golden(_golden_file(probes))
    return compare_golden(before, _retake(ref, before, options, observer))


def add_golden_start(ref: str, probes: Path, options: QualityOptions, observer: Observer) -> int:
    """Add this start of the server to the reference, and return how many starts it now has.

    Raises as ``check_golden``.
    """
    path = _golden_file(probes)
    before = read_golden(path)
    joined = add_start(before, _retake(ref, before, options, observer))
    write_json(path, joined)
    return len(starts_of(joined))


def _golden_file(probes: Path) -> Path:
    return probes / GOLDEN / f"{BASELINE}.json" if probes.is_dir() else probes


def _retake(
    ref: str, before: GoldenProbes, options: QualityOptions, observer: Observer
) -> GoldenProbes:
    """Ask the probes again on the server or checkpoint ``ref``."""
    observer.stage("reach", ref)
    candidate = find_candidate(ref, options.sides.model, flag="--model")
    longest = max(len(probe.prompt) for probe in before.probes) + 1
    with tempfile.TemporaryDirectory(prefix="whet-quality-") as scratch:
        log = Path(scratch) / "server.log"
        with serve_candidate(candidate, tokens=longest, spec=EngineSpec(), log=log) as server:
            observer.stage("ask", f"{len(before.probes)} golden probes")
            endpoint = ModelEndpoint(
                url=server.url,
                model=server.side.model,
                concurrency=options.measure.concurrency,
            )
            source = server.side.source
            retaken = retake_golden(endpoint, before, replace(source, variant=before.variant))
            server.ensure_alive()
    return retaken
