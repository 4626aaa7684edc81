"""The verdict: what to serve, what it saves, what that costs, and what was checked."""

from __future__ import annotations

from tests.run_copy import replace
from whet.core.records.decision import Excluded
from whet.core.records.quality_checks import GreedyParity, LosslessCheck
from whet.core.run import Run
from whet.report.run.files import summary_markdown, summary_text


def decided(run: Run, **change: object) -> Run:
    assert run.decision is not None
    return replace(run, decision=replace(run.decision, **change))


def test_the_price_of_the_saving_stands_beside_it(whole: Run) -> None:
    first, lead, *points = summary_text(whole).splitlines()
    assert first == "Serve awq+cache at 8 requests in flight"
    assert lead.startswith("36.2% [33.1% … 39.0%] cheaper than fp16: $")
    assert " per million output tokens instead of $" in lead
    text = "\n".join(points)
    assert "  - First token at p95: " in text
    assert " instead of " in text
    assert "; the limit is 500 ms" in text
    assert "  - Each further token, median: " in text
    assert "  - Answers compared with fp16's: perplexity " in text
    assert len(points) <= 10


def test_speculation_that_changed_no_answer_is_said(whole: Run) -> None:
    parity = GreedyParity(prompts=16, same=15, aa_same=14, p_value=1.0, divergences=())
    check = LosslessCheck(
        parity=parity,
        sampling=None,
        acceptance_rate=None,
        drafted=None,
        verdict="pass",
        reasons=(),
    )
    record = replace(whole.quality["awq+cache"], lossless=check)
    text = summary_text(replace(whole, quality={**whole.quality, "awq+cache": record}))
    assert "15 of 16 greedy texts the same (the plain server repeats 14)" in text


def test_what_was_excluded_says_how_many_answers_it_lost(whole: Run) -> None:
    assert whole.decision is not None
    task = replace(whole.quality["awq+cache"].tasks[0], lost=5, baseline_right=9)
    bad = replace(whole.quality["awq+cache"], variant="small", tasks=(task,))
    out = Excluded(variant="small", load=None, reason="its quality fails: …", kind="quality")
    run = decided(whole, excluded=(out, replace(out, kind="evidence")))
    text = summary_text(replace(run, quality={**run.quality, "small": bad}))
    assert "Excluded: small (quality, evidence: 5 of 9 right answers lost)" in text


def test_what_a_search_did_not_check_is_one_line(whole: Run) -> None:
    names = ("fp8", "graphs", "rust")
    out = tuple(
        Excluded(variant=name, load=None, reason="…", kind="answers not checked") for name in names
    )
    text = summary_text(decided(whole, excluded=out))
    assert "3 others were not in the lead, and their answers were not checked" in text
    assert "graphs" not in text


def test_a_limit_is_said_once_and_in_the_title(whole: Run) -> None:
    limit = "greedy requests only: sampled text was not compared"
    assert whole.decision is not None
    assert whole.decision.recommendation is not None
    chosen = replace(whole.decision.recommendation, cautions=(limit, "one start"))
    text = summary_text(decided(whole, limits=(limit,), recommendation=chosen))
    assert text.splitlines()[0].endswith(", for greedy requests only")
    assert text.count("reedy requests only") == 2, "in the title and as a warning"
    assert "  ! One start" in text


def test_what_was_not_checked_is_no_restriction(whole: Run) -> None:
    limit = "quality: sums tasks are not judged: fp16 answers 0 of 8 itself"
    first, *points = summary_text(decided(whole, limits=(limit,))).splitlines()
    assert first == "Serve awq+cache at 8 requests in flight"
    assert "  ! Quality: sums tasks are not judged: fp16 answers 0 of 8 itself" in points


def test_the_summary_is_markdown_for_a_chat(whole: Run) -> None:
    text = summary_markdown(whole)
    assert text.startswith("## Serve awq+cache at 8 requests in flight\n")
    assert "\n- First token at p95: " in text


def test_a_run_without_decision_says_so(whole: Run) -> None:
    assert summary_text(replace(whole, decision=None)).startswith("No decision yet\n")
