"""Variants that a search with a budget left out are shown apart, and marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flow.run.test_race import engine, ran, spec
from tests.flow.stage import FakeEngine
from tests.report.forms import FORMS, section, table

__all__ = ["engine"]


@pytest.mark.usefixtures("engine")
def test_predictions_are_marked_and_apart_from_what_was_measured(
    engine: FakeEngine, tmp_path: Path
) -> None:
    run = ran(spec(tmp_path), tmp_path / "run", 0.01)
    rows = table(run, "predicted", "Predicted at the cheapest load")
    assert list(rows) == ["cached8", "cached16", "cached32"]
    assert all(text.startswith("~") for cells in rows.values() for text in cells[1:4])
    for form in FORMS:
        text = form(run)
        assert "Predicted, not measured" in text
        assert "None of these figures was measured" in " ".join(text.split())


def test_a_run_without_a_budget_has_no_such_section(engine: FakeEngine, tmp_path: Path) -> None:
    run = ran(spec(tmp_path), tmp_path / "run", 3600.0)
    if all(each.measured for each in run.predicted.values()):
        assert section(run, "predicted") is None
