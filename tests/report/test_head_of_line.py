"""The head-of-line section in every form of the report, and its absence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.metrics.test_head_of_line import failed, long, record, stream
from tests.report.run_factory import make_run
from whet.core.records import HeadOfLineRecord
from whet.core.store import RunStore
from whet.report import RunView, load_run, print_report, render_html, render_markdown
from whet.report.head_of_line import HEAD_OF_LINE_HEADS, head_of_line_rows


def sound() -> HeadOfLineRecord:
    """One prefill from 100 to 140 ms; one due in it waits 35 ms, a stream stands for 46."""
    shorts = [stream(145, due_ms=110), stream(90, 95, 141, due_ms=82), stream(60, 67, due_ms=50)]
    return record([long(100)], shorts)


def broken() -> HeadOfLineRecord:
    shorts = [stream(10 * i + 5, due_ms=10 * i) for i in range(30)]
    return replace(record([failed(start_ms=100, word="http_400")], shorts), variant="awq")


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    root: Path = make_run(tmp_path_factory.mktemp("runs") / "run").root
    with RunStore.open(root, resume=True) as store:
        store.put("head_of_line", "fp16", sound())
        store.put("head_of_line", "awq", broken(), status="failed")
    return load_run(RunStore.read(root))


def test_a_row_holds_both_sides_in_the_order_of_its_heads(view: RunView) -> None:
    fp16, awq = head_of_line_rows(view)
    figures = dict(zip(HEAD_OF_LINE_HEADS, (item.text for item in fp16.figures), strict=True))
    assert figures == {
        ("short", "1/s"): "10.0",
        ("TTFT p50", "without, ms"): "9.00",  # of 8 and 10
        ("TTFT p50", "during, ms"): "35.0",
        ("TTFT p95", "without, ms"): "9.90",
        ("TTFT p95", "during, ms"): "35.0",
        ("stall", "without, ms"): "7.00",
        ("stall", "during, ms"): "46.0",
        ("worst stall", "during, ms"): "46.0",
        ("long TTFT", "p50, ms"): "40.0",
    }
    assert fp16.note is None
    assert (awq.variant, awq.note) == ("awq", "no long request was answered")
    assert {item.text for item in awq.figures[1:]} == {"–"}


def test_every_form_tells_it_with_what_was_sent(view: RunView) -> None:
    console = Console(record=True, width=140)
    print_report(view, console)
    for text in (render_markdown(view), render_html(view), console.export_text()):
        assert "Head of line" in text
        assert "4,096 tokens" in text
        assert "46.0" in text
        assert "no long request was answered" in text


def test_a_run_without_the_test_says_nothing_of_it(whole: RunView) -> None:
    console = Console(record=True, width=140)
    print_report(whole, console)
    for text in (render_markdown(whole), render_html(whole), console.export_text()):
        assert "ead of line" not in text
        assert "head-of-line" not in text
