"""Harness samples in pairs, against hand counts and closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from whet.core.records import Estimate, HarnessMetric, HarnessRun, HarnessSample, HarnessTask
from whet.quality.harness_compare import compare_harness, harness_losses


def sample(doc_id: int, value: float, *, task: str = "t", **changes: str) -> HarnessSample:
    texts = {"filter": "none", "doc_hash": f"d{doc_id}", "prompt_hash": f"p{doc_id}", **changes}
    return HarnessSample(
        task=task,
        doc_id=doc_id,
        metrics=(("acc", value),),
        target="1",
        response=f"said {value}",
        prompt_end="…?",
        **texts,
    )


def run(
    samples: list[HarnessSample], *, higher: bool | None = True, variant: str = "awq"
) -> HarnessRun:
    score = Estimate(value=0.5, low=None, high=None, samples=len(samples))
    metric = HarnessMetric(name="acc", filter="none", score=score, higher_is_better=higher)
    tasks = tuple(
        HarnessTask(asked="t", task=task, metrics=(metric,))
        for task in sorted({one.task for one in samples})
    )
    return HarnessRun(
        variant=variant,
        model="m",
        harness_version="0.4.13",
        seed=1234,
        limit=None,
        max_length=2048,
        tasks=tasks,
        samples=tuple(samples),
        seconds=1.0,
    )


def shares(lost: int, gained: int, both: int) -> tuple[HarnessRun, HarnessRun]:
    """(variant, baseline) of right and wrong answers."""
    before = [1.0] * lost + [0.0] * gained + [1.0] * both
    now = [0.0] * lost + [1.0] * gained + [1.0] * both
    return (
        run([sample(i, value) for i, value in enumerate(now)]),
        run([sample(i, value) for i, value in enumerate(before)], variant="fp16"),
    )


def test_right_and_wrong_answers_are_mcnemars_coin() -> None:
    (score,) = compare_harness(*shares(lost=10, gained=3, both=87))
    assert (score.pairs, score.lost, score.gained, score.graded) == (100, 10, 3, False)
    assert score.p_value == pytest.approx(756 / 8192)  # 2 · (1 + 13 + 78 + 286) ÷ 2¹³
    assert score.difference is not None
    assert score.difference.value == pytest.approx(-0.07)


def test_a_run_against_itself_has_no_loss_and_still_an_interval() -> None:
    same, _ = shares(lost=0, gained=0, both=60)
    (score,) = compare_harness(same, same)
    assert score.p_value == 1.0
    assert score.difference is not None
    assert score.difference.low is not None
    assert score.difference.low < 0  # 60 questions cannot prove that there is no loss
    assert score.detectable_drop == pytest.approx(0.13, abs=0.01)  # 6 losses of 60 at 80 % power
    assert harness_losses([score]) == ()


def test_grades_are_tested_by_every_sign_pattern() -> None:
    before = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    now = [value - 0.1 for value in before]
    (score,) = compare_harness(
        run([sample(i, value) for i, value in enumerate(now)]),
        run([sample(i, value) for i, value in enumerate(before)]),
    )
    assert score.graded
    assert score.p_value == pytest.approx(2 / 2**6)  # all six fell alike: two patterns of 64
    assert harness_losses([score]) == (
        "t acc: -0.1000 on average against the baseline (p 0.031 after Holm)",
    )


def test_a_metric_that_should_be_low_is_lost_where_it_rises() -> None:
    baseline = run([sample(i, 0.0) for i in range(8)], higher=False)
    worse = run([sample(i, 1.0) for i in range(8)], higher=False)
    (score,) = compare_harness(worse, baseline)
    assert (score.lost, score.gained) == (8, 0)
    assert len(harness_losses([score])) == 1
    (better,) = compare_harness(baseline, worse)
    assert harness_losses([better]) == ()


def test_a_group_pools_its_members_and_keeps_their_documents_apart() -> None:
    rows = [(task, i) for task in ("t_one", "t_two") for i in range(4)]
    now = run([sample(i, 0.0, task=task) for task, i in rows])
    before = run([sample(i, 1.0, task=task) for task, i in rows])
    (score,) = compare_harness(now, before)
    assert (score.pairs, score.lost) == (8, 8)
    assert score.p_value == pytest.approx(2 / 2**8)


def test_another_prompt_for_the_same_document_is_not_paired() -> None:
    here = run([sample(0, 1.0), sample(1, 1.0), sample(2, 1.0, prompt_hash="other examples")])
    there = run([sample(0, 1.0), sample(1, 1.0), sample(2, 1.0)])
    (score,) = compare_harness(here, there)
    assert (score.pairs, score.unpaired) == (2, 2)


def test_nothing_in_common_is_said_and_not_scored() -> None:
    here = run([sample(0, 1.0, doc_hash="x")])
    (score,) = compare_harness(here, run([sample(0, 1.0)]))
    assert score.p_value is None
    assert "one plan for both" in str(score.missing)


def test_a_task_without_figures_on_the_baseline_is_missing_with_its_reason() -> None:
    here = run([sample(0, 1.0)])
    refused = HarnessTask(asked="t", task="t", missing="the server leaves it out")
    (score,) = compare_harness(here, replace(here, tasks=(refused,), samples=()))
    assert score.missing == "the baseline has no figures: the server leaves it out"


def test_prompts_cut_at_other_lengths_are_not_the_same_questions() -> None:
    here = run([sample(0, 1.0)])
    (score,) = compare_harness(replace(here, max_length=512), here)
    assert "the same max_length" in str(score.missing)


def test_likelihoods_that_are_no_numbers_are_not_scored_as_chance() -> None:
    here = run([sample(0, 1.0)])
    broken = replace(here, tasks=(replace(here.tasks[0], broken=3),))
    (score,) = compare_harness(broken, here)
    assert "3 samples with a likelihood that is not a number" in str(score.missing)


def test_examples_are_the_answers_that_fell_furthest() -> None:
    here = run([sample(0, 0.4), sample(1, 0.1), sample(2, 0.9)])
    there = run([sample(0, 0.5), sample(1, 0.9), sample(2, 0.9)])
    (score,) = compare_harness(here, there)
    assert [(one.doc_id, one.baseline, one.answer) for one in score.examples] == [
        (1, "said 0.9", "said 0.1"),
        (0, "said 0.5", "said 0.4"),
    ]
