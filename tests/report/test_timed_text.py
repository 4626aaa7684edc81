"""Degenerate text in timed answers, told in the report: the verdict, why, and what was said."""

from tests.report.run_gate import CLEAN, degenerate
from tests.report.run_texts import HOSTILE, SCRIPT
from whet.report import RunView, render_html, render_markdown
from whet.report.sections import timed_text, timed_text_words


def test_the_records_are_in_the_order_of_the_variants(hostile: RunView) -> None:
    assert timed_text(hostile) == (CLEAN, degenerate(f" {HOSTILE}"))


def test_a_clean_variant_is_one_short_sentence() -> None:
    assert timed_text_words(CLEAN) == "1,200 timed answers: nothing degenerate"
    said = timed_text_words(degenerate())
    assert said.startswith("40 timed answers: 9 one mark, 2 loop; 11 of 40 are")


def test_markdown_tells_the_verdict_and_fences_the_examples(hostile: RunView) -> None:
    text = render_markdown(hostile)
    part = text[text.index("### Degenerate text in timed answers") :]
    part = part[: part.index("\n## ")]
    assert "- fp16: **pass**, 1,200 timed answers: nothing degenerate" in part
    assert "- awq: **fail**, 40 timed answers: 9 one mark, 2 loop; 11 of 40 are" in part
    assert "awq answered" in part
    assert "fp16 answered\n\n" not in part
    assert f"````text\n``` {SCRIPT}" in part, "a fence that the answer cannot close"
    outside = part[: part.index("awq answered\n\n````")]
    assert "<script" not in outside.replace(r"\<script", "")


def test_a_run_that_was_not_looked_at_says_nothing(whole: RunView) -> None:
    assert timed_text(whole) == ()
    assert "Degenerate text in timed" not in render_markdown(whole)
    assert "timed-text" not in render_html(whole)


def test_the_page_shows_verdicts_and_escaped_examples(hostile: RunView) -> None:
    source = render_html(hostile)
    part = source[source.index('<section class="card" id="timed-text">') :]
    part = part[: part.index("</section>")]
    assert "1,200 timed answers: nothing degenerate" in part
    assert "9 one mark, 2 loop" in part
    assert "<script" not in part
    assert part.count("&lt;script&gt;") == 2, "in the reason and in the example"
    assert part.count('<pre class="wrong">') == 2
    assert "\x1b" not in part
