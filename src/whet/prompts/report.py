"""The report of ``whet prompts``: console, one HTML page, JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from jinja2 import ChoiceLoader, FileSystemLoader
from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet import __version__
from whet.core.format import number, percent, plural
from whet.core.records import HitTokens
from whet.core.store import write_atomic, write_json
from whet.core.units import NS_PER_S
from whet.prompts.fixes import ADVICE, FIXES
from whet.prompts.records import CAUSES, CacheCurve, Cause, Example, Fix, PromptAnalysis
from whet.report.chart import Axis, Chart, Point, Series, value_axis
from whet.report.page import colours, page_environment
from whet.report.palette import NEUTRAL, Style
from whet.report.svg import draw
from whet.report.text import DASH, format_time, one_line

REDACTED: Final = "(redacted)"
_AS_IS: Final = Style(css="as-is", light="#d55e00", dark="#f58a42", marker="square", dash="")
_FIXED: Final = Style(css="fixed", light="#009e73", dark="#2fcf9f", marker="circle", dash="")
_HERE: Final = Style(css="here", light=NEUTRAL[0], dark=NEUTRAL[1], marker="circle", dash="5 4")
_SIGNS: Final = str.maketrans({"\n": "⏎", "\t": "→", "\r": "␍", "\u00a0": "⍽"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A table of the report. The first ``words`` columns are words, the others are numbers."""

    id: str
    title: str
    note: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


def write_report(analysis: PromptAnalysis, folder: Path) -> None:
    """Write prompts.html and prompts.json; ``StorageError`` where that fails."""
    write_json(folder / "prompts.json", analysis)
    write_atomic(folder / "prompts.html", render_page(analysis).encode())


def print_report(analysis: PromptAnalysis, console: Console) -> None:
    """Print the report; text of prompts is printed literally, without control characters."""
    console.print(Text(headline(analysis), "bold"))
    console.print(Text("; ".join(setting(analysis)), "dim"))
    for section in sections(analysis):
        console.print()
        made = Table(title=Text(section.title, "bold"), title_justify="left", padding=(0, 1, 0, 0))
        made.box, made.pad_edge = None, False
        for at, head in enumerate(section.heads):
            is_words = at < section.words
            made.add_column(head, justify="left" if is_words else "right", overflow="fold")
        for row in section.rows:
            made.add_row(*map(Text, row))
        console.print(made)
        if section.note:
            console.print(Text(section.note, "dim"))
        if section.id == "causes":
            for cause in analysis.causes:
                console.print(Text(f"{CAUSES[cause.kind]}: {advice(cause)}"))
                for example in cause.examples[:1]:
                    console.print(Text(f"  {example_line(example)}"), overflow="fold")
    if not analysis.causes:
        console.print(Text("No named cause was found.", "dim"))


def render_page(analysis: PromptAnalysis) -> str:
    """The page as text; without a script, every text of a prompt escaped."""
    base = page_environment()
    own = FileSystemLoader(Path(__file__).parent)
    environment = base.overlay(loader=ChoiceLoader([own, base.loader] if base.loader else [own]))
    chart = curve_chart(analysis)
    return environment.get_template("page.html.j2").render(
        analysis=analysis,
        version=__version__,
        colours=colours({style.css: style for style in (_AS_IS, _FIXED, _HERE)}),
        as_is=_AS_IS,
        fixed=_FIXED,
        headline=headline(analysis),
        setting=setting(analysis),
        tiles=tuple(_tiles(analysis)),
        curve=None if chart is None else draw(chart, height=300),
        sections=sections(analysis),
        causes=[
            (
                CAUSES[cause.kind],
                cause.where,
                advice(cause),
                list(map(example_line, cause.examples)),
            )
            for cause in analysis.causes
        ],
    )


def headline(analysis: PromptAnalysis) -> str:
    """The hit rate as it is and with the fixes, in one or two sentences."""
    hits = analysis.hits
    if not hits.prompt_tokens:
        return "The log holds no prompt tokens."
    text = (
        f"A prefix cache finds {percent(hits.rate)} of {count_text(hits.prompt_tokens)} prompt "
        "tokens if it never evicts"
    )
    if analysis.sized is not None and analysis.cache_blocks is not None:
        room = count_text(analysis.cache_blocks * analysis.block_size)
        text += f", and {percent(analysis.sized.rate)} with room for {room} tokens"
    if analysis.fixes:
        return f"{text}. With the fixes below it finds {percent(analysis.best.rate)}."
    return f"{text}. No fix raises that."


def setting(analysis: PromptAnalysis) -> tuple[str, ...]:
    """Source, model, requests, block size and times."""
    words = [analysis.source, analysis.model, plural(analysis.requests, "request")]
    words.append(f"blocks of {plural(analysis.block_size, 'token')}")
    if analysis.first_at_ns is not None and analysis.last_at_ns is not None:
        words.append(f"{_when(analysis.first_at_ns)} to {_when(analysis.last_at_ns)}")
    return tuple(one_line(word) for word in words if word)


def sections(analysis: PromptAnalysis) -> tuple[Section, ...]:
    """Every table that has a row."""
    made = (_causes(analysis), _fixes(analysis), _replays(analysis), _prefixes(analysis),
            _left_out(analysis))  # fmt: skip
    return tuple(section for section in made if section.rows)


def _causes(analysis: PromptAnalysis) -> Section:
    note = (
        "A request counts once, by its first difference from its nearest predecessor. The tokens "
        "are an estimate of what both share behind that difference."
    )
    if analysis.unnamed:
        note += f" {plural(analysis.unnamed, 'request')} differ early for another reason."
    rows = [
        (
            CAUSES[cause.kind],
            one_line(cause.where) + (f", since {_when(cause.since_ns)}" if cause.since_ns else ""),
            f"{cause.requests:,}",
            f"{cause.tokens:,}",
            _share(cause.tokens, analysis.hits.prompt_tokens),
        )
        for cause in analysis.causes
    ]
    heads = ("cause", "where", "requests", "tokens behind it", "of all")
    return Section(id="causes", title="Causes", note=note, heads=heads, rows=tuple(rows), words=2)


def _fixes(analysis: PromptAnalysis) -> Section:
    every = [*analysis.fixes, *([analysis.together] if analysis.together else [])]
    return Section(
        id="fixes",
        title="Fixes",
        note="The hit rate is that of the whole log replayed through the cache model with the fix. "
        "Fixes that do not raise it are left out. Moved text changes what the model reads: check "
        "the answers.",
        heads=("fix", "one changed line", "requests", "hit rate", "gain", "prefill saved"),
        rows=tuple(_fix_row(fix, analysis) for fix in every),
        words=2,
    )


def _fix_row(fix: Fix, analysis: PromptAnalysis) -> tuple[str, ...]:
    shown = DASH if fix.before is None else f"{visible(fix.before)} ⟹ {visible(fix.after or '')}"
    saved = _computed(analysis.hits) - _computed(fix.hits)
    rates = percent(fix.hits.rate)
    if fix.sized is not None:
        rates += f" ({percent(fix.sized.rate)} sized)"
    return (
        fix.title,
        REDACTED if analysis.redacted else shown,
        f"{fix.requests:,}",
        rates,
        f"{100 * (fix.hits.rate - analysis.hits.rate):+.2f} pt",
        f"{count_text(saved)} tokens",
    )


def _replays(analysis: PromptAnalysis) -> Section:
    rows = [
        (
            one_line(replay.what),
            one_line(replay.differs or ""),
            f"{replay.requests:,}",
            percent(replay.predicted.rate),
            percent(replay.measured.rate),
            DASH if replay.ttft_mean_s is None else f"{number(1e3 * replay.ttft_mean_s)} ms",
        )
        for replay in analysis.replays
    ]
    return Section(
        id="replays",
        title="Replayed on a server",
        note="Measured are the server's own counters, from a cold cache, one request at a time.",
        heads=("replay", "difference", "requests", "predicted", "measured", "mean TTFT"),
        rows=tuple(rows),
        words=2,
    )


def _prefixes(analysis: PromptAnalysis) -> Section:
    rows = [
        (
            REDACTED if each.text is None else visible(each.text),
            f"{each.start:,} to {each.tokens:,}",
            f"{each.requests:,}",
            _share(each.requests, analysis.requests),
        )
        for each in analysis.prefixes
    ]
    return Section(
        id="prefixes",
        title="Largest shared prefixes",
        note="Runs of full blocks that requests have in common, by the tokens that they save.",
        heads=("text", "tokens", "requests", "of all"),
        rows=tuple(rows),
    )


def _left_out(analysis: PromptAnalysis) -> Section:
    rows = [(one_line(e.reason), one_line(e.first), f"{e.count:,}") for e in analysis.left_out]
    return Section(
        id="left-out",
        title="Left out of the log",
        note="",
        heads=("reason", "first", "lines"),
        rows=tuple(rows),
        words=2,
    )


def advice(cause: Cause) -> str:
    """What to do against a cause."""
    return FIXES.get(cause.kind, ADVICE)


def example_line(example: Example) -> str:
    """Both places, and ``…before[here | there]``."""
    places = f"{one_line(example.place)} and {one_line(example.other_place)}: "
    if example.before is None:
        return places + REDACTED
    texts = (example.before, example.here or "", example.there or "")
    before, here, there = map(visible, texts)
    return f"{places}…{before}[{here} | {there}]"


def visible(text: str) -> str:
    """``text`` on one line with signs for line ends and tabs; trailing blanks as dots."""
    bare = text.rstrip(" ")
    text = bare + "·" * (len(text) - len(bare))
    return "".join(c if c.isprintable() else "\ufffd" for c in text.translate(_SIGNS))


def count_text(count: int) -> str:
    """``15,000``, ``1.50 M``, ``2.10 G``."""
    for size, sign in ((10**9, "G"), (10**6, "M")):
        if abs(count) >= size:
            return f"{number(count / size)} {sign}"
    return f"{count:,}"


def curve_chart(analysis: PromptAnalysis) -> Chart | None:
    """Hit rate by cache size, as is and with the fixes; None where no size has a hit."""
    lines = [("as the log is", _AS_IS, _points(analysis.curve))]
    if analysis.fixed_curve is not None:
        lines.append(("with the fixes", _FIXED, _points(analysis.fixed_curve)))
    sizes = [x for _, _, points in lines for x, _ in points]
    if not sizes:
        return None
    series = [
        Series(
            name=name,
            style=style,
            points=tuple(
                Point(x=x, y=y, hover=f"{name}, {count_text(round(x))} tokens: {percent(y)}")
                for x, y in points
            ),
        )
        for name, style, points in lines
    ]
    if analysis.cache_blocks:
        here = float(analysis.cache_blocks * analysis.block_size)
        sizes.append(here)
        ends = (Point(x=here, y=0.0), Point(x=here, y=1.0, label="this cache"))
        series.insert(0, Series(name="this cache", style=_HERE, points=ends, spread=""))
    low, high = min(sizes) / 1.35, max(*sizes, 30 * min(sizes)) * 1.35
    ticks = value_axis("", [low, high]).ticks
    return Chart(
        id="cache",
        title="Hit rate by cache size",
        note="",
        x=Axis(
            label="size of the cache in KV tokens",
            low=low,
            high=high,
            ticks=tuple((v, count_text(round(v))) for v, _ in ticks if low <= v <= high),
            log=True,
        ),
        y=Axis(
            label="prompt tokens found",
            low=0.0,
            high=1.0,
            ticks=tuple((at / 4, f"{25 * at}%") for at in range(5)),
        ),
        series=tuple(series),
    )


def _points(curve: CacheCurve) -> list[tuple[float, float]]:
    return [
        (float(point.blocks * curve.block_size), point.hit_tokens / curve.prompt_tokens)
        for point in curve.points
        if point.blocks > 0 and curve.prompt_tokens
    ]


def _tiles(analysis: PromptAnalysis) -> Iterator[tuple[str, str, str]]:
    yield "hit rate as the log is", percent(analysis.hits.rate), "never evicting"
    if analysis.fixes:
        yield "with the fixes", percent(analysis.best.rate), "replayed, never evicting"
        saved = _computed(analysis.hits) - _computed(analysis.best)
        yield "prefill saved", f"{count_text(saved)} tokens", "over the whole log"
    if analysis.sized is not None and analysis.cache_blocks is not None:
        room = count_text(analysis.cache_blocks * analysis.block_size)
        yield "in this cache", percent(analysis.sized.rate), f"room for {room} tokens"


def _computed(hits: HitTokens) -> int:
    return hits.prompt_tokens - hits.hit_tokens


def _share(part: int, total: int) -> str:
    return percent(part / total) if total else DASH


def _when(at_ns: int) -> str:
    try:
        return format_time(datetime.fromtimestamp(at_ns / NS_PER_S, UTC).isoformat())
    except (OverflowError, OSError, ValueError):
        return f"{at_ns} ns"
