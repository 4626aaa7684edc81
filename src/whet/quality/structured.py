"""The same questions free and under a constraint: what a JSON Schema mends, and what it costs.

A constraint makes every finished answer valid. It does not make it right, and it can make a right
answer wrong, where it forces the model off the words that it would have chosen. So both are counted
on the same questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from whet.client import Failure
from whet.core.protocols import Progress
from whet.core.records import StructuredScore, TaskAnswer
from whet.quality.answers import answer_tasks, reply_text
from whet.quality.asking import ModelEndpoint, ask, why
from whet.quality.data import Task
from whet.quality.json_values import text_fits
from whet.quality.paired import mcnemar
from whet.quality.prompts import Ids

Constraint = Callable[[Mapping[str, Any]], dict[str, Any]]


def _structured_outputs(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"structured_outputs": {"json": schema}}


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _guided_json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"guided_json": schema}


DIALECTS: Final[Mapping[str, Constraint]] = MappingProxyType(
    {
        "structured_outputs": _structured_outputs,
        "response_format": _response_format,
        "guided_json": _guided_json,
    }
)
"""How a completion is bound to a schema: vLLM's own field, OpenAI's, and vLLM's before 0.12."""

_PROBE: Final = "whet-probe-7319"
# A bare string: an object's grammar leaves white space free, and some models write it for ever.
_PROBE_SCHEMA: Final[Mapping[str, Any]] = {"type": "string", "const": _PROBE}
_PROBE_TOKENS: Final = 64


def measure_structured(
    endpoint: ModelEndpoint,
    tasks: Sequence[Task],
    prompts: Sequence[Ids],
    free: Sequence[TaskAnswer],
    *,
    progress: Progress | None = None,
) -> tuple[StructuredScore, ...]:
    """A score for each task that has a schema, free answers against constrained ones.

    ``free`` are the answers already given to ``tasks``; a question without one is left out. Empty
    where no task has a schema. A server that refuses or ignores the constraint leaves the
    constrained side None, with the reason in ``missing``.
    """
    answered = {answer.id: answer for answer in free}
    kinds: dict[str, list[tuple[Task, Ids, TaskAnswer]]] = {}
    for task, ids in zip(tasks, prompts, strict=True):
        if task.json_schema is not None and task.id in answered:
            kinds.setdefault(task.task, []).append((task, ids, answered[task.id]))
    if not kinds:
        return ()
    constraint, missing = find_constraint(endpoint, next(iter(kinds.values()))[0][1])
    total, done, scores = sum(map(len, kinds.values())), 0, []
    for asked in kinds.values():
        step = _after(progress, done, total)
        scores.append(_measure(endpoint, asked, constraint, missing, step))
        done += len(asked)
    return tuple(scores)


def find_constraint(endpoint: ModelEndpoint, prompt: Ids) -> tuple[Constraint | None, str | None]:
    """How this server is bound to a schema, or None and why it cannot be.

    A server may take a field that it does not know and answer as if it were not there (vLLM does so
    with ``guided_json`` since 0.12). So each way is tried with a schema that allows one string
    only, which no model writes of its own accord, and the answer must be that string.
    """
    said = []
    for name, constraint in DIALECTS.items():
        body = {"prompt": list(prompt), "max_tokens": _PROBE_TOKENS, "temperature": 0.0}
        reply = ask(endpoint, [{**body, **constraint(_PROBE_SCHEMA)}])[0]
        if text_fits(_PROBE_SCHEMA, reply_text(reply) or ""):
            return constraint, None
        said.append(f"{name} {why(reply) if isinstance(reply, Failure) else 'is ignored'}")
    return None, f"the server holds no answer to a JSON Schema: {'; '.join(said)}"


def _measure(
    endpoint: ModelEndpoint,
    asked: Sequence[tuple[Task, Ids, TaskAnswer]],
    constraint: Constraint | None,
    missing: str | None,
    progress: Progress | None,
) -> StructuredScore:
    tasks = [task for task, _, _ in asked]
    free = [answer for _, _, answer in asked]
    if constraint is None:
        return _score(tasks, free, None, missing)
    bound = answer_tasks(
        endpoint,
        tasks,
        [ids for _, ids, _ in asked],
        constraints=[constraint(task.json_schema or {}) for task in tasks],
        progress=progress,
    )
    if bound.missing is not None:
        return _score(tasks, free, None, f"under the schema, {bound.missing}")
    return _score(tasks, free, bound.answers, None)


def _score(
    tasks: Sequence[Task],
    free: Sequence[TaskAnswer],
    bound: Sequence[TaskAnswer] | None,
    missing: str | None,
) -> StructuredScore:
    pairs = [] if bound is None else list(zip(free, bound, strict=True))
    lost = sum(was.right and not now.right for was, now in pairs)
    gained = sum(now.right and not was.right for was, now in pairs)
    return StructuredScore(
        task=tasks[0].task,
        n=len(tasks),
        free_valid=_valid(tasks, free),
        free_right=sum(answer.right for answer in free),
        valid=None if bound is None else _valid(tasks, bound),
        right=None if bound is None else sum(answer.right for answer in bound),
        lost=None if bound is None else lost,
        gained=None if bound is None else gained,
        p_value=None if bound is None else mcnemar(lost, gained),
        missing=missing,
    )


def _valid(tasks: Sequence[Task], answers: Sequence[TaskAnswer]) -> int:
    return sum(
        text_fits(task.json_schema, answer.text)
        for task, answer in zip(tasks, answers, strict=True)
    )


def _after(progress: Progress | None, offset: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, _: progress(offset + done, total)
