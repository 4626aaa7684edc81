"""Files of a comparison: JUnit and Markdown."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from whet.ci.document import ci_document
from whet.ci.options import CiOptions
from whet.ci.result import CiResult
from whet.core.redact import clean
from whet.core.store import write_atomic
from whet.report.writers.markdown import render_markdown


def write_files(result: CiResult, options: CiOptions) -> None:
    """Write what the options name. Raises ``StorageError`` where that cannot be written."""
    if options.junit is not None:
        write_atomic(options.junit, junit_xml(result))
    if options.markdown is not None:
        write_atomic(options.markdown, render_markdown(ci_document(result)))


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
