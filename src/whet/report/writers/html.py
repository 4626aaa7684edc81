"""One HTML file with one script of ours and no request; every foreign string is escaped."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from whet._version import __version__
from whet.core.redact import clean
from whet.core.store import write_atomic
from whet.report.charts.svg import style_sheet, svg_of
from whet.report.document import Document, Section

_TEMPLATES: Final = Path(__file__).parent.parent / "templates"


def write_html(document: Document, path: Path) -> None:
    """Write the page atomically."""
    write_atomic(path, render_html(document))


def render_html(document: Document) -> str:
    """The whole page as text."""
    template = _environment().get_template("document.html.j2")
    return template.render(document=document, version=__version__, colours=Markup(style_sheet()))


def render_section(section: Section) -> str:
    """Return one section for a cell of a notebook, in the notebook's own colours; no charts."""
    return _environment().get_template("section.html.j2").render(section=section)


@cache
def _environment() -> Environment:
    script = (_TEMPLATES / "document.js").read_bytes()
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        svg=lambda chart: Markup(svg_of(chart)),
        kind_of=lambda node: type(node).__name__,
        script=Markup(script.decode()),
        script_hash=b64encode(sha256(script).digest()).decode(),
    )
    return environment


def _finalize(value: Any) -> Any:
    """Clean every string that enters the page; escaping follows."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return clean(value)
    return value
