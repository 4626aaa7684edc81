"""A run against a server that stalls: console, CSV, report and cost say what the events say."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.cli.stage import Whet, write_whole_spec
from tests.scripted_server import scripted_server
from whet.core.records.load import TrialRecord
from whet.core.records.summary import CellSummary
from whet.core.store import RunStore
from whet.load import health

STALL_S = 1.5
TIMED = 10
BEFORE = 9
"""A canary and a warm-up that touches each of eight shared prefixes."""


@pytest.fixture(autouse=True)
def no_slow_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LATENESS_FLOOR_NS", 10 * 10**9)
    monkeypatch.setattr(health, "MAX_CPU_SHARE", 2.0)


def test_two_stalls_of_ten_requests_are_in_every_figure(whet: Whet, tmp_path: Path) -> None:
    """Both of two slots stall once, at the same time: ten answers take a little over one stall."""
    with scripted_server(gap_s=0.002, words=True) as server:
        write_whole_spec(
            tmp_path,
            engine={"name": "openai", "url": server.url, "args": {"max_model_len": 512}},
            load={
                "concurrency": [2],
                "trials": 1,
                "min_requests": TIMED,
                "requests_per_slot": 5,
                "warmup_requests": 2,
            },
        )
        server.stalls.update(dict.fromkeys((BEFORE + 4, BEFORE + 5), STALL_S))
        said = whet("run")
    (root,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    store = RunStore.read(root)
    trial = next(item for item in store.all("trials", TrialRecord) if item.variant == "fp16")
    slow = [e for e in trial.requests if e.chunk_ns[0] - e.sent_ns > 1e9 * STALL_S]
    assert len(slow) == 2, "the stalls hit the timed requests"
    cell = next(item for item in store.all("cells", CellSummary) if item.variant == "fp16")
    seconds = (max(e.ended_ns for e in trial.requests) - trial.requests[0].chunk_ns[0]) / 1e9
    tokens = sum(e.output_tokens or 0 for e in trial.requests)
    assert cell.tps_mean is not None
    assert cell.cost_per_1m_tokens is not None
    assert cell.tps_mean.value == pytest.approx(tokens / seconds, rel=0.15)
    price = 3600 * cell.tps_mean.value / 1e6 * cell.cost_per_1m_tokens.value
    with (root / "results.csv").open(encoding="utf-8", newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["config"] == "fp16")
    assert float(row["tps_mean"]) == pytest.approx(cell.tps_mean.value, rel=1e-4)
    assert float(row["cost_per_1m_tokens"]) == pytest.approx(cell.cost_per_1m_tokens.value, 1e-4)
    assert float(row["price_usd_per_hour"]) == pytest.approx(price, rel=1e-3)
    assert f"{cell.tps_mean.value:.3g}" in said.out
