"""Tasks put to the server, and their scores beside the baseline's on the same questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.client import Failure
from whet.core.protocols import Progress
from whet.core.records import Estimate, QualityRecord, TaskAnswer, TaskExample, TaskScore
from whet.quality.asking import ModelEndpoint, Reply, ask, why
from whet.quality.data import Task
from whet.quality.paired import (
    detectable_drop,
    detectable_mean_drop,
    mcnemar,
    share_difference,
    sign_flip,
    wilson,
    worse_and_better,
)
from whet.quality.perplexity import document_mean
from whet.quality.prompts import Ids
from whet.quality.scoring import GRADE_IS_RIGHT, as_text, grade, right

_EXAMPLES_PER_TASK: Final = 5
_EXAMPLE_CHARACTERS: Final = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What was answered, and why some questions were not."""

    answers: tuple[TaskAnswer, ...]
    missing: str | None


def answer_tasks(
    endpoint: ModelEndpoint,
    tasks: Sequence[Task],
    prompts: Sequence[Ids],
    *,
    constraints: Sequence[Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
) -> Answers:
    """Greedy answers, ended by the model's own end of sequence or by the task's ``max_tokens``.

    ``constraints`` holds what is added to each task's request (a schema that the engine enforces).
    """
    bodies = [
        {"prompt": list(ids), "max_tokens": task.max_tokens, "temperature": 0.0, **more}
        for task, ids, more in zip(tasks, prompts, constraints or [{}] * len(tasks), strict=True)
    ]
    replies = ask(endpoint, bodies, progress=progress)
    answers, trouble = [], []
    for task, reply in zip(tasks, replies, strict=True):
        text = reply_text(reply)
        if text is None:
            trouble.append(why(reply) if isinstance(reply, Failure) else "a reply without text")
            continue
        answers.append(_scored(task, text, reply))
    missing = (
        f"{len(trouble)} of {len(tasks)} task requests failed ({trouble[0]})" if trouble else None
    )
    return Answers(answers=tuple(answers), missing=missing)


def _scored(task: Task, text: str, reply: Reply) -> TaskAnswer:
    finish_reason = tokens = None
    if not isinstance(reply, Failure):
        finish_reason = reply["choices"][0].get("finish_reason")
        tokens = (reply.get("usage") or {}).get("completion_tokens")
    return TaskAnswer(
        id=task.id,
        task=task.task,
        text=text,
        right=right(text, task.expected, task.scorer),
        grade=grade(text, task.expected, task.scorer),
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        tokens=tokens if isinstance(tokens, int) else None,
    )


def reply_text(reply: Reply) -> str | None:
    """A completion's text; None for a failure or a reply without one."""
    if isinstance(reply, Failure):
        return None
    choices: list[dict[str, Any]] = reply.get("choices") or [{}]
    text = choices[0].get("text")
    return text if isinstance(text, str) else None


def score_tasks(
    answers: Sequence[TaskAnswer], baseline: QualityRecord | None
) -> tuple[TaskScore, ...]:
    """One score a task, in the order in which tasks first occur; paired where it can be."""
    before = {} if baseline is None else {answer.id: answer for answer in baseline.answers}
    kinds: dict[str, list[TaskAnswer]] = {}
    for answer in answers:
        kinds.setdefault(answer.task, []).append(answer)
    return tuple(_score(kind, found, before) for kind, found in kinds.items())


def _score(kind: str, answers: Sequence[TaskAnswer], before: Mapping[str, TaskAnswer]) -> TaskScore:
    """A task is graded where all of its answers are; else each is right or wrong."""
    pairs = [(before[answer.id], answer) for answer in answers if answer.id in before]
    graded = [answer.grade for answer in answers if answer.grade is not None]
    if len(graded) == len(answers):
        return _score_grades(kind, graded, pairs)
    return _score_shares(kind, answers, [(was.right, now.right) for was, now in pairs])


def _score_shares(
    kind: str, answers: Sequence[TaskAnswer], pairs: Sequence[tuple[bool, bool]]
) -> TaskScore:
    n, hits = len(answers), sum(answer.right for answer in answers)
    lost = sum(was and not now for was, now in pairs)
    gained = sum(now and not was for was, now in pairs)
    paired = bool(pairs)
    return TaskScore(
        task=kind,
        n=n,
        right=hits,
        score=wilson(hits, n),
        baseline_right=sum(was for was, _ in pairs) if paired else None,
        lost=lost if paired else None,
        gained=gained if paired else None,
        p_value=mcnemar(lost, gained) if paired else None,
        detectable_drop=_visible_drop(pairs, n, hits),
        difference=share_difference(pairs) if paired else None,
    )


def _score_grades(
    kind: str, grades: Sequence[float], pairs: Sequence[tuple[TaskAnswer, TaskAnswer]]
) -> TaskScore:
    both = [
        (was.grade, now.grade)
        for was, now in pairs
        if was.grade is not None and now.grade is not None
    ]
    differences = [now - was for was, now in both]
    lost, gained = worse_and_better(differences)
    drop = detectable_mean_drop(differences)
    visible = drop is not None and drop <= sum(was for was, _ in both) / len(both)
    return TaskScore(
        task=kind,
        n=len(grades),
        right=sum(found >= GRADE_IS_RIGHT for found in grades),
        score=_mean(grades),
        baseline_right=sum(was >= GRADE_IS_RIGHT for was, _ in both) if both else None,
        lost=lost if both else None,
        gained=gained if both else None,
        p_value=sign_flip(differences) if both else None,
        detectable_drop=drop if visible else None,
        difference=_mean(differences) if both else None,
        graded=True,
    )


def _mean(values: Sequence[float]) -> Estimate:
    """Each question weighs the same, and questions are what the bootstrap draws."""
    return document_mean([(value, 1) for value in values])


def _visible_drop(pairs: Sequence[tuple[bool, bool]], n: int, hits: int) -> float | None:
    """The drop that this set can see, None where it is more than there is to lose."""
    start = sum(was for was, _ in pairs) / len(pairs) if pairs else hits / n
    gained = sum(now and not was for was, now in pairs) / len(pairs) if pairs else 0.0
    drop = detectable_drop(len(pairs) or n, gained)
    return drop if drop is not None and drop <= start else None


def find_examples(
    tasks: Sequence[Task], answers: Sequence[TaskAnswer], baseline: QualityRecord | None
) -> tuple[TaskExample, ...]:
    """At most five answers a task that are worse than the baseline's, those that fell most first.

    Of a task that is not graded: answers that the baseline had right and this variant has wrong.
    """
    before = {} if baseline is None else {answer.id: answer for answer in baseline.answers}
    asked = {task.id: task for task in tasks}
    fallen = [
        (_fall(before[answer.id], answer), answer) for answer in answers if answer.id in before
    ]
    shown: dict[str, int] = {}
    examples = []
    for fall, answer in sorted(fallen, key=lambda pair: -pair[0]):
        if fall <= 0 or shown.get(answer.task, 0) >= _EXAMPLES_PER_TASK:
            continue
        shown[answer.task] = shown.get(answer.task, 0) + 1
        examples.append(_example(asked[answer.id], before[answer.id], answer))
    return tuple(examples)


def _fall(was: TaskAnswer, now: TaskAnswer) -> float:
    if was.grade is None or now.grade is None:
        return float(was.right and not now.right)
    return was.grade - now.grade


def _example(task: Task, was: TaskAnswer, now: TaskAnswer) -> TaskExample:
    return TaskExample(
        task=task.task,
        id=task.id,
        prompt=task.messages[-1].content[:_EXAMPLE_CHARACTERS],
        expected=as_text(task.expected),
        baseline=was.text[:_EXAMPLE_CHARACTERS],
        answer=now.text[:_EXAMPLE_CHARACTERS],
    )
