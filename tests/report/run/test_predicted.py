"""Cells that a search with a budget predicted stand beside the measured ones, and are marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flow.run.test_budget import engine, ran, spec
from tests.flow.stage import FakeEngine
from tests.report.forms import FORMS, section, table
from whet.core.load import Load
from whet.core.records.predicted import PredictedCell, PredictedVariant
from whet.report.run.predicted import cheaper_by_prediction

__all__ = ["engine"]


@pytest.mark.usefixtures("engine")
def test_predicted_cells_are_marked_in_one_table_with_measured_ones(
    engine: FakeEngine, tmp_path: Path
) -> None:
    run = ran(engine, spec(tmp_path), tmp_path / "run", 0.01)
    rows = table(run, "predicted", "US$ per million output tokens by requests in flight")
    assert {"cached8", "cached16", "cached32"} < set(rows)
    for name, record in run.predicted.items():
        sizes = [cell.load for cell in record.cells]
        marks = [text.startswith("~") for text in rows[name]]
        assert marks == [size not in record.measured for size in sizes]
    for form in FORMS:
        text = " ".join(form(run).split())
        assert "Measured and predicted" in text
        assert "are predicted, all others measured" in text


def test_a_run_without_a_budget_has_no_such_section(engine: FakeEngine, tmp_path: Path) -> None:
    run = ran(engine, spec(tmp_path), tmp_path / "run", 3600.0)
    if all(len(each.measured) == len(each.cells) for each in run.predicted.values()):
        assert section(run, "predicted") is None


def predicted(cost: float, *, spread: float, measured: tuple[int, ...] = ()) -> PredictedVariant:
    cells = (PredictedCell(load=Load.at(8), cost_per_1m_tokens=cost, ttft_ms=100.0, tpot_ms=5.0),)
    return PredictedVariant(
        variant="p",
        cells=cells,
        errors=(),
        source="s",
        spread=spread,
        measured=tuple(map(Load.at, measured)),
    )


@pytest.mark.parametrize(
    ("record", "ttft_ms", "cost", "names"),
    [
        (predicted(0.5, spread=0.1), 200.0, 1.0, True),
        (predicted(0.9, spread=0.1), 200.0, 1.0, False),
        (predicted(0.5, spread=0.1), 50.0, 1.0, False),
        (predicted(0.5, spread=0.1, measured=(8,)), 200.0, 1.0, False),
        (predicted(0.5, spread=0.1), 200.0, None, True),
    ],
    ids=["cheaper", "within its error", "too slow", "measured", "nothing qualifies"],
)
def test_a_prediction_is_named_only_beyond_its_error(
    record: PredictedVariant, ttft_ms: float, cost: float | None, names: bool
) -> None:
    sentence = cheaper_by_prediction({"p": record}, ttft_ms, cost)
    assert (sentence is not None) == names
    assert sentence is None or "not measured" in sentence
