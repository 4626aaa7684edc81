"""Charts where the chart library cannot run."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from altair import LayerChart

from tests.run_copy import replace
from whet.core.run import Run
from whet.report.charts.plots import HEIGHT, WIDTH
from whet.report.charts.svg import svg_file
from whet.report.document import Chart
from whet.report.run import run_document

SCRIPT = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
from whet.report.charts.palette import looks
from whet.report.charts.plots import Axis, Point, plot
from whet.report.charts.svg import svg_file
from whet.report.document import Chart

for name in ("a", "b"):
    points = [Point(series="one", x=1.0, y=2.0, label=name)]
    picture = plot(points, looks(["one"]), x=Axis(title=name), y=Axis(title="y"))
    chart = Chart(name=name, title=name, description="d", picture=picture)
    Path(sys.argv[1], name).write_text(svg_file(chart))
"""


def test_a_chart_is_left_out_where_addresses_are_limited(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("warning: charts are left out")
    assert done.stderr.count("\n") == 1
    assert "This chart was left out" in (tmp_path / "b").read_text()


def test_what_is_drawn_is_valid_by_the_schema(whole: Run) -> None:
    """It is drawn without a check of each part, which takes half the time."""
    nodes = (node for part in run_document(whole).sections for node in part.nodes)
    charts = [node for node in nodes if isinstance(node, Chart)]
    assert charts
    for chart in charts:
        LayerChart.from_dict(chart.picture(), validate=True)


def test_a_drawing_holds_its_title_its_legend_and_every_interval(whole: Run) -> None:
    nodes = (node for part in run_document(whole).sections for node in part.nodes)
    for chart in (node for node in nodes if isinstance(node, Chart)):
        drawing = svg_file(chart)
        root = ElementTree.fromstring(drawing)
        words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {chart.title, "awq", "awq+draft (excluded)"} <= words
        for bar in root.iter("{http://www.w3.org/2000/svg}line"):
            if "concurrency" in str(bar.get("aria-label")) or ": " in str(bar.get("aria-label")):
                x, y = re.findall(r"[-\d.]+", str(bar.get("transform")))
                assert 0 <= float(x) <= WIDTH
                assert 0 <= float(y) <= HEIGHT
                assert 0 <= float(y) + float(bar.get("y2", "0")) <= HEIGHT


def test_the_decided_limit_is_drawn_wherever_the_cells_are(whole: Run) -> None:
    assert whole.spec is not None
    objective = whole.spec.objective.model_copy(update={"recommend_ttft_ms": 90_000.0})
    run = replace(whole, spec=whole.spec.model_copy(update={"objective": objective}))
    nodes = (node for part in run_document(run).sections for node in part.nodes)
    charts = {node.name: svg_file(node) for node in nodes if isinstance(node, Chart)}
    assert ">limit 90 s</text>" in charts["cost-latency"]
    assert "TTFT &lt; 90 s</text>" in charts["ttft-p95"]
    assert "90 s" not in charts["ttft-p50"], "the limit is for p95"
    for name in ("cost-latency", "ttft-p95"):
        assert "(log)</text>" in charts[name]
