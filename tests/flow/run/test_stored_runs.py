"""Stored runs are read and decided again: today's demo, and one that an earlier version wrote."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path

import pytest

from whet.core.run import Run
from whet.flow.run.conclude.conclude import decide_over
from whet.flow.run.conclude.results import summarize_run

PUBLISHED = Path(__file__).parents[3] / "results" / "cpu-demo"
BEFORE = Path(__file__).parent / "stored" / "demo-before.tar.xz"


def unpacked(archive: Path, folder: Path) -> Run:
    with tarfile.open(archive) as tar:
        tar.extractall(folder)  # our own archives; filters came with 3.11.4
    return Run.read(folder / "run")


def test_the_published_demo_gives_its_figures_again(tmp_path: Path) -> None:
    run = unpacked(PUBLISHED / "run.tar.xz", tmp_path)
    cells = {(cell.variant, str(cell.batch_size)): cell for cell in summarize_run(run).cells}
    with (PUBLISHED / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(cells) == 8
    for row in rows:
        cell = cells[row["config"], row["batch_size"]]
        for name in ("ttft_p95_ms", "burst_ttft_p95_ms", "tps_mean", "cost_per_1m_tokens"):
            figure = cell.estimate(name)
            assert (figure is None) == (row[name] == "")
            assert figure is None or figure.value == pytest.approx(float(row[name]), rel=1e-3)
    decided, stored = decide_over([run]), json.loads((PUBLISHED / "decision.json").read_text())
    assert decided.recommendation is not None
    assert decided.recommendation.variant == stored["recommendation"]["variant"] == "spec+cache"
    assert decided.recommendation.batch_size == 8
    assert decided.recommendation.confirmed
    assert decided.recommendation.cost_per_1m_tokens.value == pytest.approx(
        stored["recommendation"]["cost_per_1m_tokens"]["value"], rel=1e-3
    )
    [limit] = decided.limits
    assert limit.startswith("greedy requests only (temperature 0): vllm 0.32.0")
    assert [(item.variant, item.kind) for item in decided.excluded] == [
        ("awq+spec+cache", "not checked")
    ], "no variant serves its weights without speculation"


def test_a_run_of_an_earlier_version_is_read_without_its_burst(tmp_path: Path) -> None:
    """Its trials have no start numbers, and their windows begin with the burst."""
    run = unpacked(BEFORE, tmp_path)
    cells = {(cell.variant, cell.batch_size): cell for cell in summarize_run(run).cells}
    assert len(cells) == 25
    before = {
        ("fp16", 8): (345, 119),
        ("fp16", 32): (899, 286),
        ("awq", 32): (1677, 451),
        ("awq+cache", 32): (864, 222),
    }
    for key, (burst, steady) in before.items():
        cell = cells[key]
        first = cell.estimate("burst_ttft_p95_ms")
        assert first is not None
        assert first.value == pytest.approx(burst, abs=0.6)
        assert cell.ttft_p95_ms is not None
        assert cell.ttft_p95_ms.value == pytest.approx(steady, abs=0.6)
        assert cell.tps_mean is not None
        assert cell.tps_mean.low is None, "one start has no interval"
    decided = decide_over([run])
    assert decided.recommendation is not None
    assert (decided.recommendation.variant, decided.recommendation.batch_size) == ("awq+cache", 32)
    assert any("one start" in caution for caution in decided.recommendation.cautions)
    assert run.spec is not None
