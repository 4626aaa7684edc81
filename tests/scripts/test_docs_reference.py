"""The generated pages of docs/ are those of the code."""

from __future__ import annotations

import sys

import pytest
from scripts.docs_reference import ROOT, pages


@pytest.mark.parametrize("name", ["levers.md", "reference/cli.md", "reference/whet-yaml.md"])
def test_the_committed_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "argv", ["whet"])  # cyclopts shows `python -m pytest` as it was called
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == pages()[name], (
        "run: make reference"
    )
