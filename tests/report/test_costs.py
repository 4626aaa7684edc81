"""What came along with a lever, in every form of the report, and its absence."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tests.report.run_factory import make_run
from tests.run_copy import replace
from whet.core.records import LeverCost, LeverCosts
from whet.core.store import RunStore
from whet.report import RunView, load_run, print_report, render_html, render_markdown
from whet.report.costs import COSTS_NOTE, CostLine, cost_lines


def cost(what: str, detail: str, size: int | None = None, variant: str = "awq+spec") -> LeverCost:
    return LeverCost(
        variant=variant,
        reference="awq",
        levers=("speculation=draft_model K=4",),
        what=what,
        detail=detail,
        batch_size=size,
    )


COSTS = (
    cost("a smaller KV pool", "300,000 tokens, 412,000 without"),
    cost("a kernel was compiled while serving", "JIT compilation\nof <_fwd> | x", 16),
    cost("a lower hit rate", "0.6, 0.8 without", 4),
    cost("a kernel was compiled while serving", "JIT compilation\nof <_fwd> | x", 4),
    cost("a lower hit rate", "0.5, 0.7 without", 1),
    cost("a fallback", "Failed to load one"),
    cost("a fallback", "Failed to load two"),
    cost("a fallback", "Failed to load one", variant="awq+cache"),
)


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    root: Path = make_run(tmp_path_factory.mktemp("runs") / "run").root
    with RunStore.open(root, resume=True) as store:
        store.put("costs", "all", LeverCosts(costs=COSTS))
    return load_run(RunStore.read(root))


def line(what: str, detail: str, sizes: str = "", variant: str = "awq+spec") -> CostLine:
    return CostLine(variant=variant, reference="awq", what=what, detail=detail, sizes=sizes)


def test_the_same_cost_is_one_line_with_its_batch_sizes_in_order(view: RunView) -> None:
    assert cost_lines(view) == (
        line("a smaller KV pool", "300,000 tokens, 412,000 without"),
        line("a kernel was compiled while serving", "JIT compilation of <_fwd> | x", "4, 16"),
        line("a lower hit rate", "0.5, 0.7 without; 0.6, 0.8 without", "1, 4"),
        line("a fallback", "Failed to load one; Failed to load two"),
        line("a fallback", "Failed to load one", variant="awq+cache"),
    )


def test_a_cost_of_the_whole_server_names_no_batch_size(view: RunView) -> None:
    both = (cost("a fallback", "in a trial", 4), cost("a fallback", "at the start"))
    assert cost_lines(replace(view, costs=both)) == (
        line("a fallback", "at the start; in a trial"),
    )


def test_every_form_tells_every_cost(view: RunView) -> None:
    console = Console(record=True, width=140)
    print_report(view, console)
    for text in (render_markdown(view), render_html(view), console.export_text()):
        for what in {cost.what for cost in COSTS}:
            assert what in text
    assert "awq+spec over awq comes with " in text


def test_the_pages_say_what_it_means_and_quote_the_engine(view: RunView) -> None:
    markdown, html = render_markdown(view), render_html(view)
    assert "## What came along" in markdown
    assert '<section class="card" id="costs">' in html
    assert 'href="#costs"' in html
    for text in (markdown, html):
        assert COSTS_NOTE.replace("'", "&#39;") in text or COSTS_NOTE in text
        assert "300,000 tokens, 412,000 without" in text
    assert "&lt;_fwd&gt;" in html
    assert r"\<\_fwd\> \| x" in markdown


def test_a_run_without_costs_says_nothing_of_them(whole: RunView) -> None:
    console = Console(record=True, width=140)
    print_report(whole, console)
    assert cost_lines(whole) == ()
    for text in (render_markdown(whole), render_html(whole), console.export_text()):
        assert "hat came along" not in text
        assert "#costs" not in text
