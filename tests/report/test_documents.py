"""The page, the Markdown and the console: every cell told, nothing foreign taken as code."""

import io
import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from tests.report.run_texts import BATCH_SIZES, SCRIPT, VARIANTS
from tests.run_copy import replace
from whet.core.records import Excluded
from whet.core.store import RunStore
from whet.report import (
    RunView,
    load_run,
    print_decision,
    print_report,
    render_html,
    render_markdown,
    write_reports,
)
from whet.report.markdown_text import fenced, safe
from whet.report.rows import decision_headline, is_corner
from whet.report.sections import tiles

ALLOWED_TAGS = {
    *("html", "head", "meta", "title", "link", "style", "body", "header", "main", "footer"),
    *("section", "article", "nav", "div", "p", "span", "a", "b", "i", "em", "small", "ul", "li"),
    *("h1", "h2", "h3", "h4", "dl", "dt", "dd", "pre", "table", "thead", "tbody", "tr", "th", "td"),
    *("details", "summary", "figure", "figcaption", "svg", "g", "path", "circle", "rect", "text"),
}


class Page(HTMLParser):
    """What a browser would make of the page: its elements and their visible text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def printed(view: RunView, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(view, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_page_shows_every_cell(whole: RunView) -> None:
    source = render_html(whole)
    rows = re.findall(r'<span class="variant[^>]*>.*?</span></td><td class="num">\d+</td>', source)
    assert len(rows) >= len(VARIANTS) * len(BATCH_SIZES)
    words = "".join(Page(source).words)
    assert "Serve awq+cache with 8 requests in flight" in words
    assert "failed: the engine ran out of device memory" in words
    for cell in whole.cells:
        if cell.tps_mean is not None:
            assert f"{cell.tps_mean.value:,.0f}" in words or f"{cell.tps_mean.value:.1f}" in words


def test_outcomes_of_the_matrix_look_different(whole: RunView) -> None:
    cells = [a.get("class", "") for tag, a in Page(render_html(whole)).tags if tag == "td"]
    named = [name for name in cells if name]
    assert named.count("winner") == 3
    assert named.count("none") == 3
    assert named.count("no-significant-winner") + named.count("no-significant-winner chosen") == 3


def test_uncertified_figure_is_dimmed(whole: RunView) -> None:
    assert re.search(r'<span class="unsure"[^>]*>125 \?</span>', render_html(whole))


@pytest.mark.parametrize("run", ["whole", "gated", "hostile", "interrupted", "begun"])
def test_page_holds_no_code_and_loads_nothing(run: str, request: pytest.FixtureRequest) -> None:
    source = render_html(request.getfixturevalue(run))
    assert len(source.encode()) < 2_000_000
    for tag, attributes in Page(source).tags:
        assert tag in ALLOWED_TAGS
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "action", "formaction", "data", "xlink:href")
            if name == "href":
                assert value == "data:," or (value or "").startswith("#")
    style = source[source.index("<style>") : source.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_hostile_text_is_shown_as_text(hostile: RunView) -> None:
    source = render_html(hostile)
    assert "<script" not in source
    words = "".join(Page(source).words)
    assert words.count(SCRIPT) > 20
    assert "{{ 7*7 }}" in words
    assert "\x1b" not in source
    assert "\u202e" not in source


def test_markdown_has_every_cell_as_one_line(hostile: RunView) -> None:
    text = render_markdown(hostile)
    section = text[text.index("## Comparison") : text.index("## Decision matrix")]
    for name in VARIANTS:
        for size in BATCH_SIZES:
            lines = [x for x in section.splitlines() if x.startswith(f"| {name} | {size} |")]
            assert len(lines) == 1
            assert len(re.findall(r"(?<!\\)\|", lines[0])) == 13


def test_markdown_escapes_outside_its_fences(hostile: RunView) -> None:
    outside = re.sub(
        r"^(`{3,})(?:text|yaml)\n.*?\n\1$", "", render_markdown(hostile), flags=re.S | re.M
    )
    assert "<script" not in outside.replace(r"\<script", "")
    assert "](javascript" not in outside.replace(r"\](javascript", "")


def test_fence_outlasts_the_backticks_within() -> None:
    assert fenced("a ```` b").splitlines() == ["`````text", "a ```` b", "`````"]
    assert safe("a|b\n`c`") == r"a\|b \`c\`"


def test_console_has_every_measured_cell(whole: RunView) -> None:
    lines = printed(whole, width=160).splitlines()
    assert sum(bool(re.search(r"\b(un)?proved$", line.rstrip())) for line in lines) == 24
    assert any("excluded: failed" in line and " 32 " in line for line in lines)
    assert any("excluded: evidence" in line and "contradicted" in line for line in lines)
    assert "no significant winner" in "\n".join(lines)


def test_every_table_has_the_status_apart_from_the_evidence(whole: RunView) -> None:
    for form in (partial(printed, width=160), render_markdown, render_html):
        text = form(whole)
        for status in ("excluded: quality", "recommended", "qualifies", "tie with awq+cache"):
            assert status in text, (form, status)
    source = render_html(whole)
    excluded = re.findall(r'<tr class="excluded.*?</tr>', source, re.S)
    assert len(excluded) == 4
    assert not any("badge proved" in row or "recommended" in row for row in excluded)
    assert '<span class="variant excluded" title="excluded from the decision">' in source
    assert "awq+spec (excluded, do not deploy):" in render_markdown(whole)


def coloured(view: RunView) -> str:
    console = Console(file=io.StringIO(), width=160, force_terminal=True, color_system="standard")
    print_report(view, console)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def with_outcome(view: RunView, variant: str, outcome: str) -> RunView:
    """The run with another recommended variant and another outcome of every corner."""
    decision = view.decision
    assert decision is not None
    assert decision.recommendation is not None
    chosen = replace(decision.recommendation, variant=variant)
    matrix = tuple(replace(entry, outcome=outcome, variant=variant) for entry in decision.matrix)
    return replace(view, decision=replace(decision, recommendation=chosen, matrix=matrix))


@pytest.mark.parametrize(
    ("variant", "outcome", "won"),
    [
        ("awq+cache", "winner", True),
        ("awq+cache", "no significant winner", False),
        ("fp16", "winner", False),
    ],
)
def test_only_a_saving_is_coloured_as_a_win(
    whole: RunView, variant: str, outcome: str, won: bool
) -> None:
    view = with_outcome(whole, variant, outcome)
    assert ("\x1b[1;32m" in coloured(view)) is won
    source = render_html(view)
    assert ('<section class="hero won"' in source) is won
    assert (" chosen won" in source) is won
    assert ("badge recommended" in source) is won


def test_a_testbed_is_called_one_everywhere(whole: RunView) -> None:
    target = replace(whole.models["target"], testbed="the target of whet's demo pair, widened")
    view = replace(whole, models={**whole.models, "target": target})
    for told in (printed, render_markdown, render_html):
        assert "is a testbed" in told(view)
        assert "is a testbed" not in told(whole)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_console_fits_its_terminal(whole: RunView, width: int) -> None:
    text = printed(whole, width)
    assert max(map(len, text.splitlines())) <= width
    table = text[: text.index("Decision matrix")]
    assert "…" not in table
    heads = "\n".join(table.splitlines()[1:3])
    for name in ("TTFT p95", "Throughput", "Cost", "status", *(["Memory"] if width > 100 else [])):
        assert name in heads


def test_an_answer_lost_by_several_variants_alike_is_told_once(whole: RunView) -> None:
    name = next(name for name, record in whole.quality.items() if record.examples)
    examples = whole.quality[name].examples
    quality = {
        other: replace(record, examples=examples if other != record.baseline else ())
        for other, record in whole.quality.items()
    }
    text = render_markdown(replace(whole, quality=quality))
    assert "Answers that awq, awq+spec, awq+cache, awq+spec+cache lost:" in text
    assert text.count(fenced(examples[0].prompt)) == 1


def test_a_saving_within_the_noise_is_said_in_the_headline(whole: RunView) -> None:
    assert whole.decision is not None
    chosen = whole.decision.recommendation
    level = tuple(
        replace(entry, outcome="no significant winner", rivals=("fp16",))
        if is_corner(chosen, entry)
        else entry
        for entry in whole.decision.matrix
    )
    sure = decision_headline(whole.decision)[1]
    assert "below fp16, at" in sure
    unsure = decision_headline(replace(whole.decision, matrix=level))[1]
    assert "below fp16, within the noise of this run)" in unsure


def test_the_noise_is_said_once_and_by_batch_size_where_it_differs(whole: RunView) -> None:
    compared = whole.comparisons
    assert compared is not None
    floors = {1: 0.004, 4: 0.021}
    apart = tuple(
        replace(item, noise_floor=floors.get(item.batch_size, 0.01))
        for item in compared.comparisons
    )
    unlike = replace(whole, comparisons=replace(compared, comparisons=apart))
    none = replace(whole, comparisons=replace(compared, noise_floor=None))
    for render in (render_html, render_markdown):
        assert "differed by 2.1% in throughput" in render(whole)
        assert "; less than that means nothing" in render(whole)
        said = "differed by up to 2.1% (by batch size: 0.40% at 1, 2.1% at 4, 1.0% at 8"
        assert said in render(unlike)
        assert "against itself" not in render(none)


def test_warm_ups_that_differ_by_cell_are_given_as_a_range(whole: RunView) -> None:
    first, *rest = whole.cells
    cells = (replace(first, warmup_excluded=20), *(replace(c, warmup_excluded=8) for c in rest))
    for text in (
        render_html(replace(whole, cells=cells)),
        render_markdown(replace(whole, cells=cells)),
    ):
        assert "8 to 20 warm-up requests before each cell" in text


def test_the_baseline_saves_nothing_over_itself(whole: RunView) -> None:
    assert whole.decision is not None
    assert whole.decision.recommendation is not None
    own = replace(whole.decision.recommendation, variant="fp16")
    view = replace(whole, decision=replace(whole.decision, recommendation=own))
    assert "Saving" not in [tile.name for tile in tiles(view)]


def test_console_obeys_no_foreign_codes(hostile: RunView) -> None:
    text = printed(hostile)
    assert "\x1b" not in text
    assert "[link](javascript:alert(1))" in " ".join(text.split())  # not taken for mark-up


def test_interrupted_run_is_told_as_such_everywhere(interrupted: RunView) -> None:
    for text in (render_html(interrupted), render_markdown(interrupted), printed(interrupted)):
        assert "This run is incomplete" in text
        assert "awq has no figures at batch size 8, 16, 32" in text


def test_decision_alone_can_be_printed(whole: RunView) -> None:
    console = Console(file=io.StringIO(), width=100)
    assert whole.decision is not None
    print_decision(whole.decision, console)
    assert isinstance(console.file, io.StringIO)
    assert "Serve awq+cache" in console.file.getvalue()


@pytest.mark.parametrize("run", ["whole", "gated", "hostile", "interrupted", "begun"])
def test_every_file_is_written(run: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    view: RunView = request.getfixturevalue(run)
    write_reports(view, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"results.csv", "requests.parquet", "report.md", "report.html"}


def test_parquet_keeps_every_request(whole: RunView, tmp_path: Path) -> None:
    write_reports(whole, tmp_path)
    table = pq.read_table(tmp_path / "requests.parquet")
    assert table.num_rows == 75  # 25 trials of 3 requests
    third = table.slice(2, 1).to_pylist()[0]
    assert third["error"] == "timeout"
    assert third["output_tokens"] is None
    assert third["chunk_ns"] == []
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["variant"], first["batch_size"], first["trial"]) == ("fp16", 1, 0)
    assert first["chunk_ns"] == [5_000_000, 9_000_000]
    assert "string" in str(table.schema.field("detail").type)  # though every value is missing


def test_nothing_qualifies_is_an_answer(whole: RunView) -> None:
    assert whole.decision is not None
    view = replace(whole, decision=replace(whole.decision, recommendation=None, pareto=()))
    for text in (render_html(view), render_markdown(view), printed(view)):
        assert "Nothing qualifies" in text
        assert "Serve awq" not in text


def test_run_of_one_cell_can_be_drawn(whole: RunView) -> None:
    view = replace(whole, cells=whole.cells[:1], variants=("fp16",))
    assert render_html(view).count('class="dot') >= 4


def test_a_report_can_be_written_again_from_disk(whole: RunView, tmp_path: Path) -> None:
    again = load_run(RunStore.read(whole.root))
    assert render_html(again) == render_html(whole)


def test_reader_is_told_what_memory_and_cost_mean(whole: RunView) -> None:
    resident = tuple(replace(cell, memory_kind="resident") for cell in whole.cells)
    view = replace(whole, cells=resident)
    for text in (render_html(view), render_markdown(view), printed(view)):
        assert "Memory is resident memory on the CPU, not device memory." in text
        assert "2.49 an hour: list price, on demand." in text


def test_interrupted_cell_shows_its_figures_but_as_not_counting(whole: RunView) -> None:
    first = replace(whole.cells[0], status="interrupted", failure="1 of 3 trials was measured")
    view = replace(whole, cells=(first, *whole.cells[1:]))
    source = render_html(view)
    row = source[source.index('<tr class="interrupted') :]
    row = row[: row.index("</tr>")]
    assert "59.4" in row
    assert 'title="1 of 3 trials was measured">interrupted' in row
    assert "1 of 3 trials was measured" in printed(replace(view, decision=None))


def test_exclusions_with_one_reason_are_one_line(whole: RunView) -> None:
    assert whole.decision is not None
    many = tuple(
        Excluded(variant="awq", batch_size=size, reason="the cell is failed") for size in (1, 4, 8)
    )
    view = replace(whole, decision=replace(whole.decision, excluded=many))
    assert "awq @ 1, 4, 8 excluded: the cell is failed" in printed(view)
    assert "awq @ 1, 4, 8: the cell is failed" in render_markdown(view)
    assert "<td>1, 4, 8</td>" in render_html(view)


def test_a_reason_without_a_winner_is_told_once(whole: RunView) -> None:
    text = printed(whole)
    assert "TTFT < 1 s: no cell has its p95 below the target" in text
    assert text.count("no cell has its p95 below the target") == 1
