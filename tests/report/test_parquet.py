"""Events as a table."""

from __future__ import annotations

from dataclasses import replace

from tests.metrics.events import event, failed, trial
from whet.report.writers.parquet import events_table


def test_the_table_has_a_row_for_every_request_errors_too() -> None:
    events = [event(), failed(start_ms=30), event(start_ms=60, tokens=None)]
    table = events_table([replace(trial(events), window_end_ns=70_000_000)])
    assert len(table) == 3
    assert list(table["chunk_ns"][0]) == list(events[0].chunk_ns)
    assert table["error"].isna().tolist() == [True, False, True]
    assert table["output_tokens"].isna().tolist() == [False, False, True]
    assert table["in_window"].tolist() == [True, True, False]
    assert list(events_table([]).columns) == list(table.columns)
