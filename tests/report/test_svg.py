"""Charts where the chart library cannot run."""

import subprocess
import sys
from pathlib import Path

from altair import LayerChart

from whet.core.run import Run
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
