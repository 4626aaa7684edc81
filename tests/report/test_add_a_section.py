"""The example of docs/add-a-report-section.md is a section's one file, and every form shows it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.report.forms import FORMS, table
from whet.core.run import Run
from whet.report.run import start_up

PAGE = Path(__file__).parents[2] / "docs" / "add-a-report-section.md"


def test_the_page_shows_a_section_as_it_is() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example == Path(start_up.__file__).read_text(encoding="utf-8")


def test_every_form_has_the_section(whole: Run) -> None:
    assert list(table(whole, "start-up", "Start-up times")) == list(whole.starts)
    html, *_ = FORMS
    assert "Start-up times" in html(whole)
