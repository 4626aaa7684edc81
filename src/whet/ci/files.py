"""Files of a comparison: JUnit, Markdown and flat JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from whet.ci.document import ci_document
from whet.ci.options import CiOptions
from whet.ci.result import ORDER, CiResult
from whet.core.records.summary import Estimate
from whet.core.redact import clean
from whet.core.run import Run
from whet.core.store import write_atomic
from whet.metrics import metrics_in
from whet.report.writers.markdown import render_markdown


def write_files(result: CiResult, candidate: Run, options: CiOptions) -> None:
    """Write what the options name. Raises ``StorageError`` where that cannot be written."""
    if options.junit is not None:
        write_atomic(options.junit, junit_xml(result))
    if options.markdown is not None:
        write_atomic(options.markdown, render_markdown(ci_document(result)))
    if options.metrics is not None:
        text = json.dumps(metrics_json(candidate, result), ensure_ascii=False, indent=1)
        write_atomic(options.metrics, f"{text}\n")


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
    """Return verdict, counts, figures per load, and quality, by name."""
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
