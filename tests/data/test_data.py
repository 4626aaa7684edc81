"""The built-in text: the committed bytes, and what every file promises its readers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from whet.data import is_built_in, write_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_inputs_have_the_agreed_lines(inputs: Path) -> None:
    assert len(_lines(inputs / "calibration.jsonl")) == 512
    assert len(_lines(inputs / "heldout.jsonl")) >= 200
    tasks = _lines(inputs / "tasks.jsonl")
    assert len(tasks) >= 240
    assert len({task["id"] for task in tasks}) == len(tasks)
    keys = {"id", "task", "messages", "expected", "scorer", "max_tokens"}
    assert all(set(task) - {"schema", "chance"} == keys for task in tasks)
    assert {task["scorer"] for task in tasks} == {"json_exact", "number", "exact", "rouge_l"}
    workload = _lines(inputs / "workload.jsonl")
    kinds = [line["kind"] for line in workload]
    assert kinds.count("system_short") >= 8
    assert kinds.count("system_long") >= 8
    turns = {line["text"] for line in workload if line["kind"] == "user"}
    assert len(turns) == kinds.count("user") >= 2000


def test_every_expected_answer_fits_its_schema_and_its_order(inputs: Path) -> None:
    """The order too, because engines write the keys in the order of the schema."""
    schemas = 0
    for task in _lines(inputs / "tasks.jsonl"):
        assert ("schema" in task) == (task["scorer"] == "json_exact")
        if "schema" not in task:
            continue
        schema: Any = task["schema"]
        judge = Draft202012Validator(schema)
        answer = json.loads(str(task["expected"]))
        judge.validate(answer)
        assert [key for key in schema["properties"] if key in answer] == list(answer)
        assert not judge.is_valid(answer | {"more": 1})
        first = schema["required"][0]
        assert not judge.is_valid({key: value for key, value in answer.items() if key != first})
        schemas += 1
    assert schemas == 144


def test_lookups_hold_their_answer_and_say_what_a_guess_gets(inputs: Path) -> None:
    lookups = [task for task in _lines(inputs / "tasks.jsonl") if task["task"] == "lookup"]
    for task in lookups:
        messages: Any = task["messages"]
        roles = [message["role"] for message in messages]
        assert roles == ["user", "assistant", "user", "assistant", "user"]
        assert task["scorer"] == "exact"
        if task["chance"] == 0.0:
            assert f": {task['expected']}\n" in messages[-1]["content"]
    assert {task["chance"] for task in lookups} == {0.0, 0.25, 0.5}
    assert len(lookups) == 96


def test_a_schema_does_not_tell_whether_the_ticket_has_a_wish(inputs: Path) -> None:
    tasks = [task for task in _lines(inputs / "tasks.jsonl") if "wish" in str(task.get("schema"))]
    wishes = [json.loads(str(task["expected"])).get("wish") for task in tasks]
    assert None in wishes
    assert any(wishes)
    schemas: list[Any] = [task["schema"] for task in tasks]
    assert all("wish" not in schema["required"] for schema in schemas)


def test_tasks_end_with_the_user_and_chats_with_the_assistant(inputs: Path) -> None:
    for name, last in (("tasks", "user"), ("calibration", "assistant"), ("heldout", "assistant")):
        for line in _lines(inputs / f"{name}.jsonl"):
            messages = line["messages"]
            assert isinstance(messages, list)
            assert messages[-1]["role"] == last


def test_inputs_are_the_ones_that_the_pair_was_scored_on(inputs: Path) -> None:
    # Recorded beside the scores of the model card.
    recorded = json.loads((Path(__file__).parent / "inputs_sha256.json").read_text())

    hashes = {name: hashlib.sha256((inputs / name).read_bytes()).hexdigest() for name in recorded}
    assert hashes == recorded


def test_the_built_in_text_is_known_by_its_bytes(inputs: Path, tmp_path: Path) -> None:
    assert is_built_in(inputs / "heldout.jsonl", "heldout")
    other = tmp_path / "own.jsonl"
    for own in (b"", (inputs / "heldout.jsonl").read_bytes() + b"\n"):
        other.write_bytes(own)
        assert not is_built_in(other, "heldout")
