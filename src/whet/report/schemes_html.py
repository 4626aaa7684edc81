"""``schemes.html``: the table and the errors layer by layer on one page without a script."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from whet import __version__
from whet.core.records import SchemeTable
from whet.core.spec import SIXTEEN_BIT
from whet.core.store import write_atomic
from whet.report.page import colours, page_environment
from whet.report.palette import Style, styles
from whet.report.schemes import (
    HEADINGS,
    filled_columns,
    measured_on,
    scheme_lines,
    short_kernel,
    task_names,
    told_reasons,
)
from whet.report.schemes_csv import write_schemes_csv
from whet.report.unit_charts import scheme_charts


def write_scheme_reports(table: SchemeTable, folder: Path) -> None:
    """Write schemes.csv and schemes.html, each replaced whole or left as it was."""
    write_schemes_csv(table, folder / "schemes.csv")
    write_atomic(folder / "schemes.html", render_schemes(table).encode())


def render_schemes(table: SchemeTable) -> str:
    """The whole page as text."""
    look, lines = scheme_styles(table), scheme_lines(table)
    return (
        page_environment()
        .get_template("schemes.html.j2")
        .render(
            table=table,
            version=__version__,
            look=look,
            colours=colours(look),
            columns=[(at, HEADINGS[at]) for at in filled_columns(lines)],
            lines=lines,
            reasons=told_reasons(table),
            short_kernel=short_kernel,
            measured_on=measured_on(table),
            tasks=task_names(table),
            charts=scheme_charts(table, look),
        )
    )


def scheme_styles(table: SchemeTable) -> Mapping[str, Style]:
    """Each scheme's look; the source is drawn in the neutral ink."""
    return styles([row.name for row in table.rows], SIXTEEN_BIT)
