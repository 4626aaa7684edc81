"""Files of a comparison: JUnit, Markdown, flat JSON for DVC, and pytest-benchmark's JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from whet.ci.document import ci_document
from whet.ci.options import CiOptions
from whet.ci.paired import start_table
from whet.ci.result import ORDER, CiResult
from whet.core.load import Load
from whet.core.records.summary import Estimate
from whet.core.redact import clean
from whet.core.run import Run
from whet.core.store import write_atomic
from whet.metrics import metrics_in
from whet.metrics.metric import RateMetric
from whet.report.writers.markdown import render_markdown


def write_files(result: CiResult, candidate: Run, options: CiOptions) -> None:
    """Write what the options name. Raises ``StorageError`` where that cannot be written."""
    if options.junit is not None:
        write_atomic(options.junit, junit_xml(result))
    if options.markdown is not None:
        write_atomic(options.markdown, render_markdown(ci_document(result)))
    if options.benchmark_json is not None:
        write_atomic(options.benchmark_json, _json(benchmark_json(candidate, result.variant)))
    if options.metrics is not None:
        write_atomic(options.metrics, _json(metrics_json(candidate, result)))


def junit_xml(result: CiResult) -> bytes:
    """Return JUnit XML with one test case per check, whose class names its role and group.

    Readers of JUnit count a skipped case as passed, so a check that is unknown is a failure of the
    type ``unknown``. An advisory one never fails.
    """
    failures = len(result.counted("fail")) + len(result.counted("unknown"))
    counts = {"tests": str(len(result.checks)), "failures": str(failures), "errors": "0"}
    root = Element("testsuites", {"name": "whet ci", **counts})
    suite = SubElement(root, "testsuite", {"name": clean(result.variant), **counts, "skipped": "0"})
    facts = {
        name: str(getattr(result, name))
        for name in ("candidate", "baseline", "variant", "max_regression")
    }
    if result.primary is not None:
        facts["primary"] = result.primary.name
    facts |= {f"changed: {c.what}": f"{c.baseline} → {c.candidate}" for c in result.changes}
    properties = SubElement(suite, "properties")
    for name, value in facts.items():
        SubElement(properties, "property", {"name": clean(name), "value": clean(value)})
    for check in result.checks:
        names = {"classname": f"whet.ci.{check.role}.{check.group}", "name": clean(check.name)}
        case, sentence = SubElement(suite, "testcase", names), clean(check.sentence)
        if check.verdict == "pass" or check.role == "advisory":
            SubElement(case, "system-out").text = f"{check.verdict}: {sentence}"
        else:
            why = {"type": check.verdict, "message": sentence}
            SubElement(case, "failure", why).text = sentence
    indent(root)
    text: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def metrics_json(run: Run, result: CiResult) -> dict[str, float | str]:
    """Return flat JSON for ``dvc metrics``: verdict, counts, figures per load, and quality."""
    counts = {f"checks_{verdict}": len(result.counted(verdict)) for verdict in ORDER}
    change = None if result.primary is None else result.primary.change
    primary = {} if change is None else {"cost_ratio": change.value}
    return {"verdict": result.verdict, **counts, **primary, **dict(_figures(run, result.variant))}


def _figures(run: Run, variant: str) -> Iterator[tuple[str, float]]:
    for cell in (cell for cell in run.cells if cell.variant == variant):
        for metric in metrics_in("cells"):
            figure = cell.figures.get(metric.name)
            value = figure.value if isinstance(figure, Estimate) else figure
            if value is not None:
                yield f"{cell.load.key}_{metric.name}", value
    record = run.quality.get(variant)
    if record is not None and record.perplexity is not None:
        yield "perplexity", record.perplexity.value
    for score in record.tasks if record is not None else ():
        yield f"task_{score.task}", score.score.value


def _json(data: object) -> bytes:
    return (json.dumps(data, ensure_ascii=False, indent=1) + "\n").encode()


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
