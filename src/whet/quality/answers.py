"""Tasks put to the server, and their scores beside the baseline's on the same questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from whet.client import Failure
from whet.core.protocols import Progress
from whet.core.records import QualityRecord, TaskAnswer, TaskExample, TaskScore
from whet.quality.asking import Peer, Reply, ask, why
from whet.quality.data import Task
from whet.quality.paired import detectable_drop, mcnemar, wilson
from whet.quality.prompts import Ids
from whet.quality.scoring import as_text, right

_EXAMPLES_PER_TASK: Final = 5
_EXAMPLE_CHARACTERS: Final = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What was answered, and why some questions were not."""

    answers: tuple[TaskAnswer, ...]
    missing: str | None


def answer_tasks(
    peer: Peer, tasks: Sequence[Task], prompts: Sequence[Ids], *, progress: Progress | None = None
) -> Answers:
    """Greedy answers, ended by the model's own end of sequence or by the task's ``max_tokens``."""
    bodies = [
        {"prompt": list(ids), "max_tokens": task.max_tokens, "temperature": 0.0}
        for task, ids in zip(tasks, prompts, strict=True)
    ]
    replies = ask(peer, bodies, progress=progress)
    answers, trouble = [], []
    for task, reply in zip(tasks, replies, strict=True):
        text = _text(reply)
        if text is None:
            trouble.append(why(reply) if isinstance(reply, Failure) else "a reply without text")
            continue
        scored = right(text, task.expected, task.scorer)
        answers.append(TaskAnswer(id=task.id, task=task.task, text=text, right=scored))
    missing = (
        f"{len(trouble)} of {len(tasks)} task requests failed ({trouble[0]})" if trouble else None
    )
    return Answers(answers=tuple(answers), missing=missing)


def _text(reply: Reply) -> str | None:
    if isinstance(reply, Failure):
        return None
    choices: list[dict[str, Any]] = reply.get("choices") or [{}]
    text = choices[0].get("text")
    return text if isinstance(text, str) else None


def score_tasks(
    answers: Sequence[TaskAnswer], baseline: QualityRecord | None
) -> tuple[TaskScore, ...]:
    """One score a task, in the order in which tasks first occur; paired where it can be."""
    before = {} if baseline is None else {answer.id: answer.right for answer in baseline.answers}
    kinds = dict.fromkeys(answer.task for answer in answers)
    return tuple(
        _score(kind, [answer for answer in answers if answer.task == kind], before)
        for kind in kinds
    )


def _score(kind: str, answers: Sequence[TaskAnswer], before: Mapping[str, bool]) -> TaskScore:
    n, hits = len(answers), sum(answer.right for answer in answers)
    pairs = [(before[answer.id], answer.right) for answer in answers if answer.id in before]
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
    )


def _visible_drop(pairs: Sequence[tuple[bool, bool]], n: int, hits: int) -> float | None:
    """The drop that this set can see, None where it is more than there is to lose."""
    start = sum(was for was, _ in pairs) / len(pairs) if pairs else hits / n
    gained = sum(now and not was for was, now in pairs) / len(pairs) if pairs else 0.0
    drop = detectable_drop(len(pairs) or n, gained)
    return drop if drop is not None and drop <= start else None


def find_examples(
    tasks: Sequence[Task], answers: Sequence[TaskAnswer], baseline: QualityRecord | None
) -> tuple[TaskExample, ...]:
    """At most five answers a task that the baseline had right and this variant has wrong."""
    before = {} if baseline is None else {answer.id: answer for answer in baseline.answers}
    asked = {task.id: task for task in tasks}
    shown: dict[str, int] = {}
    examples = []
    for answer in answers:
        old = before.get(answer.id)
        lost = old is not None and old.right and not answer.right
        if old is None or not lost or shown.get(answer.task, 0) >= _EXAMPLES_PER_TASK:
            continue
        shown[answer.task] = shown.get(answer.task, 0) + 1
        task = asked[answer.id]
        examples.append(
            TaskExample(
                task=answer.task,
                id=answer.id,
                prompt=task.messages[-1].content[:_EXAMPLE_CHARACTERS],
                expected=as_text(task.expected),
                baseline=old.text[:_EXAMPLE_CHARACTERS],
                answer=answer.text[:_EXAMPLE_CHARACTERS],
            )
        )
    return tuple(examples)
