"""One look a variant, the same in every plot: a colour, a marker and, past eight, a dash.

The colours are Okabe and Ito's (2008), which people with any common colour blindness tell apart,
lightened for a dark page. The baseline is drawn in the neutral ink, so that others stand out. Of
many variants a few are named, and the rest is quiet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

NEUTRAL: Final = ("#5b6470", "#a9b3bf")
_COLOURS: Final = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#f58a42"),
    ("#009e73", "#2fcf9f"),
    ("#b6548c", "#e6a1c6"),
    ("#a97400", "#f0c040"),
    ("#5a4fcf", "#a79df5"),
    ("#7a5230", "#cfa27c"),
)
_MARKERS: Final = ("circle", "square", "triangle", "diamond", "down", "plus", "cross")
_DASHES: Final = ("", "7 3", "2 3")


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """How one variant is drawn: ``css`` is its class on a page, the colours are hexadecimal.

    A ``quiet`` one is thin and grey, beneath the others.
    """

    css: str
    light: str
    dark: str
    marker: str
    dash: str
    quiet: bool = False


QUIET: Final = Style(
    css="quiet", light="#c9ced4", dark="#474f59", marker="circle", dash="", quiet=True
)


def styles(
    variants: Sequence[str], baseline: str | None, named: Collection[str] | None = None
) -> dict[str, Style]:
    """A style for each variant, steady as long as the order of the variants is.

    With ``named`` all others but the baseline are quiet.
    """
    shown = variants if named is None else [name for name in variants if name in named]
    made = dict.fromkeys(variants, QUIET)
    others = [name for name in shown if name != baseline]
    if baseline in variants and baseline is not None:
        made[baseline] = Style(
            css="v0", light=NEUTRAL[0], dark=NEUTRAL[1], marker="circle", dash=""
        )
    for at, name in enumerate(others):
        light, dark = _COLOURS[at % len(_COLOURS)]
        made[name] = Style(
            css=f"v{at + 1}",
            light=light,
            dark=dark,
            marker=_MARKERS[(at + 1) % len(_MARKERS)],
            dash=_DASHES[(at // len(_COLOURS)) % len(_DASHES)],
        )
    return made
