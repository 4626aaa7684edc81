"""A stored run is read and decided again."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path

import pytest

from whet.core.load import Load
from whet.core.run import Run
from whet.flow.run.conclude.conclude import decide_over
from whet.flow.run.conclude.results import summarize_run

PUBLISHED = Path(__file__).parents[3] / "results" / "cpu-demo"


def unpacked(archive: Path, folder: Path) -> Run:
    with tarfile.open(archive) as tar:
        tar.extractall(folder)  # our own archives; filters came with 3.11.4
    return Run.read(folder / "run")


def test_the_published_demo_gives_its_figures_again(tmp_path: Path) -> None:
    run = unpacked(PUBLISHED / "run.tar.xz", tmp_path)
    cells = {(cell.variant, str(cell.load)): cell for cell in summarize_run(run).newest}
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
    assert decided.recommendation.variant == stored["recommendation"]["variant"] == "draft+cache"
    assert decided.recommendation.load == Load.at(8)
    assert decided.recommendation.measured_again
    assert decided.recommendation.cost_per_1m_tokens.value == pytest.approx(
        stored["recommendation"]["cost_per_1m_tokens"]["value"], rel=1e-3
    )
    [limit] = decided.limits
    assert limit.startswith("greedy requests only: speculation samples wrong text")
    assert [(item.variant, item.kind) for item in decided.excluded] == [
        ("awq+draft+cache", "not checked")
    ], "no variant serves its weights without speculation"


def test_a_run_of_two_engines_is_read_without_the_keys_that_are_gone(tmp_path: Path) -> None:
    run = unpacked(PUBLISHED.parent / "engines-h100" / "run.tar.xz", tmp_path)
    assert run.require_spec().engines["sglang"].name == "sglang"
