"""The example of docs/add-a-report-section.md works as one file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import whet.report.run as sections
from tests.report.forms import FORMS, table
from whet.core.run import Run

PAGE = Path(__file__).parents[2] / "docs" / "add-a-report-section.md"


def test_a_section_is_one_file(whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "start_up.py").write_text(example, encoding="utf-8")
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path)])
    sections.section_modules.cache_clear()
    try:
        assert list(table(whole, "start-up", "Start-up times")) == list(whole.starts)
        for form in FORMS:
            assert "Start-up" in form(whole)
    finally:
        monkeypatch.undo()
        sections.section_modules.cache_clear()
        sys.modules.pop("whet.report.run.start_up", None)
    assert "Start-up times" not in FORMS[0](whole)
