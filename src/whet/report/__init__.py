"""A run told to people: console, CSV, Parquet, Markdown, HTML, one picture. Reads records only."""

from whet.report.cells_csv import CSV_COLUMNS, write_csv
from whet.report.console import print_decision, print_report
from whet.report.files import write_reports
from whet.report.html import render_html, write_html
from whet.report.markdown import render_markdown, write_markdown
from whet.report.plots import write_png
from whet.report.raw import write_parquet
from whet.report.schemes_console import print_schemes
from whet.report.schemes_csv import SCHEMES_COLUMNS, write_schemes_csv
from whet.report.schemes_html import render_schemes, write_scheme_reports
from whet.report.view import RunView, load_run

__all__ = [
    "CSV_COLUMNS",
    "SCHEMES_COLUMNS",
    "RunView",
    "load_run",
    "print_decision",
    "print_report",
    "print_schemes",
    "render_html",
    "render_markdown",
    "render_schemes",
    "write_csv",
    "write_html",
    "write_markdown",
    "write_parquet",
    "write_png",
    "write_reports",
    "write_scheme_reports",
    "write_schemes_csv",
]
