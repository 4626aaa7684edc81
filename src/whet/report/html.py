"""``report.html``: one file, no script, no request; every foreign string escaped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from whet import __version__
from whet.core.format import number, percent, plural
from whet.core.store import write_atomic
from whet.core.units import human_bytes, human_duration
from whet.report import rows
from whet.report.costs import COST_HEADS, COSTS_NOTE, cost_lines
from whet.report.factorial import factorial_note, factorial_sentences, factorial_tables
from whet.report.factorial_plot import draw_factorial, factorial_plots
from whet.report.head_of_line import HEAD_OF_LINE_HEADS, head_of_line_rows, head_of_line_words
from whet.report.palette import Style
from whet.report.pictures import (
    load_charts,
    pareto_chart,
    speculation_chart,
    variant_styles,
)
from whet.report.quality_checks import check_tables
from whet.report.quality_rows import (
    DISTANCE_HEADS,
    distance_note,
    has_distances,
    quality_reasons,
    quality_rows,
    task_table,
)
from whet.report.sections import (
    blank_reasons,
    common_env,
    engine_rows,
    env_words,
    evidence_groups,
    exclusions,
    lost_answers,
    reading_notes,
    sizes_of,
    tiles,
    timed_text,
    timed_text_words,
    unit_summary,
    warmup_words,
    workload_rows,
)
from whet.report.svg import draw, mark
from whet.report.text import clean, moment, short_path, shown
from whet.report.unit_charts import unit_charts
from whet.report.view import RunView

_TEMPLATES = Path(__file__).parent / "templates"


def write_html(view: RunView, path: Path) -> None:
    """Write the page atomically."""
    write_atomic(path, render_html(view).encode())


def render_html(view: RunView) -> str:
    """The whole page as text."""
    look = variant_styles(view)
    title, sentence = rows.headline(view)
    quality = quality_rows(view)
    return (
        page_environment()
        .get_template("report.html.j2")
        .render(
            view=view,
            version=__version__,
            look=look,
            colours=colours(look),
            quiet=sum(style.quiet for style in look.values()),
            headline=title,
            won=view.decision is not None and rows.is_win(view.decision),
            sentence=sentence,
            tiles=tiles(view),
            table=rows.comparison_rows(view),
            matrices=rows.matrix_tables(view.decision) if view.decision else (),
            blanks=blank_reasons(view.decision) if view.decision else (),
            excluded=exclusions(view.decision) if view.decision else (),
            charts=load_charts(view),
            pareto=pareto_chart(view),
            speculation=speculation_chart(view),
            factorial_tables=factorial_tables(view),
            factorial_plots=factorial_plots(view),
            factorial_sentences=factorial_sentences(view),
            factorial_note=factorial_note(view),
            head_of_line=head_of_line_rows(view),
            head_of_line_heads=HEAD_OF_LINE_HEADS,
            head_of_line_words=head_of_line_words(view),
            cost_lines=cost_lines(view),
            cost_heads=COST_HEADS,
            costs_note=COSTS_NOTE,
            units=_units(view, look),
            evidence=evidence_groups(view),
            quality=quality,
            distance_heads=DISTANCE_HEADS if has_distances(quality) else (),
            distance_note=distance_note(view),
            task_scores=task_table(view),
            reasons=quality_reasons(view),
            checks=check_tables(view),
            workloads=workload_rows(view),
            engines=engine_rows(view),
            notes=reading_notes(view),
            common=common_env(view),
            lost=lost_answers(view),
            timed=timed_text(view),
            warmup=warmup_words(view),
        )
    )


@cache
def page_environment() -> Environment:
    """What templates are rendered in: every value escaped, every string cleaned."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        draw=draw,
        draw_factorial=draw_factorial,
        mark=mark,
        headings=rows.headings(),
        entry_words=rows.entry_words,
        is_corner=rows.is_corner,
        regression=rows.regression,
        env_words=env_words,
        sizes_of=sizes_of,
        timed_text_words=timed_text_words,
        unit_summary=unit_summary,
    )
    made.filters.update(
        shown=shown,
        number=number,
        percent=percent,
        plural=plural,
        bytes=human_bytes,
        duration=human_duration,
        target=rows.target_words,
        tolerance=rows.tolerance_words,
        moment=moment,
        short_path=short_path,
    )
    return made


def _finalize(value: Any) -> Any:
    """Every string that enters the page is cleaned; escaping follows it."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value)
    return value


def colours(look: Mapping[str, Style]) -> Markup:
    """The style sheet's colours of these looks, light and dark."""
    each = dict.fromkeys(look.values())
    light = "".join(f".{style.css}{{--c:{style.light}}}" for style in each)
    dark = "".join(f".{style.css}{{--c:{style.dark}}}" for style in each)
    return Markup(f"{light}@media (prefers-color-scheme:dark){{{dark}}}")


def _units(view: RunView, look: Mapping[str, Style]) -> dict[str, tuple[Any, ...]]:
    """The unit-error charts of each recipe, in the colour of a variant that uses it."""
    made = {}
    for recipe, done in view.quantized.items():
        users = [name for name, item in view.engines.items() if item.variant.weights == recipe]
        style = next((look[name] for name in view.variants if name in users), None)
        made[recipe] = unit_charts(done, style or next(iter(look.values()))) if look else ()
    return made
