"""This project's side of the comparison: ``python -m benchmarks.quantizer_whet JOB RESULT``."""

from __future__ import annotations

import time

_STARTED_NS = time.monotonic_ns()

import json  # noqa: E402  the clock starts before anything is imported
import sys  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import whet.quant.layer_pass  # noqa: E402  brings torch, which is imported late otherwise
from whet.core.provenance import installed  # noqa: E402
from whet.core.records.quant import QuantizedCheckpoint  # noqa: E402
from whet.core.spec import RecipeSpec  # noqa: E402
from whet.core.units import NS_PER_S  # noqa: E402
from whet.quant import quantize  # noqa: E402

_LOADING = ("read",)
_SAVING = ("write", "verify")
_PACKAGES = ("torch", "transformers", "compressed-tensors")


def main() -> None:
    """Quantize as the job says, and write where the time went."""
    import_s = (time.monotonic_ns() - _STARTED_NS) / NS_PER_S
    job_file, answer = map(Path, sys.argv[1:])
    job = json.loads(job_file.read_text(encoding="utf-8"))
    started_ns = time.monotonic_ns()
    done = quantize(
        Path(job["source"]),
        Path(job["out"]),
        recipe_of(job),
        calibration=Path(job["calibration"]),
        device=job["device"],
    )
    whole_s = (time.monotonic_ns() - started_ns) / NS_PER_S
    result = {
        "import_s": import_s,
        **split(done, whole_s),
        "resident_bytes": resident_bytes(),
        "allocated_bytes": done.peak_memory_bytes,
        "samples": done.calibration.samples if done.calibration else 0,
        "tokens": done.calibration.tokens if done.calibration else 0,
        "versions": {"whet": whet.__version__}
        | {name: installed(name) or "" for name in _PACKAGES},
        "phases": {phase.name: phase.seconds for phase in done.phases},
    }
    answer.write_text(json.dumps(result), encoding="utf-8")


def recipe_of(job: Mapping[str, Any]) -> RecipeSpec:
    """The recipe that a job names."""
    wanted = {name: job[name] for name in ("samples", "max_tokens", "seed")}
    return RecipeSpec.model_validate(
        {
            "method": job["method"],
            "scheme": job["scheme"],
            "group_size": job["group_size"],
            "calibration": wanted,
        }
    )


def split(done: QuantizedCheckpoint, whole_s: float) -> dict[str, float]:
    """``whole_s`` in three: what is neither reading nor writing is work.

    Reading has the time before the record's own clock: the source is read and hashed there.
    """
    spent = {phase.name: phase.seconds for phase in done.phases}
    load_s = sum(spent.get(name, 0.0) for name in _LOADING) + max(0.0, whole_s - done.seconds)
    save_s = sum(spent.get(name, 0.0) for name in _SAVING)
    return {"load_s": load_s, "work_s": max(0.0, whole_s - load_s - save_s), "save_s": save_s}


def resident_bytes() -> int:
    """Resident memory at its highest since this program began (``ru_maxrss`` has the parent's)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
