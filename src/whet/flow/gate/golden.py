"""``whet quality --golden``: compare a deployment with stored golden probes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from whet.core.protocols import Observer
from whet.flow.gate.baseline import BASELINE, GOLDEN
from whet.flow.gate.endpoints import find_candidate, serve_candidate
from whet.flow.gate.request import GateRequest
from whet.quality.asking import ModelEndpoint
from whet.quality.golden import read_golden, retake_golden
from whet.quality.golden_drift import GoldenDrift, compare_golden

__all__ = ["GoldenDrift", "check_golden"]


def check_golden(ref: str, probes: Path, request: GateRequest, observer: Observer) -> GoldenDrift:
    """Ask the probes of ``probes`` again: a golden file, or the folder of a saved baseline.

    Raises as ``run_gate``; ``UsageError`` or ``StorageError`` if the file cannot be used.
    """
    path = probes / GOLDEN / f"{BASELINE}.json" if probes.is_dir() else probes
    before = read_golden(path)
    observer.stage("reach", ref)
    candidate = find_candidate(ref, request.model, flag="--model")
    longest = max(len(probe.prompt) for probe in before.probes) + 1
    with tempfile.TemporaryDirectory(prefix="whet-quality-") as scratch:
        log = Path(scratch) / "server.log"
        with serve_candidate(candidate, tokens=longest, spec=request.engine, log=log) as server:
            observer.stage("ask", f"{len(before.probes)} golden probes")
            endpoint = ModelEndpoint(
                url=server.url,
                model=server.side.model,
                concurrency=request.quality.concurrency,
            )
            source = server.side.source
            retaken = retake_golden(endpoint, before, replace(source, variant=before.variant))
            server.ensure_alive()
    return compare_golden(before, retaken)
