"""What was measured, told to people: console, files, pages, pictures. Reads records only."""

from whet.report.cells_csv import CSV_COLUMNS, write_csv
from whet.report.console import print_decision, print_report
from whet.report.files import write_reports
from whet.report.html import render_html, write_html
from whet.report.load_console import print_load, print_verdict
from whet.report.load_plot import write_load_plot
from whet.report.markdown import render_markdown, write_markdown
from whet.report.raw import write_parquet
from whet.report.saturation import (
    SearchView,
    print_saturation,
    saturation_json,
    write_saturation_plot,
)
from whet.report.schemes_console import print_schemes
from whet.report.schemes_csv import SCHEMES_COLUMNS, write_schemes_csv
from whet.report.schemes_html import render_schemes, write_scheme_reports
from whet.report.view import RunView, load_run
from whet.report.vllm_json import Selection, run_info, vllm_result

__all__ = [
    "CSV_COLUMNS",
    "SCHEMES_COLUMNS",
    "RunView",
    "SearchView",
    "Selection",
    "load_run",
    "print_decision",
    "print_load",
    "print_report",
    "print_saturation",
    "print_schemes",
    "print_verdict",
    "render_html",
    "render_markdown",
    "render_schemes",
    "run_info",
    "saturation_json",
    "vllm_result",
    "write_csv",
    "write_html",
    "write_load_plot",
    "write_markdown",
    "write_parquet",
    "write_reports",
    "write_saturation_plot",
    "write_scheme_reports",
    "write_schemes_csv",
]
