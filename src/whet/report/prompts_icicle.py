"""The tree of prompts as an icicle: tokens to the right, the share of requests downwards.

A run of tokens is as wide as it is long and as high as the requests that begin with it, so an area
is tokens × requests, and the picture's all is what prefill costs without a cache. After Kruskal
and Landwehr (1983).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import escape
from rich.cells import cell_len, set_cell_size

from whet.core.records import CAUSES, PrefixNode
from whet.core.redact import redact
from whet.report.chart import Axis, value_axis
from whet.report.palette import Style, styles
from whet.report.prompts_excerpt import REDACTED, visible
from whet.report.prompts_words import cause_words
from whet.report.text import percent, plural

_MORE: Final = (("#b3261e", "#ff8f86"), ("#4d7c0f", "#a3d15f"), ("#0e7490", "#4fd1e0"))
"""Light and dark colours for causes beyond the palette's."""
_PALETTE: Final = 7


def _styles() -> dict[str, Style]:
    made = {}
    for at, (kind, style) in enumerate(styles(list(CAUSES), None).items()):
        light, dark = _MORE[(at - _PALETTE) % len(_MORE)] if at >= _PALETTE else ("", "")
        made[kind] = replace(
            style, css=f"cause-{kind}", light=light or style.light, dark=dark or style.dark
        )
    return made


ICICLE_STYLES: Final = _styles()
"""The colour of each cause; a kind without one is drawn in the neutral ink."""
_WIDTH, _TALL = 1100.0, 440.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 12.0, 8.0, 46.0
_LEAST: Final = 3.0
"""Pixels of height below which branches are drawn together."""
_MOST_BOXES: Final = 300
_TAIL: Final = 0.02
"""A share of all tokens × requests that may lie beyond the picture's right edge."""
_LINE, _LETTER, _PAD = 14.0, 6.7, 5.0
_TAG_LETTER: Final = 7.7
"""Pixels of a letter; a cause's name is bold."""
_LEGEND_LINE: Final = 20.0
_HATCHES: Final = ("45", "-45")
"""How hatching runs: every other cause the other way, for those who tell colours apart badly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A rectangle in tokens from the prompt's start and requests from the top.

    ``branches`` is above 0 for branches drawn together: their length is then the mean of what is
    known of them and their siblings, ``node`` is their parent.
    """

    node: PrefixNode
    start: float
    end: float
    top: int
    requests: int
    cause: str | None
    branches: int = 0

    @property
    def area(self) -> float:
        """Tokens × requests."""
        return (self.end - self.start) * self.requests

    @property
    def css(self) -> str:
        """How it is drawn: ``lost``, ``rest``, ``single`` (one request's own) or ``shared``."""
        if self.branches:
            return "rest" if self.cause is None else "lost rest"
        if self.cause is not None:
            return "lost"
        return "single" if self.requests == 1 else "shared"


def icicle_svg(tree: PrefixNode, *, redacted: bool) -> str:
    """The tree as inline SVG, coloured by the page's style sheet, the same for the same tree.

    A lost branch is hatched in its cause's colour. Under ``redacted`` no text of a prompt is in it.
    """
    every = lay_out(tree, tree.requests * _LEAST / _TALL)
    boxes = _largest(every)
    reach = _reach(boxes)
    axis = replace(value_axis("tokens from the prompt's start", [0.0, reach]), high=reach)
    axis = replace(axis, ticks=tuple(tick for tick in axis.ticks if tick[0] <= reach))
    frame = _Frame(axis, max(tree.requests, 1))
    bottom = _TOP + _TALL + _BOTTOM
    notes = _notes(boxes, len(every) - len(boxes), reach)
    legend, bottom = _legend(boxes, bottom)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart icicle" '
        f'viewBox="0 0 {_WIDTH:g} {bottom + _LEGEND_LINE * len(notes):g}" role="img" '
        'aria-label="Prompts as a tree: tokens to the right, share of requests downwards">',
        _hatches(boxes),
        *_scales(frame),
        *(_box(box, frame, redacted) for box in boxes),
        *legend,
        *(
            f'<text class="hint" x="{_LEFT:g}" y="{bottom + _LEGEND_LINE * at + 8:g}">'
            f"{escape(note)}</text>"
            for at, note in enumerate(notes)
        ),
        "</svg>",
    ]
    return "".join(parts)


def lay_out(tree: PrefixNode, least: float) -> list[Box]:
    """Every rectangle, parents first. Branches of fewer requests than ``least`` are put together.

    Children lie to the right of their parent, the largest on top; requests that end with the
    parent leave their room empty.
    """
    made: list[Box] = []
    waiting = [(tree, 0)]
    while waiting:
        node, top = waiting.pop()
        if node.tokens and node.requests:
            end = node.start + node.tokens
            made.append(
                Box(
                    node=node,
                    start=node.start,
                    end=end,
                    top=top,
                    requests=node.requests,
                    cause=node.cause,
                )
            )
        children = sorted(node.children, key=lambda child: -child.requests)
        drawn = [child for child in children if child.requests >= least]
        at, placed = top, []
        for child in drawn:
            placed.append((child, at))
            at += child.requests
        if rest := _rest(node, children, len(drawn), at):
            made.append(rest)
        waiting.extend(reversed(placed))
    return made


def _rest(node: PrefixNode, children: Sequence[PrefixNode], drawn: int, top: int) -> Box | None:
    """The branches too small to draw with those that the tree only counts, as one."""
    small = children[drawn:]
    requests = node.other_requests + sum(child.requests for child in small)
    if not requests:
        return None
    known = small or children
    start = node.start + node.tokens
    weight = sum(child.requests for child in known)
    mean = sum(_size(child) for child in known) / weight if weight else max(start / 8, 1.0)
    return Box(
        node=node,
        start=start,
        end=start + mean,
        top=top,
        requests=requests,
        cause=_common_cause(children),
        branches=node.other_children + len(small),
    )


def _size(tree: PrefixNode) -> int:
    """Tokens × requests of a whole branch, as far as the tree tells."""
    waiting, size = [tree], 0
    while waiting:
        node = waiting.pop()
        size += node.tokens * node.requests
        waiting.extend(node.children)
    return size


def _common_cause(children: Sequence[PrefixNode]) -> str | None:
    """Why siblings are lost, where all agree; the largest may be what the others should be as."""
    others = children[1:] if children and children[0].cause is None else children
    causes = {child.cause for child in others}
    return causes.pop() if len(causes) == 1 else None


def _largest(boxes: Sequence[Box]) -> list[Box]:
    """At most ``_MOST_BOXES``, in their order."""
    order = sorted(range(len(boxes)), key=lambda at: (-boxes[at].area, at))[:_MOST_BOXES]
    return [boxes[at] for at in sorted(order)]


def _reach(boxes: Sequence[Box]) -> float:
    """The token at the right edge: the last one, unless few long prompts would squeeze the rest."""
    if not boxes:
        return 1.0
    deepest = max(box.end for box in boxes)
    spare = _TAIL * sum(box.area for box in boxes)
    for end in sorted({box.end for box in boxes}):
        beyond = sum(max(box.end - max(box.start, end), 0) * box.requests for box in boxes)
        if beyond <= spare:
            return end if end < deepest / 2 else deepest
    return deepest


class _Frame:
    """Places tokens and requests in the drawing."""

    def __init__(self, axis: Axis, requests: int) -> None:
        self.axis, self.requests = axis, requests

    def x(self, tokens: float) -> float:
        place = min(max(self.axis.place(tokens), 0.0), 1.0)
        return round(_LEFT + place * (_WIDTH - _LEFT - _RIGHT), 2)

    def y(self, request: float) -> float:
        return round(_TOP + request / self.requests * _TALL, 2)


def _scales(frame: _Frame) -> Iterator[str]:
    floor = _TOP + _TALL
    for value, text in frame.axis.ticks:
        x = frame.x(value)
        yield f'<path class="stub" d="M{x:g} {floor:g}v4"/>'
        yield f'<text class="tick mid" x="{x:g}" y="{floor + 18:g}">{escape(text)}</text>'
    yield f'<path class="axis" d="M{_LEFT:g} {floor:g}H{_WIDTH - _RIGHT:g}"/>'
    for quarter in range(5):
        y = _TOP + _TALL * quarter / 4
        yield f'<text class="tick end" x="{_LEFT - 7:g}" y="{y + 4:g}">{25 * quarter}%</text>'
    yield (
        f'<text class="name mid" x="{(_LEFT + _WIDTH - _RIGHT) / 2:g}" y="{floor + 36:g}">'
        f"{escape(frame.axis.label)} · down: share of requests</text>"
    )


def _box(box: Box, frame: _Frame, redacted: bool) -> str:
    x, y = frame.x(box.start), frame.y(box.top)
    wide = round(frame.x(box.end) - x, 2)
    tall = round(frame.y(box.top + box.requests) - y, 2)
    fill = f' fill="url(#{_hatch(box.cause)})"' if box.cause is not None else ""
    return (
        f'<g class="{box.css}"><title>{_tip(box, frame.requests, redacted)}</title>'
        f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{tall:g}"{fill}/>'
        f"{''.join(_lines(box, (x, y, wide, tall), redacted))}</g>"
    )


def _lines(box: Box, place: tuple[float, float, float, float], redacted: bool) -> Iterator[str]:
    """As many lines of text as fit: the cause, how the run begins, its figures."""
    x, y, wide, tall = place
    letters = {"tag": int((wide - 2 * _PAD) / _TAG_LETTER)}
    plain = int((wide - 2 * _PAD) / _LETTER)
    fits = int((tall - 2) / _LINE)
    words = []
    if box.cause is not None:
        words.append(("tag", cause_words(box.cause)))
    if box.branches:
        each = "" if box.branches == box.requests else f", {plural(box.requests, 'request')}"
        words.append(("figure", f"{box.branches:,} other{'s' * (box.branches != 1)}{each}"))
    else:
        if text := _text(box.node, redacted):
            words.append(("mono", text))
        figures = f"{plural(box.node.tokens, 'token')} × {plural(box.requests, 'request')}"
        words.append(("figure", figures))
    for at, (css, text) in enumerate(words[:fits] if plain >= 4 else ()):
        yield (
            f'<text class="{css}" x="{x + _PAD:g}" y="{y + 13 + at * _LINE:g}">'
            f"{escape(_fitted(text, letters.get(css, plain)))}</text>"
        )


def _text(node: PrefixNode, redacted: bool) -> str:
    """How a run begins; nothing where that is not to be shown."""
    if redacted or not node.text:
        return ""
    return visible(redact(node.text[:400]))


def _tip(box: Box, whole: int, redacted: bool) -> str:
    """The full figures, and more of the text than fits."""
    said = f"{plural(box.requests, 'request')} ({percent(box.requests / whole)})"
    if box.branches:
        many = "branch" if box.branches == 1 else "branches"
        said = f"{box.branches:,} smaller {many} after {plural(int(box.start), 'token')}, {said}"
    else:
        said = f"{plural(box.node.tokens, 'token')} after {box.node.start:,}, {said}"
    if box.cause is not None:
        said += f"; lost to {cause_words(box.cause)}"
    if not box.branches:
        said += f": {REDACTED if redacted else _text(box.node, redacted)}"
    return escape(said.removesuffix(": "))


def _fitted(text: str, letters: int) -> str:
    if cell_len(text) <= letters:
        return text
    return f"{set_cell_size(text, letters - 1).rstrip()}…"


def _hatch(kind: str | None) -> str:
    return f"hatch-{kind}" if kind in ICICLE_STYLES else "hatch-other"


def _hatches(boxes: Sequence[Box]) -> str:
    """A pattern for each cause in the picture."""
    made = {}
    for kind in dict.fromkeys(box.cause for box in boxes if box.cause is not None):
        known = kind in ICICLE_STYLES
        turn = _HATCHES[list(ICICLE_STYLES).index(kind) % len(_HATCHES)] if known else "90"
        css = ICICLE_STYLES[kind].css if known else "v0"
        made[_hatch(kind)] = (
            f'<pattern id="{_hatch(kind)}" class="{css}" width="7" height="7" '
            f'patternUnits="userSpaceOnUse" patternTransform="rotate({turn})">'
            '<rect class="ground" width="7" height="7"/><rect class="stripe" width="2.5" '
            'height="7"/></pattern>'
        )
    return f"<defs>{''.join(made.values())}</defs>"


def _legend(boxes: Sequence[Box], top: float) -> tuple[list[str], float]:
    """What the colours mean, in as many lines as it takes, and where it ends."""
    seen = {box.css for box in boxes}
    named = [
        ("shared", "", "shared: found again by all but the first"),
        ("single", "", "one request's own"),
        ("rest", "", "smaller branches together"),
    ]
    items = [item for item in named if item[0] in seen]
    for kind in (*ICICLE_STYLES, *sorted({b.cause for b in boxes if b.cause} - set(ICICLE_STYLES))):
        if any(box.cause == kind for box in boxes):
            items.append(("lost", f' fill="url(#{_hatch(kind)})"', f"lost: {cause_words(kind)}"))
    made, x, y = [], _LEFT, top + 12
    for css, fill, words in items:
        wide = 26 + _LETTER * cell_len(words) + 16
        if x > _LEFT and x + wide > _WIDTH:
            x, y = _LEFT, y + _LEGEND_LINE
        made.append(
            f'<g class="{css}"><rect class="swatch" x="{x:g}" y="{y - 10:g}" width="20" height="12"'
            f'{fill}/></g><text class="tick" x="{x + 26:g}" y="{y:g}">{escape(words)}</text>'
        )
        x += wide
    return made, y + 16


def _notes(boxes: Sequence[Box], dropped: int, reach: float) -> list[str]:
    """What the picture leaves out."""
    made = []
    if not boxes:
        made.append("No prompt has a token to draw.")
    longest = max((box.end for box in boxes), default=0.0)
    if longest > reach:
        made.append(
            f"Cut at {plural(round(reach), 'token')}; the longest branch has "
            f"{plural(round(longest), 'token')}."
        )
    if dropped:
        made.append(f"{plural(dropped, 'smaller run')} of tokens not drawn.")
    return made
