"""The how-to's example is a metric: one entry, and every reader of the table has it."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ci.planted import CPU_DEMO, unpack
from whet.ci.compare import compare_runs, open_sides
from whet.ci.options import CiOptions
from whet.core.load import Load
from whet.core.protocols import Silent
from whet.core.run import Run
from whet.core.store import RunStore
from whet.deploy.monitoring.dashboard import panels
from whet.deploy.monitoring.series import Series
from whet.flow.bench.compare import compare_servers
from whet.flow.run.conclude.conclude import conclude
from whet.metrics import METRICS
from whet.report.document import Chart
from whet.report.run import run_document
from whet.report.run.cells_csv import write_csv
from whet.report.writers.json import document_json
from whet.watch.source import envelope_of

PAGE = Path(__file__).parents[2] / "docs" / "add-a-metric.md"
NAME, TITLE = "e2e_p99_ms", "E2E p99"
CELL = ("draft+cache", Load.at(8))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The published demo, concluded again with the page's entry in the table."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    root = unpack(CPU_DEMO, tmp_path_factory.mktemp("demo"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METRICS, names["metric"].name, names["metric"])
        with RunStore.open(root, resume=True) as store:
            conclude(store, Silent())
        yield Run.read(root)


def test_the_cell_and_its_json_have_it_with_an_interval(run: Run) -> None:
    cell = run.cell(*CELL)
    assert cell is not None
    figure = cell.estimate(NAME)
    assert figure is not None
    assert figure.low is not None
    stored = json.loads((run.root / "cells" / "draft+cache--b008.json").read_text())
    assert stored[NAME]["value"] == figure.value
    lower = cell.estimate("e2e_p95_ms")
    assert lower is not None
    assert figure.value >= lower.value


def test_the_csv_has_its_columns(run: Run, tmp_path: Path) -> None:
    write_csv(run, tmp_path / "results.csv")
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["config"], row["batch_size"]): row for row in csv.DictReader(file)}
    row = rows[CELL[0], str(CELL[1])]
    assert float(row[f"{NAME}_low"]) < float(row[NAME]) < float(row[f"{NAME}_high"])
    assert NAME in row["too_few_samples"].split()


def test_the_report_has_it_in_cells_charts_and_levers(run: Run) -> None:
    document = run_document(run)
    charts = [node for section in document.sections for node in section.nodes]
    assert "e2e-p99" in [node.name for node in charts if isinstance(node, Chart)]
    sections = {each["id"]: json.dumps(each) for each in document_json(document)["sections"]}
    assert f'"name": "{TITLE}", "unit": "ms"' in sections["cells"]
    assert f"1/{TITLE}: effect of one lever" in sections["levers"]


def test_two_servers_are_compared_on_it(run: Run) -> None:
    sides = [run.trials_of(name, Load.at(8)) for name in ("fp16", "draft+cache")]
    assert NAME in [item.metric for item in compare_servers(*sides)]


def test_ci_advises_on_it(run: Run) -> None:
    result = compare_runs(open_sides(run.root, run.root, CiOptions(max_regression=0.1)))
    assert f"{TITLE}, concurrency 8" in [check.name for check in result.checks]


def test_the_envelope_and_the_dashboard_hold_its_limit(run: Run) -> None:
    envelope = envelope_of(run, *CELL)
    measured = envelope.range_of(NAME)
    assert measured is not None
    assert (measured.worse, measured.limit) == ("higher", pytest.approx(1.2 * measured.high, 0.01))
    series = Series(model="m", scrape_s=15, edges_s={})
    (panel,) = [each for each in panels(envelope, series)["Latency"] if each.title == TITLE]
    assert panel.limit == measured.limit / 1000
    assert panel.queries["p99"].startswith("histogram_quantile(0.99, ")
