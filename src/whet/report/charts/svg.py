"""Static SVG of a chart, for a light and a dark page, with a tooltip on every mark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from subprocess import DEVNULL, PIPE
from typing import Final
from xml.etree import ElementTree

from whet.core.redact import one_line
from whet.report.charts.palette import variables
from whet.report.document import Chart

_LABELLED = re.compile(r'<(path|text|rect|line)( aria-label="([^"]+)"[^>]*?)/>')
_UNNAMED = re.compile(r' aria-label="" role="[^"]*"')  # lines and boxes: no reader can use them
_COLOUR = re.compile(r'"(#f[de]00[0-9a-f]{2})"')
_DRAW: Final = """
import json, sys, vl_convert
for line in sys.stdin:
    print(json.dumps(vl_convert.vegalite_to_svg(json.loads(line))), flush=True)
"""
_NOT_DRAWN: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="600" height="30" viewBox="0 0 600 30">'
    '<text x="4" y="20">This chart was left out: the chart library could not run.</text></svg>'
)
_UNSAFE: Final = {"script", "foreignobject", "image", "a", "iframe", "style"}


def svg_of(chart: Chart) -> str:
    """The chart with its title as an SVG element of CSS colours (``style_sheet``)."""
    title = {"text": one_line(chart.title), "subtitle": one_line(chart.description)}
    return _convert(json.dumps({"title": title, **chart.picture()}))


@cache
def _convert(spec: str) -> str:
    text = _draw(spec)
    if text is None:
        _warn()
        return _NOT_DRAWN
    text = _LABELLED.sub(r"<\1\2><title>\3</title></\1>", text)
    text = _UNNAMED.sub(' aria-hidden="true"', text)
    names = variables()
    text = _COLOUR.sub(lambda match: f'"var(--{names[match[1]][0]})"', text)
    _require_passive(text)
    return text


def _draw(spec: str) -> str | None:
    """The picture, or None where the chart library cannot run on this machine."""
    try:
        child = _drawer()
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):  # it ended: the empty answer says so
            print(json.dumps(spec), file=child.stdin, flush=True)
        return str(json.loads(child.stdout.readline()))
    except (OSError, ValueError):
        return None


@cache
def _drawer() -> subprocess.Popen[str]:
    """The chart library in a process that ends with this one.

    Its V8 aborts the process where it cannot reserve tens of gigabytes of addresses.
    """
    words = (sys.executable, "-P", "-c", _DRAW)
    return subprocess.Popen(words, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True)


@cache
def _warn() -> None:
    print("warning: charts are left out: raise ulimit -v for the chart library", file=sys.stderr)


def _require_passive(text: str) -> None:
    """Raise ``ValueError`` for an element or an attribute that could run or load something."""
    for element in ElementTree.fromstring(text).iter():
        names = [name.rpartition("}")[2].lower() for name in element.attrib]
        tag = element.tag.rpartition("}")[2].lower()
        if tag in _UNSAFE or any(name == "href" or name.startswith("on") for name in names):
            raise ValueError(f"a chart holds active content: {tag}")


def style_sheet() -> str:
    """The CSS variables of every chart colour, light and dark."""
    light = "".join(f"--{name}:{colour};" for name, colour, _ in variables().values())
    dark = "".join(f"--{name}:{colour};" for name, _, colour in variables().values())
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def svg_file(chart: Chart) -> str:
    """The chart as a file of its own, with its colours."""
    head, tag, body = svg_of(chart).partition(">")
    return f"{head}{tag}<style>{style_sheet()}</style>{body}"
