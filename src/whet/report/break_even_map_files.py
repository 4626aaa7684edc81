"""The break-even map as files and on the console: CSV, Markdown, SVG and a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from markupsafe import escape
from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet import __version__
from whet.core.format import percent, plural
from whet.core.records import BreakEvenMap, BreakEvenPoint, Estimate
from whet.core.store import write_atomic
from whet.report.break_even_map import (
    STYLES,
    headline,
    interval,
    ks_of,
    map_charts,
    sentence,
    worth,
)
from whet.report.page import colours, page_environment
from whet.report.run.cells_csv import Value, field
from whet.report.svg import draw
from whet.report.text import DASH, clean, one_line

_FIGURES: Final = ("plain_tps", "l_star", "draft_length", "speedup", "headroom")
_ENDS: Final = ("", "_low", "_high")
POINT_COLUMNS: Final[tuple[str, ...]] = (
    "batch_size",
    "k",
    *(f"{name}{end}" for name in _FIGURES for end in _ENDS),
    "reachable",
    "pays",
    "fixed_share",
    "spread",
    "levels",
)
"""Every column of ``break_even.csv``; new ones are added at the end only."""
LEVEL_COLUMNS: Final[tuple[str, ...]] = (
    "batch_size",
    "k",
    "level",
    "variant",
    *(f"{name}{end}" for name in ("acceptance_length", "tps") for end in _ENDS),
    "note",
)
"""Every column of ``break_even_levels.csv``."""
_PANEL: Final = (520, 300, 30)
"""Width and height of a panel of the picture, and of the title above it."""
_SVG_STYLE: Final = """
svg { overflow: visible; font-family: sans-serif; }
svg { --card:#fff; --ink:#16191d; --soft:#626b77; --grid:#e9ecef; }
text { fill: var(--soft); font-size: 12.5px; } .mid { text-anchor: middle; }
.end { text-anchor: end; } .title { fill: var(--ink); font-size: 14px; font-weight: 650; }
.tag { fill: var(--ink); font-size: 12px; font-weight: 650; }
.grid { stroke: var(--grid); } .axis, .stub { stroke: var(--soft); opacity: .6; }
.band { fill: var(--c); opacity: .17; } .bar { stroke: var(--c); stroke-width: 1.4; }
.line { stroke: var(--c); stroke-width: 2; fill: none; }
.mark { fill: var(--c); stroke: var(--card); }
.hollow .mark { fill: var(--card); stroke: var(--c); stroke-width: 1.7; }
.pays .mark { display: none; } .bar.pays { display: none; }
"""


def write_break_even(found: BreakEvenMap, folder: Path) -> None:
    """Write break_even.csv, break_even_levels.csv, .md, .svg and .html, each whole or as before."""
    points = (_point_row(point) for point in found.points)
    write_atomic(folder / "break_even.csv", _csv(POINT_COLUMNS, points).encode())
    levels = (row for point in found.points for row in _level_rows(point))
    write_atomic(folder / "break_even_levels.csv", _csv(LEVEL_COLUMNS, levels).encode())
    write_atomic(folder / "break_even.md", render_markdown(found).encode())
    write_atomic(folder / "break_even.svg", render_svg(found).encode())
    write_atomic(folder / "break_even.html", render_page(found).encode())


def print_break_even(found: BreakEvenMap, console: Console) -> None:
    """The table, a sentence for each point, and what did not count."""
    console.print(_table(found))
    for point in found.points:
        console.print(Text(f"{sentence(point)} {_capital(worth(point))}".rstrip()))
    for name, sizes, reason in left_out(found):
        console.print(Text(one_line(f"left out: {name} at {sizes}: {reason}"), "yellow"))
    console.print(Text(headline(found), "bold"))


def render_markdown(found: BreakEvenMap) -> str:
    """The map as text with a table."""
    heads = ["batch size", "K", "breaks even at", "the draft has", "over plain", "verdict"]
    lines = [f"# {one_line(found.name)}: from where speculation pays", "", headline(found), ""]
    lines += [one_line(setting(found)), "", f"| {' | '.join(heads)} |", "|--:|--:|--:|--:|--:|---|"]
    lines += [f"| {' | '.join(cells_of(point))} |" for point in found.points]
    lines += ["", *(f"- {_both(point)}" for point in found.points)]
    if found.left_out:
        lines += ["", "Left out:", ""]
        lines += [f"- {one_line(f'{n} at {s}: {why}')}" for n, s, why in left_out(found)]
    return "\n".join([*lines, ""])


def render_svg(found: BreakEvenMap) -> str:
    """The picture as a file of its own, one panel a K below the other, light colours."""
    width, height, head = _PANEL
    charts = map_charts(found)
    colour = "".join(f".{style.css}{{--c:{style.light}}}" for style in STYLES.values())
    whole = max(len(charts), 1) * (height + head)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" width="{width}">',
        f'<style>{_SVG_STYLE}{colour}</style><rect width="100%" height="100%" fill="#fff"/>',
    ]
    for at, chart in enumerate(charts):
        top, title = at * (height + head), escape(clean(chart.title))
        parts.append(f'<text class="title" x="70" y="{top + 20}">{title}</text>')
        parts.append(f'<svg y="{top + head}" width="{width}" height="{height}" overflow="visible">')
        parts.append(f"{draw(chart, height=height)}</svg>")
    return "".join([*parts, "</svg>\n"])


def render_page(found: BreakEvenMap) -> str:
    """The whole page as text, without a script."""
    return (
        page_environment()
        .get_template("break_even.html.j2")
        .render(
            found=found,
            version=__version__,
            colours=colours(STYLES),
            headline=headline(found),
            setting=setting(found),
            charts=map_charts(found),
            look=STYLES,
            rows=[(cells_of(point), point, _both(point)) for point in found.points],
            left_out=left_out(found),
        )
    )


def setting(found: BreakEvenMap) -> str:
    """What was measured, in one line."""
    draft = f", draft {found.draft}" if found.draft else ""
    noise = "" if found.noise_floor is None else f", A/A noise {percent(found.noise_floor)}"
    return f"{found.tier}; {found.base} ({found.weights}), {found.method}{draft}{noise}."


def cells_of(point: BreakEvenPoint) -> tuple[str, ...]:
    """One point as the table's texts: sizes, break-even, the draft's length, speed, verdict."""
    never = "never" if point.reachable == "no" else "not found"
    edge = never if point.l_star is None else f"{point.l_star.value:.2f}{interval(point.l_star)}"
    return (
        str(point.batch_size),
        str(point.k),
        edge,
        DASH if point.real is None else f"{point.real.value:.2f}{interval(point.real)}",
        DASH if point.change is None else f"{point.change.value:.2f}{interval(point.change)}",
        point.pays if point.reachable != "no" else f"{point.pays}: beyond K + 1",
    )


def left_out(found: BreakEvenMap) -> list[tuple[str, str, str]]:
    """(variant, its batch sizes, reason), the sizes of one reason together."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for item in found.left_out:
        sizes.setdefault((item.variant, item.reason), []).append(item.batch_size)
    return [(name, ", ".join(map(str, at)), why) for (name, why), at in sizes.items()]


def _both(point: BreakEvenPoint) -> str:
    return f"{sentence(point)} {_capital(worth(point))}".rstrip()


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _table(found: BreakEvenMap) -> Table:
    made = Table(title=Text(one_line(setting(found)), "bold"), title_justify="left", box=None)
    for head in ("batch size", "K", "breaks even at", "the draft has", "over plain", "pays"):
        made.add_column(head, justify="left" if head == "pays" else "right")
    for k in ks_of(found):
        for point in (one for one in found.points if one.k == k):
            made.add_row(*(Text(cell) for cell in cells_of(point)))
    made.caption = f"{plural(len(found.points), 'point')}; 95% intervals in brackets"
    return made


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Value]]) -> str:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([field(row.get(name)) for name in columns])
    return buffer.getvalue()


def _point_row(point: BreakEvenPoint) -> dict[str, Value]:
    estimates = (point.plain_tps, point.l_star, point.real, point.change, point.headroom)
    row: dict[str, Value] = {
        "batch_size": point.batch_size,
        "k": point.k,
        "reachable": point.reachable,
        "pays": point.pays,
        "fixed_share": point.fixed_share,
        "spread": point.spread,
        "levels": len(point.levels),
    }
    for name, estimate in zip(_FIGURES, estimates, strict=True):
        row |= _ends(name, estimate)
    return row


def _level_rows(point: BreakEvenPoint) -> Iterable[dict[str, Value]]:
    for level in point.levels:
        yield {
            "batch_size": point.batch_size,
            "k": point.k,
            "level": level.level,
            "variant": level.variant,
            "note": level.note,
            **_ends("acceptance_length", level.acceptance_length),
            **_ends("tps", level.tps),
        }


def _ends(name: str, estimate: Estimate | None) -> dict[str, Value]:
    if estimate is None:
        return {}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
