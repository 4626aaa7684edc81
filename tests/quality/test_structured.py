"""Answers under a schema: counted in pairs, and never believed of a server that ignores it."""

import json
from collections.abc import Callable
from typing import Any

from tests.quality.files import task_row
from tests.quality.model_server import Body, Reply, model_server, says
from whet.core.records.quality import TaskAnswer
from whet.core.records.quality_checks import StructuredScore
from whet.quality.asking import ModelEndpoint
from whet.quality.data import Task
from whet.quality.structured import measure_structured

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
REFUSED = (400, {"error": {"message": "unsupported schema"}})


def question(index: int, **changes: Any) -> Task:
    row = task_row(index, scorer="json_exact", expected={"n": index}, schema=SCHEMA)
    return Task.model_validate(row | changes)


def free(index: int, text: str, *, right: bool) -> TaskAnswer:
    return TaskAnswer(id=f"q{index}", task="sums", text=text, right=right)


def bound(body: Body) -> Any:
    """The schema of a request, or None."""
    return body.get("response_format", {}).get("json_schema", {}).get("schema")


def server_of(answer: Callable[[Body], Reply]) -> Callable[[Body], Reply]:
    def reply(body: Body) -> Reply:
        schema = bound(body)
        if schema is None:
            return says("as I like")
        return says(json.dumps(schema["const"])) if "const" in schema else answer(body)

    return reply


def measure(
    answer: Callable[[Body], Reply], tasks: list[Task], answers: list[TaskAnswer]
) -> tuple[tuple[StructuredScore, ...], list[Body]]:
    prompts = [(index,) for index in range(len(tasks))]
    with model_server(answer) as (url, asked):
        endpoint = ModelEndpoint(url=url, model="m", concurrency=2)
        return measure_structured(endpoint, tasks, prompts, answers), asked


THREE = [question(0), question(1), question(2)]
FREE = [
    free(0, '{"n": 0}', right=True),
    free(1, "it is one", right=False),
    free(2, '{"n": 5}', right=False),
]


def constrained(body: Body) -> Reply:
    """Right on 1, and off the free answer on 0."""
    return says(json.dumps({"n": {0: 9, 1: 1, 2: 5}[body["prompt"][0]]}))


def test_free_and_bound_answers_are_paired() -> None:
    (found,), asked = measure(server_of(constrained), THREE, FREE)
    assert found == StructuredScore(
        task="sums",
        n=3,
        free_valid=2,
        free_right=1,
        valid=3,
        right=1,
        lost=1,
        gained=1,
        p_value=1.0,
    )
    assert [bound(body) for body in asked[-3:]] == [SCHEMA] * 3
    assert all(body["max_tokens"] == 8 for body in asked[-3:])


def test_a_server_that_ignores_the_schema_is_found_out() -> None:
    (found,), asked = measure(lambda _: says('{"n": 1}'), THREE, FREE)
    assert (found.free_valid, found.free_right) == (2, 1)
    assert (found.valid, found.right, found.lost, found.gained, found.p_value) == (None,) * 5
    assert found.missing is not None
    assert "by response_format: it is ignored" in found.missing
    assert all("whet-probe" in json.dumps(body) for body in asked)


def test_a_server_that_refuses_the_field_is_told_with_its_words() -> None:
    (found,), _ = measure(lambda _: REFUSED, THREE, FREE)
    assert found.valid is None
    assert "unsupported schema" in (found.missing or "")


def test_one_schema_that_the_server_refuses_leaves_only_its_task_open() -> None:
    other = {"type": "object", "properties": {"n": {"multipleOf": 1}}}
    tasks = [question(0), question(1, task="odd", schema=other)]
    answers = [FREE[0], TaskAnswer(id="q1", task="odd", text='{"n": 1}', right=True)]
    reply = server_of(lambda body: REFUSED if bound(body) == other else constrained(body))
    (good, odd), _ = measure(reply, tasks, answers)
    assert (good.valid, good.missing) == (1, None)
    assert (odd.free_right, odd.valid) == (1, None)
    assert "1 of 1 task requests failed" in (odd.missing or "")


def test_an_unfinished_answer_is_not_valid() -> None:
    (found,), _ = measure(server_of(lambda _: says('{"n":')), THREE, FREE)
    assert (found.valid, found.right, found.lost) == (0, 0, 1)


def test_only_questions_with_a_schema_and_a_free_answer_are_asked() -> None:
    tasks = [question(0), question(1, schema=None), question(2)]
    (found,), asked = measure(server_of(constrained), tasks, FREE[:2])
    assert (found.n, len(asked)) == (1, 2)


def test_no_schema_is_no_score_and_no_request() -> None:
    found, asked = measure(lambda _: says("x"), [question(1, schema=None)], FREE)
    assert (found, asked) == ((), [])
