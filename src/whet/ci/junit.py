"""A comparison as JUnit XML: one test case a check."""

from __future__ import annotations

from xml.etree import ElementTree

from whet.ci.result import Check, CiResult
from whet.core.redact import clean


def junit_xml(result: CiResult) -> bytes:
    """The whole file.

    Readers of JUnit count a skipped case as passed, so a check that is unknown is a failure of the
    type ``unknown``.
    """
    failures = len(result.checks) - len(result.counted("pass"))
    counts = {"tests": str(len(result.checks)), "failures": str(failures), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "whet ci", **counts})
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": clean(result.variant), **counts, "skipped": "0"}
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name in ("candidate", "baseline", "variant", "max_regression"):
        value = clean(str(getattr(result, name)))
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
    for change in result.changes:
        value = clean(f"{change.baseline} → {change.candidate}")
        name = clean(f"changed: {change.what}")
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
    for check in result.checks:
        _add_case(suite, check)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _add_case(suite: ElementTree.Element, check: Check) -> None:
    names = {"classname": f"whet.ci.{check.group}", "name": clean(check.name)}
    case = ElementTree.SubElement(suite, "testcase", names)
    sentence = clean(check.sentence)
    if check.verdict == "pass":
        ElementTree.SubElement(case, "system-out").text = sentence
        return
    why = {"type": check.verdict, "message": sentence}
    ElementTree.SubElement(case, "failure", why).text = sentence
