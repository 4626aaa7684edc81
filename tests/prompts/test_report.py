"""The report: every figure of the analysis on the page, text of prompts escaped or left out."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tests.prompts.test_analyse import BODY, at_time, chat, log_of
from whet.core.format import percent
from whet.prompts.analyse import analyse
from whet.prompts.records import PromptAnalysis
from whet.prompts.report import (
    headline,
    print_report,
    prompts_document,
    write_report,
)
from whet.report.writers.html import render_html


def analysis_of(folder: Path, system: str = "It is {}.", *, redact: bool = False) -> PromptAnalysis:
    rows = [chat(i, f"{system.format(at_time(i))}\n{BODY}") for i in range(30)]
    return analyse(log_of(rows, folder, redact=redact))[0]


def page_of(analysis: PromptAnalysis) -> str:
    return render_html(prompts_document(analysis))


def printed(analysis: PromptAnalysis) -> str:
    console = Console(file=io.StringIO(), width=160)
    print_report(prompts_document(analysis), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_console_page_and_json_have_the_figures(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path)
    write_report(analysis, tmp_path / "out")
    page = (tmp_path / "out/prompts.html").read_text()
    text = printed(analysis)
    (fix,) = analysis.fixes
    for figure in (percent(analysis.hits.rate), percent(fix.hits.rate), fix.title):
        assert figure in page
        assert figure in text
    stored = json.loads((tmp_path / "out/prompts.json").read_text())
    assert stored["fixes"][0]["hits"]["hit_tokens"] == fix.hits.hit_tokens
    assert stored["causes"][0]["kind"] == "date"
    ids = {section.id for section in prompts_document(analysis).sections}
    assert ids == {"causes", "fixes"}
    assert "date or time" in text


def test_a_log_without_a_fix_says_so(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, "Be kind.")
    assert headline(analysis).endswith("No fix raises that.")
    assert "with the fixes" not in page_of(analysis)
    assert "No named cause was detected." in printed(analysis)


def test_a_change_that_has_no_fix_is_not_said_to_have_been_tried(tmp_path: Path) -> None:
    analysis = replace(analysis_of(tmp_path), fixes=(), together=None)
    assert headline(analysis).endswith("No fix raises that.")
    cause = replace(analysis.causes[0], kind="template")
    said = headline(replace(analysis, causes=(cause,)))
    assert said.endswith("No fix was tried for the causes below.")


def test_text_of_prompts_is_escaped_and_obeys_no_terminal(tmp_path: Path) -> None:
    page = page_of(analysis_of(tmp_path, "<script>x()</script> [red]{}\x1b[2J"))
    assert "<script>x()" not in page
    assert "\x1b" not in page
    analysis = analysis_of(tmp_path, "[bold]\x1b[2J {}")
    assert "\x1b" not in printed(analysis)
    assert "[bold]" in printed(analysis)


def test_a_redacted_report_has_no_text(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, redact=True)
    write_report(analysis, tmp_path / "out")
    written = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    for word in ("It is", "2026-11-02 09:00:07", "parcel", "warranty"):
        assert word not in written + printed(analysis)
    assert "(redacted)" in printed(analysis)
