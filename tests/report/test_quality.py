"""The gate in the report: every figure with what it stands on, in Markdown and on the page."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.run_factory import make_run
from tests.report.run_gate import distances, graded, lossless, put_gate
from tests.report.run_texts import SCRIPT, VARIANTS
from tests.run_copy import replace
from whet.core.records import LosslessCheck, QualityRecord, ServedIdentity
from whet.core.store import RunStore
from whet.report import RunView, load_run, render_html, render_markdown
from whet.report.quality_checks import CheckTable, check_tables
from whet.report.quality_rows import quality_rows, task_table

ADDED = ("distances", "twin", "twin_distances", "identity", "lossless", "structured", "parts")
RENDER = (render_html, render_markdown)


def quality_part(text: str) -> str:
    """The Markdown of the gate."""
    return text[text.index("## Quality") : text.index("## Quantization")]


def line(text: str, start: str) -> str:
    return next(one for one in text.splitlines() if one.startswith(start))


def check(view: RunView, title: str) -> CheckTable:
    return next(one for one in check_tables(view) if one.title == title)


def with_quality(view: RunView, name: str, change: Callable[[QualityRecord], object]) -> RunView:
    changed = change(view.quality[name])
    assert isinstance(changed, QualityRecord)
    return replace(view, quality={**view.quality, name: changed})


def test_distances_are_told_in_millinats_with_their_intervals(gated: RunView) -> None:
    row = line(quality_part(render_markdown(gated)), "| awq |")
    assert "12.3 (11.8 … 12.8)" in row  # 0.0123 nats, ± 4 %
    assert "210 ?" in row, "a percentile of 420 positions is not certified"
    assert "3.1% (2.8% … 3.4%)" in row
    assert row.startswith("| awq | 1% unknown, 2% pass, 5% pass | 6.45 (")
    source = render_html(gated)
    assert re.search(
        r'<span class="unsure" title="too few samples to certify">210 \?</span>', source
    )
    assert "<small>11.8 … 12.8</small>" in source
    for text in (source, render_markdown(gated)):
        assert "at most 20 likeliest tokens" in text
        assert "98.7% of the baseline" in text


def test_the_baseline_has_no_distance_from_itself(gated: RunView) -> None:
    row = line(quality_part(render_markdown(gated)), "| fp16 |")
    assert row.endswith("| baseline | – | – | – |")


def test_reasons_are_told_beside_the_verdicts(gated: RunView) -> None:
    for render in RENDER:
        text = render(gated)
        assert text.count("which 200 documents cannot tell from 1 %") == 1, "told once for all"
    assert "- awq, awq+spec, awq+cache, awq+spec+cache: perplexity changes" in render_markdown(
        gated
    )


def test_a_graded_task_has_a_mean_and_no_count_of_right_answers(gated: RunView) -> None:
    part = quality_part(render_markdown(gated))
    row = part[part.index("| task scores |") :]
    awq = line(row, "| awq |")
    assert awq.split(" | ")[-1] == (
        "41.2% (mean grade of 40)<br>-1.8 (-3.9 … +0.40) points<br>−19 +12, p = 0.0713 |"
    )
    assert "141 of 150)<br>-1.3 (-4.0 … +0.67) points<br>−3 +1, p = 0.625" in awq
    source = render_html(gated)
    assert "mean grade of 40" in source
    assert "<small>11 of 40</small>" not in source
    assert "<small>-1.8 (-3.9 … +0.40) points</small>" in source


def test_each_set_says_what_it_can_see(gated: RunView) -> None:
    found = task_table(gated)
    assert found is not None
    assert found.tasks == ("json_extraction", "arithmetic", "summary")
    assert found.visible == ("3.1 points", "3.1 points", "2.1 points")
    assert "*can see a loss of* | 3.1 points | 3.1 points | 2.1 points |" in render_markdown(gated)
    assert "<td>can see a loss of</td>" in render_html(gated)


def test_sets_that_see_nothing_are_told(gated: RunView) -> None:
    blind = replace(graded(paired=True), detectable_drop=None)
    one = with_quality(gated, "awq", lambda old: replace(old, tasks=(*old.tasks[:2], blind)))
    wider = with_quality(
        one,
        "awq+cache",
        lambda old: replace(old, tasks=(*old.tasks[:2], replace(blind, detectable_drop=0.034))),
    )
    found = task_table(wider)
    assert found is not None
    assert found.visible[2] == "2.1 to 3.4 points; not known for awq"
    alone = replace(wider, variants=("fp16", "awq"))
    found = task_table(alone)
    assert found is not None
    assert found.visible[2] == "too few differ to say"


def test_the_same_weights_stand_beside_the_noise_of_their_repeat(gated: RunView) -> None:
    found = {one.variant: one for one in check(gated, "Same weights").lines}
    assert found["awq"].subject == "itself, asked again"
    assert [item.text for item in found["awq"].figures][:2] == ["–", "0.00615"]
    assert found["awq+spec"].subject == "awq"
    # 0.0008 of 12.3 millinats beside 0.0005 of it
    assert [item.text for item in found["awq+spec"].figures][:2] == ["0.00984", "0.00615"]
    row = line(quality_part(render_markdown(gated)), "| awq+spec | awq |")
    assert "0.00984 (0.00945 … 0.0102) | 0.00615 (0.00590 … 0.00640)" in row


def test_a_twin_that_was_not_measured_leaves_the_noise_open(gated: RunView) -> None:
    quality = {name: one for name, one in gated.quality.items() if name != "awq"}
    lines = check(replace(gated, quality=quality), "Same weights").lines
    assert lines[1].variant == "awq+spec"
    assert lines[1].figures[1].text == "–"


def test_speculation_is_held_to_the_plain_server(gated: RunView) -> None:
    found = check(gated, "Speculation against the plain server")
    assert [one.variant for one in found.lines] == ["awq+spec", "awq+spec+cache"]
    first = found.lines[0]
    assert first.verdict == "pass"
    assert [item.text for item in first.figures] == [
        "13 of 16",
        "15 of 16",
        "0.250",
        "96.2%",
        "0.225",  # between 0.03 and 0.42
        "0.420",
        "0.613",
        "62.1%",
    ]
    assert first.notes[1] == (
        "left it: far after 1 token of 64 (0.420 nats), near after 12 tokens of 64 "
        "(0.0300 nats), blind after 0 tokens of 9 (margin not known)"
    )
    assert "| awq+spec | **pass** | 13 of 16 | 15 of 16 |" in render_markdown(gated)
    assert "<b>awq+spec, awq+spec+cache</b>: left it: far after 1 token of 64" in render_html(gated)


def test_many_divergences_are_counted(gated: RunView) -> None:
    base = lossless()
    assert base.parity is not None
    far = base.parity.divergences[-2]
    parity = replace(base.parity, divergences=(far,) * 11)
    view = with_quality(
        gated, "awq+spec", lambda old: replace(old, lossless=replace(base, parity=parity))
    )
    note = check(view, "Speculation against the plain server").lines[0].notes[-1]
    assert note.count("far after") == 8
    assert note.endswith("and 3 more")


def test_a_check_that_nothing_answered_is_unknown_with_its_reason(gated: RunView) -> None:
    silent = LosslessCheck(
        parity=None,
        sampling=None,
        acceptance_rate=None,
        drafted=None,
        verdict="unknown",
        reasons=("the server exports no counters",),
    )
    view = with_quality(gated, "awq+spec", lambda old: replace(old, lossless=silent))
    row = line(quality_part(render_markdown(view)), "| awq+spec | **unknown** |")
    assert row.count("| –") == 8
    assert "awq+spec: the server exports no counters" in render_markdown(view)


def test_bound_answers_stand_beside_free_ones(gated: RunView) -> None:
    text = render_markdown(gated)
    assert r"| awq | json\_extraction | 150 | 121 | 118 | 150 | 139 | −2 +23 | 2.10e-05 |" in text
    refused = r"| awq+spec+cache | json\_extraction | 150 | 121 | 118 | – | – | – | – |"
    assert refused in text
    for render in RENDER:
        assert "the server holds no answer to a JSON Schema" in render(gated)


def test_served_tokens_tell_what_differs_and_what_was_not_asked(gated: RunView) -> None:
    found = {one.variant: one for one in check(gated, "Served tokens").lines}
    assert (found["fp16"].subject, found["fp16"].notes) == ("no difference", ())
    assert found["fp16"].figures[0].text == "8,192"
    assert found["awq+cache"].notes[0].startswith("token 17 is written as 'a'")
    assert found["awq+cache"].subject == "differs"
    assert found["awq+spec"].subject == "no difference, but not all was asked"
    assert found["awq+spec"].notes == ("not asked: /tokenize failed on 16 texts (HTTP 404)",)


def test_a_fault_of_the_baseline_is_told_as_one_of_the_comparison(gated: RunView) -> None:
    problems = ("</s> does not end an answer",)
    assert gated.quality["fp16"].identity is not None
    identity = replace(gated.quality["fp16"].identity, checked=0, problems=problems)
    view = with_quality(gated, "fp16", lambda old: replace(old, identity=identity))
    first = check(view, "Served tokens").lines[0]
    assert first.notes[0] == problems[0]
    assert first.notes[1].startswith("the baseline’s own server differs")
    assert first.subject == "differs"
    assert first.figures[0].text == "–", "nothing asked is not a count of 0"


def test_a_server_that_was_not_asked_does_not_look_clean(gated: RunView) -> None:
    silent = ServedIdentity(checked=0, problems=(), missing="the server has no /detokenize")
    view = with_quality(gated, "awq", lambda old: replace(old, identity=silent))
    found = check(view, "Served tokens").lines[1]
    assert (found.variant, found.subject) == ("awq", "nothing was asked")
    assert found.notes == ("not asked: the server has no /detokenize",)


def test_a_run_without_the_checks_has_the_table_of_before(whole: RunView) -> None:
    assert check_tables(whole) == ()
    part = quality_part(render_markdown(whole))
    assert "| config | tolerances | perplexity | against baseline |" in part
    assert "points |" in part, "the drop that a set can see was known before"
    assert "(141 of 150)<br>−3 +1, p = 0.625" in part
    assert "millinats" not in render_html(whole)


def test_records_of_an_older_run_are_read(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run").root
    for path in (root / "quality").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        for name in ADDED:
            del record[name]
        for score in record["tasks"]:
            del score["difference"], score["graded"]
        path.write_text(json.dumps(record), encoding="utf-8")
    view = load_run(RunStore.read(root))
    assert [row.variant for row in quality_rows(view)] == list(VARIANTS)
    assert render_markdown(view).count("143 of 150") == 1
    assert "143 of 150" in render_html(view)


def test_a_tolerance_with_places_keeps_them(whole: RunView) -> None:
    view = with_quality(
        whole, "awq", lambda old: replace(old, verdicts=((0.0105, "pass"), (0.1, "fail")))
    )
    assert quality_rows(view)[1].verdicts == (("1.05%", "pass"), ("10%", "fail"))


@pytest.mark.parametrize("title", ["Served tokens", "Answers bound to a schema"])
def test_foreign_words_stay_words(hostile: RunView, title: str) -> None:
    assert any(SCRIPT in note for one in check(hostile, title).lines for note in one.notes)
    source = render_html(hostile)
    part = source[source.index('id="quality"') : source.index('id="quantization"')]
    assert "<script" not in part
    assert "\x1b" not in part
    fences = r"^(`{3,})(?:text|yaml)\n.*?\n\1$"
    outside = re.sub(fences, "", quality_part(render_markdown(hostile)), flags=re.S | re.M)
    assert "<script" not in outside.replace(r"\<script", "")
    assert "can\\_" not in outside


def test_records_are_read_under_their_kinds(tmp_path: Path) -> None:
    view = load_run(put_gate(make_run(tmp_path / "run").root))
    assert set(view.degenerate) == {"fp16", "awq"}
    assert view.quality["awq"].distances == distances()
