"""The same questions with and without a JSON Schema: what the constraint fixes and what it costs.

A constraint makes every finished answer valid. It does not make it right, and it can turn a right
answer wrong by forcing the model off its own words, so both are counted on the same questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from whet.client import Failure
from whet.core.records.quality import TaskAnswer
from whet.core.records.quality_checks import StructuredScore
from whet.quality.answers import answer_tasks
from whet.quality.asking import ModelEndpoint, ask, describe, first_choice
from whet.quality.data import Task
from whet.quality.json_values import text_fits
from whet.quality.paired import compare_pairs
from whet.quality.prompts import Ids

_PROBE: Final = "whet-probe-7319"
# A bare string: an object's grammar allows white space, which some models repeat without end.
_PROBE_SCHEMA: Final[Mapping[str, Any]] = {"type": "string", "const": _PROBE}
_PROBE_TOKENS: Final = 64


_Question = tuple[Task, Ids, TaskAnswer]
"""A task with a schema, its prompt, and the answer given without the schema."""


def measure_structured(
    endpoint: ModelEndpoint,
    tasks: Sequence[Task],
    prompts: Sequence[Ids],
    free: Sequence[TaskAnswer],
) -> tuple[StructuredScore, ...]:
    """Score each task that has a schema: free answers against constrained ones.

    ``free`` are the answers already given; a question without one is left out. A server that
    refuses or ignores the constraint leaves the constrained side None, with the reason in
    ``missing``.
    """
    answers = {answer.id: answer for answer in free}
    by_task: dict[str, list[_Question]] = {}
    for task, ids in zip(tasks, prompts, strict=True):
        if task.json_schema is not None and task.id in answers:
            by_task.setdefault(task.task, []).append((task, ids, answers[task.id]))
    if not by_task:
        return ()
    missing = _probe(endpoint, next(iter(by_task.values()))[0][1])
    return tuple(_measure(endpoint, questions, missing) for questions in by_task.values())


def _bind(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request field that binds a completion to a schema (OpenAI's; vLLM reads it)."""
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _probe(endpoint: ModelEndpoint, prompt: Ids) -> str | None:
    """Return why the server does not enforce a schema, or None if it does.

    Some servers accept a field that they do not know and ignore it. The probe's schema allows one
    string only, which no model writes by itself.
    """
    body = {"prompt": list(prompt), "max_tokens": _PROBE_TOKENS, "temperature": 0.0}
    reply = ask(endpoint, [{**body, **_bind(_PROBE_SCHEMA)}])[0]
    if text_fits(_PROBE_SCHEMA, first_choice(reply).get("text") or ""):
        return None
    problem = describe(reply) if isinstance(reply, Failure) else "it is ignored"
    return f"the server does not enforce a JSON Schema by response_format: {problem}"


def _measure(
    endpoint: ModelEndpoint, questions: Sequence[_Question], missing: str | None
) -> StructuredScore:
    """Score one task; ``missing`` says why its questions cannot be asked under the schema."""
    tasks, prompts, free = (list(column) for column in zip(*questions, strict=True))
    score = StructuredScore(
        task=tasks[0].task,
        n=len(tasks),
        free_valid=_valid(tasks, free),
        free_right=sum(answer.right for answer in free),
        missing=missing,
    )
    if missing is not None:
        return score
    schemas = [_bind(task.json_schema or {}) for task in tasks]
    answers = answer_tasks(endpoint, tasks, prompts, constraints=schemas)
    if answers.missing is not None:
        return replace(score, missing=f"under the schema, {answers.missing}")
    bound = answers.answers
    gains = [now.right - was.right for was, now in zip(free, bound, strict=True)]
    test = compare_pairs(gains, by_grade=False)
    return replace(
        score,
        valid=_valid(tasks, bound),
        right=sum(answer.right for answer in bound),
        lost=test.lost,
        gained=test.gained,
        p_value=test.p_value,
    )


def _valid(tasks: Sequence[Task], answers: Sequence[TaskAnswer]) -> int:
    return sum(
        text_fits(task.json_schema, answer.text)
        for task, answer in zip(tasks, answers, strict=True)
    )
