"""A run's speed in the form of pytest-benchmark: seconds, with a round for each server start."""

from __future__ import annotations

import platform
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from whet.ci.figures import start_table
from whet.core.load_point import LoadPoint, load_key, load_words
from whet.core.run import Run
from whet.metrics import metrics_in
from whet.metrics.metric import RateMetric

_FORM: Final = "5.3.1"
"""The version of pytest-benchmark that this form is of."""


def benchmark_json(run: Run, variant: str) -> dict[str, Any]:
    """One benchmark for each speed metric and load; lower is better in each.

    Throughput is given as the seconds of an output token.
    """
    environment = run.require_environment()
    return {
        "machine_info": {
            "node": environment.device.name,
            "processor": environment.cpu,
            "machine": platform.machine(),
            "python_version": environment.python,
            "system": environment.os,
            "cpu": {"brand_raw": environment.cpu, "count": environment.cpu_count},
        },
        "commit_info": _commit_info(),
        "benchmarks": list(_benchmarks(run, variant)),
        "datetime": environment.started_at,
        "version": _FORM,
    }


def _benchmarks(run: Run, variant: str) -> Iterator[dict[str, Any]]:
    for metric in metrics_in("changes"):
        for load, block in start_table(run, metric).blocks.items():
            figures = block.figures.get(variant, {}).values()
            if isinstance(metric, RateMetric):
                name, seconds = metric.one, [1 / x for x in figures]
            elif metric.unit == "ms":
                name, seconds = metric.name.removesuffix("_ms"), [x / 1000 for x in figures]
            else:
                continue
            if seconds:
                yield _benchmark(name, variant, load, seconds)


def _benchmark(
    name: str, variant: str, load: LoadPoint, seconds: Sequence[float]
) -> dict[str, Any]:
    case = f"{name}[{variant}-{load_key(load)}]"
    return {
        "group": load_words(load),
        "name": case,
        "fullname": f"whet::{case}",
        "params": {"variant": variant, "load": float(load)},
        "param": f"{variant}-{load_key(load)}",
        "extra_info": {},
        "options": {},
        "stats": _stats(seconds),
    }


def _stats(seconds: Sequence[float]) -> dict[str, Any]:
    if len(seconds) > 1:
        low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    else:
        low = middle = high = seconds[0]
    mean, total = statistics.fmean(seconds), sum(seconds)
    spread = statistics.stdev(seconds) if len(seconds) > 1 else 0.0
    reach = 1.5 * (high - low)
    inside = [each for each in seconds if low - reach <= each <= high + reach]
    far = sum(abs(each - mean) > spread for each in seconds)
    return {
        "min": min(seconds),
        "max": max(seconds),
        "mean": mean,
        "stddev": spread,
        "rounds": len(seconds),
        "median": middle,
        "iqr": high - low,
        "q1": low,
        "q3": high,
        "iqr_outliers": len(seconds) - len(inside),
        "stddev_outliers": far,
        "outliers": f"{far};{len(seconds) - len(inside)}",
        "ld15iqr": min(inside),
        "hd15iqr": max(inside),
        "ops": len(seconds) / total,
        "total": total,
        "data": list(seconds),
        "iterations": 1,
    }


def _commit_info() -> dict[str, Any]:
    """The commit of the folder that the command runs in, as pytest-benchmark writes it."""
    commit = _git("rev-parse", "HEAD")
    return {
        "id": commit or "unversioned",
        "time": _git("show", "-s", "--format=%cI") or None,
        "author_time": _git("show", "-s", "--format=%aI") or None,
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "project": Path.cwd().name,
        "branch": _git("rev-parse", "--abbrev-ref", "HEAD") or "(unknown)",
    }


def _git(*words: str) -> str:
    """What git answers; empty outside of a repository and without git."""
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
