"""One colour a variant, the same in every chart, on a light page and on a dark one.

The colours are Okabe and Ito's (2008), which people with any common colour blindness distinguish,
lightened for a dark page. The baseline has the neutral ink. Charts are drawn with placeholders,
which the SVG writer replaces by CSS variables.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

_COLOURS: Final = (
    ("#5b6470", "#a9b3bf"),
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#f58a42"),
    ("#009e73", "#2fcf9f"),
    ("#b6548c", "#e6a1c6"),
    ("#a97400", "#f0c040"),
    ("#5a4fcf", "#a79df5"),
    ("#7a5230", "#cfa27c"),
)
_SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
CROSSED: Final = "M-.6-1L0-.4.6-1 1-.6.4 0 1 .6.6 1 0 .4-.6 1-1 .6-.4 0-1-.6Z"
"""The mark of what is excluded, an SVG path: ×."""
QUIET: Final = "#fe00ff"
INK: Final = "#fe00fe"
GRID: Final = "#fe00fd"
_FIXED: Final = {
    QUIET: ("quiet", "#b9bfc6", "#565f69"),
    INK: ("ink", "#5f6873", "#a3adb8"),
    GRID: ("grid", "#e4e7ea", "#2a3138"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """How one series is drawn: a placeholder colour and a marker."""

    colour: str
    shape: str


def looks(
    names: Sequence[str], baseline: str | None = None, named: Collection[str] | None = None
) -> dict[str, Look]:
    """A look for each name, the baseline in the neutral ink; with ``named`` all others are grey."""
    result = dict.fromkeys(names, Look(colour=QUIET, shape="circle"))
    shown = [name for name in names if named is None or name in named]
    if baseline in result and baseline is not None:
        result[baseline] = Look(colour=placeholder(0), shape="circle")
    for at, name in enumerate(name for name in shown if name != baseline):
        colour = placeholder(at % (len(_COLOURS) - 1) + 1)
        result[name] = Look(colour=colour, shape=_SHAPES[(at + 1) % len(_SHAPES)])
    return result


def placeholder(number: int) -> str:
    """The placeholder of colour ``number``; 0 is neutral."""
    return f"#fd00{number:02x}"


def variables() -> dict[str, tuple[str, str, str]]:
    """Every placeholder with its CSS variable and its light and dark colour."""
    own = {placeholder(n): (f"c{n}", light, dark) for n, (light, dark) in enumerate(_COLOURS)}
    return own | _FIXED
