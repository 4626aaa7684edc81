"""Sections of the run report: the figures of their tables, and none where nothing was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.older_run import forget_hashes
from tests.report.forms import FORMS, bullets, html, markdown, nodes, section, table
from tests.report.run_factory import make_run
from tests.report.run_texts import SCRIPT, VARIANTS
from tests.run_copy import replace
from whet.core.load import Load
from whet.core.records.decision import LeverEffect, LeverEffects
from whet.core.records.quality import QualityRecord
from whet.core.records.quality_checks import DegenerateTraffic, LosslessCheck, TokenIdentity
from whet.core.records.summary import Estimate
from whet.core.run import Run
from whet.core.store import RunStore
from whet.report.document import Code, Paragraph
from whet.report.run.checks import sentence

ADDED = ("distances", "twin", "twin_distances", "identity", "lossless", "parts")
AWQ, SPEC = "weights=awq", "speculation=draft_model K=4"


def with_quality(run: Run, name: str, change: Callable[[QualityRecord], object]) -> Run:
    changed = change(run.quality[name])
    assert isinstance(changed, QualityRecord)
    return replace(run, quality={**run.quality, name: changed})


def test_distances_are_in_millinats_with_their_intervals(gated: Run) -> None:
    rows = table(gated, "quality", "Perplexity on held-out text")
    assert rows["awq"][2] == "12.3 11.8 … 12.8"  # 0.0123 nats, ± 4%
    assert rows["awq"][3] == "210 ?", "a percentile of 420 positions is not certified"
    assert rows["awq"][4] == "3.1% 2.8% … 3.4%"
    assert rows["awq"][-3:] == ["unknown", "pass", "pass"]
    assert rows["fp16"][1:5] == ["–", "–", "–", "–"], "the baseline has no distance from itself"


def test_a_server_at_low_priority_is_named(gated: Run) -> None:
    niced = {**gated.starts, "awq": replace(gated.starts["awq"], nice=5)}
    words = [line for line in bullets(replace(gated, starts=niced), "setup") if "nice" in line]
    assert words == ["awq ran at nice 5, so other processes go before it"]


def test_a_reason_of_several_variants_is_one_sentence(gated: Run) -> None:
    assert markdown(gated).count("which 200 documents cannot tell from 1 %") == 1
    assert any(
        line.startswith("awq, awq+draft, awq+cache, awq+draft+cache: perplexity changes")
        for line in bullets(gated, "quality")
    )


def test_a_graded_task_has_a_mean_and_no_count_of_right_answers(gated: Run) -> None:
    rows = table(gated, "quality", "Task scores")
    assert rows["awq"][-1] == (
        "41.2% mean grade of 40; -1.8 (-3.9 … +0.40) points; −19 +12, p = 0.0713"
    )
    assert "141 of 150; -1.3 (-4.0 … +0.67) points; −3 +1, p = 0.625" in rows["awq"][0]


def test_a_lost_answer_of_several_variants_is_shown_once(whole: Run) -> None:
    name = next(name for name, record in whole.quality.items() if record.examples)
    examples = whole.quality[name].examples
    quality = {
        other: replace(record, examples=examples if other != record.baseline else ())
        for other, record in whole.quality.items()
    }
    run = replace(whole, quality=quality)
    assert "Answers that awq, awq+draft, awq+cache, awq+draft+cache lost" in markdown(run)
    prompts = [n for n in nodes(run, "quality") if isinstance(n, Code)]
    assert sum(code.text == examples[0].prompt for code in prompts) == 1


def test_the_same_weights_are_beside_the_noise_of_their_repeat(gated: Run) -> None:
    rows = table(gated, "checks", "Same weights")
    assert rows["awq"][:3] == ["itself, repeated", "–", "0.00615 0.00590 … 0.00640"]
    # 0.0008 of 12.3 millinats beside 0.0005 of it
    assert rows["awq+draft"][0] == "awq"
    assert rows["awq+draft"][1].startswith("0.00984")
    quality = {name: each for name, each in gated.quality.items() if name != "awq"}
    assert table(replace(gated, quality=quality), "checks", "Same weights")["awq+draft"][2] == "–"


def test_speculation_is_compared_with_the_plain_server(gated: Run) -> None:
    rows = table(gated, "checks", "Speculation against the plain server")
    assert list(rows) == ["awq+draft", "awq+draft+cache"]
    assert [cell.split(" 94.3%")[0] for cell in rows["awq+draft"]] == [
        "pass",
        "13 of 16",
        "15 of 16",
        "0.250",
        "0.225",  # between 0.03 and 0.42
        "0.420",
        "0.613",
        "62.1%",
    ]


def test_a_check_without_an_answer_is_unknown_with_its_reason(gated: Run) -> None:
    silent = LosslessCheck(
        parity=None,
        sampling=None,
        acceptance_rate=None,
        drafted=None,
        verdict="unknown",
        reasons=("the server exports no counters",),
    )
    run = with_quality(gated, "awq+draft", lambda old: replace(old, lossless=silent))
    rows = table(run, "checks", "Speculation against the plain server")
    assert rows["awq+draft"] == ["unknown", *["–"] * 7]
    assert "awq+draft: the server exports no counters" in bullets(run, "checks")


def test_served_tokens_say_what_differs_and_what_was_not_checked(gated: Run) -> None:
    rows = table(gated, "checks", "Served tokens")
    assert rows["fp16"] == ["no difference", "8,192"]
    assert rows["awq+cache"][0] == "differs"
    assert rows["awq+draft"][0] == "no difference, partly checked"
    assert any("token 17 is written as 'a'" in line for line in bullets(gated, "checks"))
    silent = TokenIdentity(checked=0, problems=(), missing="the server has no /detokenize")
    run = with_quality(gated, "awq", lambda old: replace(old, identity=silent))
    assert table(run, "checks", "Served tokens")["awq"] == ["not checked", "–"]


def test_a_fault_of_the_baseline_spoils_the_comparison(gated: Run) -> None:
    assert gated.quality["fp16"].identity is not None
    problems = ("</s> does not end an answer",)
    identity = replace(gated.quality["fp16"].identity, checked=0, problems=problems)
    run = with_quality(gated, "fp16", lambda old: replace(old, identity=identity))
    assert any("the baseline’s own server differs" in line for line in bullets(run, "checks"))


def test_a_run_of_an_older_version_has_no_checks(whole: Run, tmp_path: Path) -> None:
    assert section(whole, "checks") is None
    assert "millinats" not in html(whole)
    root = make_run(tmp_path / "run").root
    forget_hashes(root)
    for path in (root / "quality").glob("*.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        for name in ADDED:
            del stored[name]
        for score in stored["tasks"]:
            del score["difference"], score["graded"]
        path.write_text(json.dumps(stored), encoding="utf-8")
    rows = table(Run(RunStore.read(root)), "quality", "Perplexity on held-out text")
    assert list(rows) == list(VARIANTS)


def test_foreign_notes_stay_text(hostile: Run) -> None:
    assert any(SCRIPT in line for line in bullets(hostile, "checks"))
    assert html(hostile).count("<script") == 1


def around(value: float, *, enough: bool = True) -> Estimate:
    return Estimate(value=value, low=value * 0.9, high=value * 1.1, samples=200, enough=enough)


def effect(lever: str, size: int, value: float, metric: str = "tps_mean") -> LeverEffect:
    return LeverEffect(
        lever=lever,
        context=(),
        load=Load.at(size),
        metric=metric,
        reference="fp16",
        candidate=lever,
        ratio=around(value),
    )


def test_levers_are_named_with_their_tables(whole: Run) -> None:
    effects = [effect(x, size, v) for size in (1, 16) for x, v in ((AWQ, 1.5), (SPEC, 1.2))]
    view = LeverEffects(baseline="fp16", levers=(AWQ, SPEC), effects=tuple(effects))
    rows = table(replace(whole, lever_effects=view), "levers", "Throughput: effect of one lever")
    assert rows[AWQ] == ["alone", *["1.50 1.35 … 1.65"] * 2]


def test_evidence_that_is_not_proved_comes_first(whole: Run) -> None:
    paragraphs = [n.text for n in nodes(whole, "evidence") if isinstance(n, Paragraph)]
    proved = sum(verdict.outcome == "proved" for verdict in whole.verdicts)
    assert paragraphs[0].startswith(f"{proved} of 25 claims proved")
    assert "awq+cache" in table(whole, "evidence", "Not proved")
    assert "fp16" in table(whole, "evidence", "Proved")


def test_degenerate_text_is_one_sentence_a_variant(hostile: Run) -> None:
    clean = DegenerateTraffic(
        variant="fp16",
        answers=40,
        found=(),
        baseline_share=None,
        p_value=None,
        verdict="pass",
        reason="too few",
        examples=(),
    )
    assert sentence(clean) == "40 timed answers: nothing degenerate"
    assert list(table(hostile, "checks", "Degenerate text among timed answers"))


@pytest.mark.parametrize("id", ["side-effects", "checks", "degenerate"])
def test_a_section_without_data_is_left_out(whole: Run, id: str) -> None:
    assert section(whole, id) is None
    for form in FORMS[:1]:
        assert f'id="{id}"' not in form(whole)
