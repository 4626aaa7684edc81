"""What a comparison is written as: JUnit and Markdown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from tests.ci.planted import compared
from whet.ci.document import ci_document
from whet.ci.files import junit_xml, write_files
from whet.ci.options import CiOptions
from whet.ci.result import Change, Check, CiResult, Word
from whet.report.writers.markdown import render_markdown

NASTY = Check(
    group="evidence",
    name="evidence: <b>|weights|</b>",
    verdict="fail",
    sentence='contradicted: the log says "\x1b[31m]]>" & <script>` | \ud800',
)
VARIANT = "draft+cache"


def result_of(*checks: Check, changes: tuple[Change, ...] = ()) -> CiResult:
    return CiResult(
        candidate="runs/new",
        baseline="baseline",
        variant=VARIANT,
        max_regression=0.07,
        checks=checks,
        changes=changes,
    )


def passing(name: str) -> Check:
    return Check(group="speed", name=name, verdict="pass", sentence="12 → 12 ms")


def advised(word: Word) -> Check:
    return replace(passing(f"TTFT p95 {word}"), verdict=word, role="advisory")


PRIMARY = replace(passing("cost, concurrency 8"), role="primary")


def test_advice_is_no_failure_and_the_primary_check_is_named() -> None:
    words: tuple[Word, ...] = ("beyond", "not distinguished", "within")
    result = result_of(NASTY, PRIMARY, *map(advised, words))
    root = ElementTree.fromstring(junit_xml(result))
    assert (root.get("tests"), root.get("failures")) == ("5", "1")
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert cases[PRIMARY.name].get("classname") == "whet.ci.primary.speed"
    said = cases["TTFT p95 beyond"]
    assert said.get("classname") == "whet.ci.advisory.speed"
    assert (said.findtext("system-out") or "").startswith("beyond: ")
    properties = {each.get("name"): each.get("value") for each in root.iter("property")}
    assert properties["primary"] == PRIMARY.name
    text = render_markdown(ci_document(result_of(PRIMARY, *map(advised, words))))
    assert text.startswith("# whet ci: pass")
    assert "pass: cost, concurrency 8: 12 → 12 ms. 1 pass, 0 unknown, 0 fail, with 7%" in text
    deciding, advisory = text.index("Checks that decide"), text.index("Advisory figures")
    assert deciding < text.index("cost, concurrency 8 (primary)") < advisory
    assert advisory < text.index("| beyond |") < text.index("| within |")


def test_a_counter_beyond_the_allowance_is_named_as_a_probable_cause() -> None:
    fell = replace(advised("beyond"), group="counters", name="acceptance length, concurrency 8")
    text = render_markdown(ci_document(result_of(PRIMARY, fell)))
    assert "Probable cause: acceptance length, concurrency 8 12 → 12 ms." in text


def test_junit_has_a_case_for_each_check_and_unknown_is_a_failure_of_its_own_type() -> None:
    unknown = replace(passing("TTFT p95, concurrency 8"), verdict="unknown", sentence="too noisy")
    result = result_of(passing("TPOT"), unknown, NASTY, changes=(_change(1),))
    root = ElementTree.fromstring(junit_xml(result))
    (suite,) = root.findall("testsuite")
    for element in (root, suite):
        assert (element.get("tests"), element.get("failures")) == ("3", "2")
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert cases["TPOT"].find("failure") is None
    failures = {name: case.find("failure") for name, case in cases.items()}
    assert failures["TTFT p95, concurrency 8"].get("type") == "unknown"
    assert failures["TTFT p95, concurrency 8"].get("message") == "too noisy"
    assert failures[NASTY.name].get("type") == "fail"
    assert "<script>" in (failures[NASTY.name].text or "")
    assert {case.get("classname") for case in cases.values()} == {
        "whet.ci.required.speed",
        "whet.ci.required.evidence",
    }
    properties = {each.get("name"): each.get("value") for each in root.iter("property")}
    assert properties["changed: spec.key1"] == "1 → 2"


def _change(number: int) -> Change:
    return Change(what=f"spec.key{number}", baseline="1", candidate="2")


def test_markdown_is_one_verdict_line_at_most_15_rows_and_what_changed() -> None:
    checks = [*(passing(f"check {at}") for at in range(30)), NASTY]
    changes = tuple(_change(at) for at in range(30))
    text = render_markdown(ci_document(result_of(*checks, changes=changes)))
    lines = text.splitlines()
    assert lines[0] == "# whet ci: fail"
    assert (
        "fail: 30 pass, 0 unknown, 1 fail, with 7% allowed. Unknown counts as not passed." in text
    )
    rows = [line for line in lines if line.startswith("|")][2:]
    assert len(rows) == 15
    assert rows[0].startswith("| fail |"), "the worst first"
    assert "<script>" not in text
    assert "16 more checks: see --junit or --json." in lines
    assert len([line for line in lines if line.startswith("- ")]) == 16
    assert "- 15 more differences: see --json" in lines


def test_each_file_is_written_where_it_is_named(demo: Path, tmp_path: Path) -> None:
    options = CiOptions(
        junit=tmp_path / "new" / "junit.xml",
        markdown=tmp_path / "new" / "summary.md",
    )
    write_files(compared(demo, demo), options)
    ElementTree.parse(tmp_path / "new" / "junit.xml")
    assert (tmp_path / "new" / "summary.md").read_text().startswith("# whet ci: ")
