"""``prompts.html``: one file, no script, no request; every text of a prompt escaped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from whet import __version__
from whet.core.records import Cause, PromptAnalysis
from whet.report.html import colours, page_environment
from whet.report.palette import Style
from whet.report.prompts_excerpt import REDACTED, ShownExcerpt, shown_excerpt
from whet.report.prompts_icicle import ICICLE_STYLES, icicle_svg
from whet.report.prompts_plot import AS_IS, CURVE_STYLES, HERE, MENDED, cache_curve_svg
from whet.report.prompts_sides import Row, side_by_side
from whet.report.prompts_words import (
    CAUSE_HEADS,
    REPLAY_HEADS,
    STEP_HEADS,
    cause_cells,
    cause_words,
    differences,
    headline,
    is_redacted,
    left_out_lines,
    method,
    milliseconds,
    ordered,
    replay_rows,
    saving_sentence,
    setting,
    short_count,
    step_cells,
    steps,
)
from whet.report.text import percent

_ROOM = 160
"""Characters that an excerpt shows of each part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """A figure at the top of the page."""

    name: str
    text: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownCause:
    """A cause with its excerpts; ``css`` is its colour's class."""

    words: str
    css: str
    cause: Cause
    excerpts: tuple[ShownExcerpt, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownProposal:
    """A proposal with its prompts side by side; ``told`` stands in for rows that are not there."""

    title: str
    words: str
    place: str
    rows: tuple[Row, ...]
    told: str


def render_prompts(analysis: PromptAnalysis) -> str:
    """The whole page as text, without a script."""
    redacted = is_redacted(analysis)
    curve = cache_curve_svg(analysis.curve, analysis.repaired_curve, analysis.cache_blocks)
    looks: dict[str, Style] = {**ICICLE_STYLES, **CURVE_STYLES}
    cells = [
        step_cells(proposal.title, proposal.requests, step)
        for proposal, step in zip(analysis.proposals, steps(analysis), strict=True)
    ]
    return (
        page_environment()
        .get_template("prompts.html.j2")
        .render(
            analysis=analysis,
            version=__version__,
            colours=colours(looks),
            as_is=AS_IS,
            mended=MENDED,
            here=HERE,
            headline=headline(analysis),
            setting=setting(analysis),
            redacted=redacted,
            tiles=tuple(_tiles(analysis)),
            icicle=Markup(icicle_svg(analysis.tree, redacted=redacted)),
            curve=Markup(curve),
            cause_heads=CAUSE_HEADS,
            cause_rows=[(cause_cells(item, analysis), item.mend) for item in ordered(analysis)],
            causes=[_shown(item) for item in ordered(analysis)],
            step_heads=STEP_HEADS,
            step_rows=cells,
            saving=saving_sentence(analysis),
            proposals=tuple(_proposals(analysis)),
            replay_heads=REPLAY_HEADS,
            replay_rows=replay_rows(analysis),
            differences=differences(analysis),
            left_out=left_out_lines(analysis),
            method=method(analysis),
        )
    )


def _tiles(analysis: PromptAnalysis) -> Iterator[Tile]:
    done = steps(analysis)
    yield Tile(name="as the traffic is", text=percent(analysis.hits.rate), note="never evicting")
    yield Tile(name="once mended", text=percent(analysis.repaired.rate), note="never evicting")
    if analysis.sized is not None and analysis.cache_blocks is not None:
        both = (analysis.sized, analysis.repaired_sized)
        rates = [percent(hits.rate) for hits in both if hits is not None]
        room = short_count(analysis.cache_blocks * analysis.block_size)
        yield Tile(
            name="in the cache at hand", text=" → ".join(rates), note=f"room for {room} tokens"
        )
    if done:
        last = done[-1]
        note = "" if last.ttft_s is None else f"mean TTFT {milliseconds(last.ttft_s)} predicted"
        yield Tile(name="prefill tokens saved", text=short_count(last.saved_tokens), note=note)


def _shown(cause: Cause) -> ShownCause:
    known = ICICLE_STYLES.get(cause.kind)
    return ShownCause(
        words=cause_words(cause.kind),
        css=known.css if known else "v0",
        cause=cause,
        excerpts=tuple(shown_excerpt(item, cause.kind, room=_ROOM) for item in cause.examples),
    )


def _proposals(analysis: PromptAnalysis) -> Iterator[ShownProposal]:
    for proposal in analysis.proposals:
        before, after = proposal.before, proposal.after
        known = before is not None and after is not None
        rows = side_by_side(before or "", after or "") if known else ()
        yield ShownProposal(
            title=proposal.title,
            words=", ".join(cause_words(kind) for kind in proposal.kinds),
            place=proposal.place,
            rows=rows,
            told="This request stays as it is." if known else REDACTED,
        )
