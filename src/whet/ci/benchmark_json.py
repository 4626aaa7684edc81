"""A run's speed in the form of pytest-benchmark: seconds, one round per server start."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from whet.ci.figures import start_table
from whet.core.load import Load
from whet.core.run import Run
from whet.metrics import metrics_in
from whet.metrics.metric import RateMetric

_FORM: Final = "5.3.1"
"""Version of pytest-benchmark whose format is written."""


def benchmark_json(run: Run, variant: str) -> dict[str, Any]:
    """Return one benchmark per speed metric and load; lower is better in each.

    Throughput is given as the seconds of an output token.
    """
    environment, benchmarks = run.require_environment(), []
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
                benchmarks.append(_benchmark(name, variant, load, seconds))
    return {
        "machine_info": {
            "node": environment.device.name,
            "processor": environment.cpu,
            "python_version": environment.python,
            "system": environment.os,
            "cpu": {"brand_raw": environment.cpu, "count": environment.cpu_count},
        },
        "commit_info": {},  # what calls whet knows the commit
        "benchmarks": benchmarks,
        "datetime": environment.started_at,
        "version": _FORM,
    }


def _benchmark(name: str, variant: str, load: Load, seconds: Sequence[float]) -> dict[str, Any]:
    param = f"{variant}-{load.key}"
    return {
        "group": load.words,
        "name": f"{name}[{param}]",
        "fullname": f"whet::{name}[{param}]",
        "params": {"variant": variant, "load": load.value},
        "param": param,
        "extra_info": {},
        "options": {},
        "stats": _stats(seconds),
    }


def _stats(seconds: Sequence[float]) -> dict[str, Any]:
    several = len(seconds) > 1
    low, middle, high = (
        statistics.quantiles(seconds, n=4, method="inclusive") if several else 3 * [seconds[0]]
    )
    mean, spread = statistics.fmean(seconds), statistics.stdev(seconds) if several else 0.0
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
        "outliers": f"{far};{len(seconds) - len(inside)}",
        "ld15iqr": min(inside),
        "hd15iqr": max(inside),
        "ops": len(seconds) / sum(seconds),
        "total": sum(seconds),
        "data": list(seconds),
        "iterations": 1,
    }
