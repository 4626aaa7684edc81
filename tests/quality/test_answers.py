"""From answers to scores: yes-or-no tasks, graded ones, and the examples of each."""

from dataclasses import replace
from typing import Any

import pytest

from tests.quality.files import task_row
from tests.quality.model_server import Body, Reply, model_server, says
from tests.records import quality
from whet.core.records.quality import QualityRecord, TaskAnswer
from whet.quality.answers import answer_tasks, find_examples, score_tasks, tasks_at_chance
from whet.quality.asking import ModelEndpoint
from whet.quality.data import Task

RECORD = quality()


def graded(*grades: float) -> tuple[TaskAnswer, ...]:
    return tuple(
        TaskAnswer(id=f"q{i}", task="reply", text=f"{g}", right=g >= 0.5, grade=g)
        for i, g in enumerate(grades)
    )


def judged(marks: str, task: str = "sums") -> tuple[TaskAnswer, ...]:
    return tuple(
        TaskAnswer(id=f"{task}{i}", task=task, text=mark, right=mark == "+")
        for i, mark in enumerate(marks)
    )


def baseline(answers: tuple[TaskAnswer, ...]) -> QualityRecord:
    return replace(RECORD, answers=answers)


def test_a_graded_task_is_a_mean_with_an_interval() -> None:
    (found,) = score_tasks(graded(0.2, 0.5, 0.8, 0.9), None)
    assert found.graded
    assert found.score.value == pytest.approx(0.6)
    assert found.score.low is not None
    assert found.score.high is not None
    assert 0.2 < found.score.low < 0.6 < found.score.high < 0.9
    assert (found.n, found.right) == (4, 3)
    assert (found.p_value, found.difference) == (None, None)


def test_grades_are_paired_with_the_baselines() -> None:
    before, now = graded(0.9, 0.8, 0.7, 0.4), graded(0.8, 0.8, 0.4, 0.6)
    (found,) = score_tasks(now, baseline(before))
    assert (found.lost, found.gained) == (2, 1)
    assert (found.baseline_right, found.right) == (3, 3)
    assert found.difference is not None
    assert found.difference.value == pytest.approx(-0.05)
    # of ±0.1 ± 0.3 ± 0.2, all but |Σ| = 0 (two of eight) reach 0.2
    assert found.p_value == pytest.approx(6 / 8)


def test_the_same_grades_again_are_no_loss() -> None:
    same = graded(*[0.7] * 30)
    (found,) = score_tasks(same, baseline(same))
    assert (found.lost, found.gained, found.p_value) == (0, 0, 1.0)


def test_a_question_that_the_baseline_did_not_answer_is_not_paired() -> None:
    (found,) = score_tasks(graded(0.1, 0.9), baseline(graded(0.5)))
    assert found.n == 2
    assert found.difference is not None
    assert found.difference.value == pytest.approx(-0.4)
    assert found.difference.samples == 1


def test_yes_and_no_keep_their_share_and_gain_a_difference() -> None:
    (found,) = score_tasks(judged("+--+"), baseline(judged("++-+")))
    assert not found.graded
    assert (found.right, found.baseline_right, found.lost, found.gained) == (2, 3, 1, 0)
    assert found.difference is not None
    assert found.difference.value == pytest.approx(-0.25)


def test_tasks_keep_the_order_in_which_they_occur() -> None:
    mixed = judged("+", "sums")[:1] + graded(0.3) + judged("-", "recall")
    assert [score.task for score in score_tasks(mixed, None)] == ["sums", "reply", "recall"]


def test_examples_show_the_deepest_falls_first() -> None:
    before, now = graded(*[0.9] * 8), graded(0.8, 0.9, 0.1, 0.95, 0.7, 0.6, 0.5, 0.4)
    tasks = [made(i, scorer="rouge_l", task="reply") for i in range(8)]
    shown = find_examples(tasks, now, baseline(before))
    assert [example.id for example in shown] == ["q2", "q7", "q6", "q5", "q4"]


def made(index: int, **changes: Any) -> Task:
    return Task.model_validate(task_row(index, **changes))


def test_an_answer_carries_its_grade() -> None:
    tasks = [made(0, scorer="rouge_l", expected="red fox"), made(1, expected="3")]

    def answer(body: Body) -> Reply:
        return says("fox" if body["prompt"] == [0] else "3")

    with model_server(answer) as (url, _):
        endpoint = ModelEndpoint(url=url, model="m", concurrency=1)
        found, _ = answer_tasks(endpoint, tasks, [(0,), (1,)])
    assert [(a.grade, a.right) for a in found] == [
        (pytest.approx(2 / 3), True),
        (None, True),
    ]


def test_an_answer_keeps_the_servers_words_about_its_end() -> None:
    def answer(body: Body) -> Reply:
        status, reply = says("3")
        return status, reply | (
            {"usage": {"completion_tokens": 2}} if body["prompt"] == [0] else {}
        )

    with model_server(answer) as (url, _):
        endpoint = ModelEndpoint(url=url, model="m", concurrency=1)
        found, _ = answer_tasks(endpoint, [made(0), made(1)], [(0,), (1,)])
    assert [(a.finish_reason, a.tokens) for a in found] == [("stop", 2), ("stop", None)]


def questions(count: int, *expected: str, scorer: str = "exact") -> list[Task]:
    return [
        Task.model_validate(
            task_row(i, id=f"sums{i}", expected=expected[i % len(expected)], scorer=scorer)
        )
        for i in range(count)
    ]


# Wilson's 95 % interval of 15 of 40 begins at 0.242, of 16 of 40 at 0.264, of 1 of 40 at 0.004.
@pytest.mark.parametrize(
    ("tasks", "right", "refused"),
    [
        (questions(40, "A", "B", "C", "D"), 15, True),
        (questions(40, "A", "B", "C", "D"), 16, False),
        (questions(40, *map(str, range(40))), 0, True),
        (questions(40, *map(str, range(40))), 1, False),
        (questions(40, "[0-9]+", "[a-z]+", scorer="regex"), 20, False),
        (questions(40, "the only answer"), 20, False),
    ],
)
def test_a_task_whose_interval_holds_the_chance_level_is_refused(
    tasks: list[Task], right: int, refused: bool
) -> None:
    found = tasks_at_chance(tasks, judged("+" * right + "-" * (40 - right)))
    assert [name for name, _ in found] == (["sums"] if refused else [])
    assert all(f"answers {right} of 40 itself" in reason for _, reason in found)


def test_graded_answers_that_are_all_worthless_are_at_chance() -> None:
    assert [name for name, _ in tasks_at_chance([], graded(*[0.0] * 10))] == ["reply"]
    assert tasks_at_chance([], graded(*[0.1] * 10)) == ()
