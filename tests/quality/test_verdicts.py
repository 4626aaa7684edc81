"""The gate: what passes, what fails, and what cannot be told."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.method_gate import gate

from tests.records import quality
from whet.core.records.quality import TaskAnswer, TaskScore
from whet.core.records.summary import Estimate
from whet.quality.statistics import mcnemar
from whet.quality.verdicts import Findings, verdicts

TOLERANCES = (0.01, 0.02, 0.05)
BASELINE = quality()


def ratio(value: float, low: float, high: float, samples: int = 100) -> Estimate:
    return Estimate(value=value, low=low, high=high, samples=samples)


def findings(change: Estimate | None, **more: object) -> Findings:
    made = Findings(ratio=change, tasks=(), answers=(), baseline=BASELINE)
    return replace(made, **more)  # type: ignore[arg-type]


def score(task: str, lost: int, gained: int, p_value: float) -> TaskScore:
    return TaskScore(
        task=task,
        n=100,
        right=90 - lost + gained,
        score=Estimate(value=0.9, low=0.8, high=0.95, samples=100),
        baseline_right=90,
        lost=lost,
        gained=gained,
        p_value=p_value,
    )


def judged(found: Findings) -> list[str]:
    return [word for _, word in verdicts(found, TOLERANCES)[0]]


def test_the_upper_end_passes_and_the_lower_end_fails() -> None:
    # the interval is beyond 1 % and within 2 %
    assert judged(findings(ratio(1.015, 1.011, 1.018))) == ["fail", "pass", "pass"]
    # the point, 1.2 %, is beyond 1 %, and the lower end is not
    assert judged(findings(ratio(1.012, 1.006, 1.018))) == ["unknown", "pass", "pass"]


def test_an_interval_across_the_tolerance_is_unknown() -> None:
    words, reason = verdicts(findings(ratio(1.008, 0.99, 1.03)), TOLERANCES)
    assert [word for _, word in words] == ["unknown", "unknown", "pass"]
    assert reason is not None
    assert "more held-out text" in reason


def test_each_reason_is_said_once_for_all_its_tolerances() -> None:
    words, reason = verdicts(findings(ratio(1.03, 1.02, 1.06)), (0.01, 0.02, 0.04, 0.05, 0.1))
    assert [word for _, word in words] == ["fail", "fail", "unknown", "unknown", "pass"]
    assert reason == (
        "perplexity changes by +3.00 % [+2.00 %, +6.00 %], which is not below 1 % or 2 %; "
        "perplexity changes by +3.00 % [+2.00 %, +6.00 %], inconclusive at 4 % or 5 % with 100 "
        "documents; give more held-out text"
    )
    _, all_failed = verdicts(findings(ratio(1.2, 1.1, 1.3)), (0.01, 0.02, 0.05))
    assert all_failed is not None
    assert all_failed.endswith("which is not below 1 %, 2 % or 5 %")


def test_exactly_the_tolerance_is_not_below_it() -> None:
    assert judged(findings(ratio(1.01, 1.01, 1.01)))[0] == "fail"


def test_too_few_documents_judge_nothing() -> None:
    words, reason = verdicts(findings(ratio(1.0, 1.0, 1.0, samples=59)), TOLERANCES)
    assert [word for _, word in words] == ["unknown"] * 3
    assert "59 held-out documents are too few" in str(reason)
    assert judged(findings(ratio(2.0, 1.9, 2.1, samples=59))) == ["unknown"] * 3
    assert judged(findings(ratio(1.0, 1.0, 1.0, samples=60))) == ["pass"] * 3


def test_an_interval_without_ends_judges_nothing() -> None:
    open_end = Estimate(value=1.03, low=1.0, high=None, samples=60)
    words, reason = verdicts(findings(open_end), TOLERANCES)
    assert [word for _, word in words] == ["unknown"] * 3
    assert "give more held-out text" in str(reason)


def test_a_task_at_chance_is_named_and_not_tested() -> None:
    refused = (("sums", "answers 0 of 40 itself"),)
    tasks = (score("sums", 20, 2, 0.0001), score("recall", 1, 1, 1.0))
    found = findings(ratio(1.0, 0.999, 1.001), tasks=tasks, at_chance=refused)
    words, reason = verdicts(found, TOLERANCES)
    assert [word for _, word in words] == ["pass"] * 3
    said = "sums tasks are not judged: the baseline answers 0 of 40 itself"
    assert reason == f"{said}; give tasks that the baseline can answer (quality.tasks)"
    few = replace(found, tasks=(*tasks, score("copy", 1, 1, 1.0)))
    _, reason = verdicts(few, TOLERANCES)
    assert reason == said
    alone = replace(found, tasks=tasks[:1])
    assert judged(alone) == ["unknown"] * 3
    assert judged(replace(alone, baseline=None)) == ["pass"] * 3


def test_no_perplexity_is_unknown_and_says_so() -> None:
    words, reason = verdicts(findings(None), TOLERANCES)
    assert {word for _, word in words} == {"unknown"}
    assert reason == "perplexity was not measured"


def test_a_gap_never_passes_and_a_failure_stands() -> None:
    found = findings(ratio(1.015, 1.011, 1.018), missing=("3 of 9 task requests failed",))
    assert judged(found) == ["fail", "unknown", "unknown"]


def test_nan_fails_every_tolerance() -> None:
    assert judged(findings(None, broken=("NaN",))) == ["fail"] * 3


def test_a_significant_task_loss_fails_whatever_perplexity_says() -> None:
    words, reason = verdicts(
        findings(ratio(1.0, 0.999, 1.001), tasks=(score("sums", 20, 2, 0.0001),)), TOLERANCES
    )
    assert [word for _, word in words] == ["fail"] * 3
    assert reason is not None
    assert "sums: 20 answers lost and 2 gained" in reason


def test_a_significant_gain_is_no_loss() -> None:
    tasks = (score("sums", 2, 20, 0.0001),)
    assert judged(findings(ratio(1.0, 0.999, 1.001), tasks=tasks)) == ["pass"] * 3


def test_one_small_p_among_several_tasks_is_corrected_for() -> None:
    # Four questions asked (three tasks and degenerate text): 4 · 0.03 = 0.12
    tasks = (score("a", 9, 2, 0.03), score("b", 1, 1, 1.0), score("c", 0, 0, 1.0))
    assert judged(findings(ratio(1.0, 0.999, 1.001), tasks=tasks)) == ["pass"] * 3


def small_losses(lost: int = 6) -> tuple[TaskScore, ...]:
    """Five tasks, each of which lost too few to show it alone: p 0.125 at six against one."""
    return tuple(score(name, lost, 1, mcnemar(lost, 1)) for name in "abcde")


def test_small_losses_in_every_task_fail_together() -> None:
    found = findings(ratio(1.0, 0.999, 1.001), tasks=small_losses())
    words, reason = verdicts(found, TOLERANCES)
    assert [word for _, word in words] == ["fail"] * 3
    # exact p of 30 lost against 5: 2 · Σ C(35, k ≤ 5) ÷ 2^35, times the seven tests
    assert reason is not None
    assert reason.startswith(
        "all 5 tasks together: 30 answers lost and 5 gained against the baseline (p 0.00016"
    )


def test_grades_and_refused_tasks_are_not_counted_together() -> None:
    tasks = small_losses()
    found = findings(ratio(1.0, 0.999, 1.001), tasks=tasks)
    refused = tuple((name, f"{name}: 0 of 40 right") for name in "abc")
    assert judged(replace(found, at_chance=refused)) == ["pass"] * 3
    graded = tuple(replace(each, graded=True) for each in tasks[:4])
    assert judged(replace(found, tasks=(*graded, tasks[4]))) == ["pass"] * 3


def test_tasks_fail_as_often_as_they_say() -> None:
    false, seven = (row[3] for row in gate(0.02, 100))
    assert false <= 0.03
    assert seven >= 0.88


def answers(texts: list[str]) -> tuple[TaskAnswer, ...]:
    return tuple(
        TaskAnswer(id=str(index), task="sums", text=text, right=False)
        for index, text in enumerate(texts)
    )


def test_degenerate_text_that_the_baseline_does_not_write_fails() -> None:
    healthy = replace(BASELINE, answers=answers(["a wrong but readable answer"] * 40))
    # McNemar's exact p of n lost and none gained is 2^(1-n): 0.016 at seven, 0.008 at eight.
    for lost, word in ((7, "pass"), (8, "fail")):
        here = answers(["!" * 40] * lost + ["a wrong but readable answer"] * (40 - lost))
        found = findings(ratio(1.0, 0.999, 1.001), answers=here, baseline=healthy)
        assert judged(found) == [word] * 3


def test_degenerate_text_on_both_sides_is_the_models_own() -> None:
    looping = replace(BASELINE, answers=answers(["!" * 40] * 9 + ["fine"] * 31))
    found = findings(ratio(1.0, 0.999, 1.001), answers=looping.answers, baseline=looping)
    assert judged(found) == ["pass"] * 3


@pytest.mark.parametrize(
    ("texts", "word"),
    [
        (["!" * 40] * 9 + ["x"], "fail"),
        (["!" * 40] * 6 + ["x"] * 4, "pass"),
        (["We ship it. " + "I am sorry. " * 12] * 10, "pass"),
    ],
)
def test_a_baseline_fails_by_itself_where_it_says_nothing_not_where_it_loops(
    texts: list[str], word: str
) -> None:
    found = findings(ratio(1.0, 1.0, 1.0), answers=answers(texts))
    assert judged(replace(found, baseline=None)) == [word] * 3


def test_a_baseline_passes_by_definition() -> None:
    found = findings(ratio(1.0, 1.0, 1.0, samples=3))
    assert judged(replace(found, baseline=None)) == ["pass"] * 3


def test_the_same_variant_again_fails_no_more_often_than_the_level_says() -> None:
    rng = np.random.default_rng(3)
    fails = 0
    for _ in range(200):
        flips = rng.random((5, 60)) < 0.05  # answers that rounding alone turns, either way alike
        lost = (flips & (rng.random((5, 60)) < 0.5)).sum(axis=1)
        gained = flips.sum(axis=1) - lost
        tasks = tuple(
            score(str(i), int(a), int(b), mcnemar(int(a), int(b)))
            for i, (a, b) in enumerate(zip(lost, gained, strict=True))
        )
        fails += "fail" in judged(findings(ratio(1.0, 0.999, 1.001), tasks=tasks))
    assert fails <= 10


def ended(*reasons: str | None) -> tuple[TaskAnswer, ...]:
    return tuple(
        TaskAnswer(id=str(at), task="t", text="So", right=True, finish_reason=reason)
        for at, reason in enumerate(reasons)
    )


# McNemar's exact p of n lost and none gained is 2^(1-n): 0.0625 at five, 0.03125 at six. Beside it
# stands the p of degenerate text, 1: Holm doubles the smaller, so that it takes seven.
@pytest.mark.parametrize(("lost", "word"), [(6, "pass"), (7, "fail")])
def test_answers_that_no_longer_end_fail(lost: int, word: str) -> None:
    baseline = replace(BASELINE, answers=ended(*["stop"] * 9, None))
    here = ended(*["length"] * lost, *["stop"] * (10 - lost))
    found = findings(ratio(1.0, 0.999, 1.001), answers=here, baseline=baseline)
    assert judged(found) == [word] * 3
