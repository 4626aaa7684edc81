"""Ask the server the tasks, and score its answers beside the baseline's on the same questions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from whet.checkpoint.thinking import Thinking
from whet.client import Failure
from whet.core.protocols import Progress
from whet.core.records.quality import QualityRecord, TaskAnswer, TaskExample, TaskScore
from whet.core.records.summary import Estimate
from whet.quality.asking import ModelEndpoint, ask, describe, describe_missing, first_choice
from whet.quality.data import Ids, Task
from whet.quality.scoring import GRADE_IS_RIGHT, as_text, grade, right
from whet.quality.statistics import compare_pairs, document_mean, share_difference, wilson

_EXAMPLES_PER_TASK: Final = 5
_EXAMPLE_CHARACTERS: Final = 2000
_CHOICE_SCORERS: Final = frozenset({"exact", "number", "contains", "json_exact", "tool_call"})
"""Scorers under which questions with the same ``expected`` have the same right answer."""


def answer_tasks(
    endpoint: ModelEndpoint,
    tasks: Sequence[Task],
    prompts: Sequence[Ids],
    *,
    thinking: Sequence[Thinking | None] = (),
    progress: Progress | None = None,
) -> tuple[tuple[TaskAnswer, ...], str | None]:
    """Answer greedily, up to the model's own end of sequence or the task's ``max_tokens``.

    A task with ``thinking`` may write its ``tokens`` more, and is scored on what follows. The
    second value says why some questions have no answer.
    """
    reasons = thinking or [None] * len(tasks)
    bodies = [
        {
            "prompt": list(ids),
            "max_tokens": task.max_tokens + (how.tokens if how else 0),
            "temperature": 0.0,
            **({"skip_special_tokens": False} if how and how.special else {}),
        }
        for task, ids, how in zip(tasks, prompts, reasons, strict=True)
    ]
    replies = ask(endpoint, bodies, progress=progress)
    answers, failures = [], []
    for task, how, reply in zip(tasks, reasons, replies, strict=True):
        text = first_choice(reply).get("text")
        if isinstance(reply, Failure):
            failures.append(describe(reply))
        elif not isinstance(text, str):
            failures.append("a reply without text")
        else:
            answers.append(_scored(task, how, text, reply))
    return tuple(answers), describe_missing(failures, len(tasks), "task requests failed")


def _scored(
    task: Task, thinking: Thinking | None, written: str, reply: Mapping[str, Any]
) -> TaskAnswer:
    answer = written if thinking is None else thinking.answer(written)
    text = "" if answer is None else answer
    finish_reason = first_choice(dict(reply)).get("finish_reason")
    tokens = (reply.get("usage") or {}).get("completion_tokens")
    return TaskAnswer(
        id=task.id,
        task=task.task,
        text=written if answer is None else answer,
        right=answer is not None and right(text, task.expected, task.scorer),
        grade=grade(text, task.expected, task.scorer),
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        tokens=tokens if isinstance(tokens, int) else None,
        unfinished=answer is None,
    )


def score_tasks(
    answers: Sequence[TaskAnswer], baseline: QualityRecord | None
) -> tuple[TaskScore, ...]:
    """Score each task in the order in which tasks first occur, paired where possible."""
    before = _by_id(baseline)
    by_task: dict[str, list[TaskAnswer]] = {}
    for answer in answers:
        by_task.setdefault(answer.task, []).append(answer)
    return tuple(score_task(task, group, before) for task, group in by_task.items())


def _by_id(baseline: QualityRecord | None) -> dict[str, TaskAnswer]:
    return {} if baseline is None else {answer.id: answer for answer in baseline.answers}


def score_task(
    task: str, answers: Sequence[TaskAnswer], before: Mapping[str, TaskAnswer]
) -> TaskScore:
    """Score one task, paired with the answers ``before`` by id.

    It is graded if all of its answers are, otherwise right or wrong.
    """
    by_grade = all(answer.grade is not None for answer in answers)
    pairs = [
        (was, answer)
        for answer in answers
        if (was := before.get(answer.id)) is not None and not (by_grade and was.grade is None)
    ]
    gains = [_value(now, by_grade=by_grade) - _value(was, by_grade=by_grade) for was, now in pairs]
    lost, gained, p_value = compare_pairs(gains, by_grade=by_grade) if pairs else (None, None, None)
    values = [_value(answer, by_grade=by_grade) for answer in answers]
    hits = sum(value >= GRADE_IS_RIGHT for value in values)
    before_values = [_value(was, by_grade=by_grade) for was, _ in pairs]
    difference = None
    if pairs:
        shares = [(was.right, now.right) for was, now in pairs]
        difference = _mean(gains) if by_grade else share_difference(shares)
    return TaskScore(
        task=task,
        n=len(answers),
        right=hits,
        score=_mean(values) if by_grade else wilson(hits, len(answers)),
        baseline_right=sum(value >= GRADE_IS_RIGHT for value in before_values) if pairs else None,
        lost=lost,
        gained=gained,
        p_value=p_value,
        difference=difference,
        graded=by_grade,
    )


def _value(answer: TaskAnswer, *, by_grade: bool) -> float:
    return answer.grade if by_grade and answer.grade is not None else float(answer.right)


def _mean(values: Sequence[float]) -> Estimate:
    """Return the mean with a bootstrap interval over questions, all of the same weight."""
    return document_mean([(value, 1) for value in values])


def tasks_at_chance(
    tasks: Sequence[Task], baseline: Sequence[TaskAnswer]
) -> tuple[tuple[str, str], ...]:
    """Return (task, reason) for each task whose baseline score includes the chance level.

    Such a task cannot show a loss.
    """
    by_task: dict[str, list[Task]] = {}
    for task in tasks:
        by_task.setdefault(task.task, []).append(task)
    reasons = []
    for score in score_tasks(baseline, None):
        chance = _chance(by_task.get(score.task, ()))
        if score.score.low is None or score.score.low > chance:
            continue
        guess = f", and guessing gets {100 * chance:.0f} %" if chance else ""
        reasons.append((score.task, f"answers {score.right} of {score.n} itself{guess}"))
    return tuple(reasons)


def _chance(tasks: Sequence[Task]) -> float:
    """Return the score of guessing as the questions give it, else of the best constant answer.

    Free answers have 0. A task has choices if its questions share at most half as many answers as
    there are questions.
    """
    if any(task.chance is not None for task in tasks):
        return sum(task.chance or 0.0 for task in tasks) / len(tasks)
    if not tasks or any(task.scorer not in _CHOICE_SCORERS for task in tasks):
        return 0.0
    counts = Counter(json.dumps(task.expected, sort_keys=True) for task in tasks)
    if not 2 <= len(counts) <= len(tasks) / 2:
        return 0.0
    return max(counts.values()) / len(tasks)


def find_examples(
    tasks: Sequence[Task], answers: Sequence[TaskAnswer], baseline: QualityRecord | None
) -> tuple[TaskExample, ...]:
    """Return at most five answers per task that are worse than the baseline's, worst first.

    Without grades these are answers that the baseline had right and this variant has wrong.
    """
    before = _by_id(baseline)
    tasks_by_id = {task.id: task for task in tasks}
    fallen = [
        (_fall(before[answer.id], answer), answer) for answer in answers if answer.id in before
    ]
    shown: dict[str, int] = {}
    examples = []
    for fall, answer in sorted(fallen, key=lambda pair: -pair[0]):
        if fall <= 0 or shown.get(answer.task, 0) >= _EXAMPLES_PER_TASK:
            continue
        shown[answer.task] = shown.get(answer.task, 0) + 1
        task, was = tasks_by_id[answer.id], before[answer.id]
        examples.append(
            TaskExample(
                task=task.task,
                id=task.id,
                prompt=task.question[:_EXAMPLE_CHARACTERS],
                expected=as_text(task.expected),
                baseline=was.text[:_EXAMPLE_CHARACTERS],
                answer=answer.text[:_EXAMPLE_CHARACTERS],
            )
        )
    return tuple(examples)


def _fall(was: TaskAnswer, now: TaskAnswer) -> float:
    by_grade = was.grade is not None and now.grade is not None
    return _value(was, by_grade=by_grade) - _value(now, by_grade=by_grade)
