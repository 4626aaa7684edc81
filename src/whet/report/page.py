"""The environment of the pages that are not documents yet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from whet.core.format import number, percent, plural
from whet.core.units import human_bytes, human_duration
from whet.report.palette import Style
from whet.report.svg import draw, mark
from whet.report.text import clean, format_time, short_path, shown


@cache
def page_environment() -> Environment:
    """What templates are rendered in: every value escaped, every string cleaned."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(draw=draw, mark=mark)
    made.filters.update(
        shown=shown,
        number=number,
        percent=percent,
        plural=plural,
        bytes=human_bytes,
        duration=human_duration,
        moment=format_time,
        short_path=short_path,
    )
    return made


def _finalize(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value)
    return value


def colours(look: Mapping[str, Style]) -> Markup:
    """The style sheet's colours of these looks, light and dark."""
    each = dict.fromkeys(look.values())
    light = "".join(f".{style.css}{{--c:{style.light}}}" for style in each)
    dark = "".join(f".{style.css}{{--c:{style.dark}}}" for style in each)
    return Markup(f"{light}@media (prefers-color-scheme:dark){{{dark}}}")
