"""The generator: same text everywhere, splits that share nothing, answers that are right."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from whet.demo.inputs import write_inputs
from whet.demo.text import documents, split_of
from whet.demo.text.words import FIRST_NAMES, LAST_NAMES


def _names(split: str) -> set[str]:
    chosen = "train" if split == "train" else "heldout"
    text = "\n".join(
        message.content for chat in documents(3, 150, chosen) for message in chat.messages()
    )
    pairs = re.findall(r"\b([A-Z][a-z]+ [A-Z][a-z]+)\b", text)
    return {p for p in pairs if p.split()[0] in FIRST_NAMES and p.split()[1] in LAST_NAMES}


def test_same_seed_gives_the_same_chats_and_another_seed_others() -> None:
    assert list(documents(5, 20, "train")) == list(documents(5, 20, "train"))
    assert list(documents(5, 20, "train")) != list(documents(6, 20, "train"))


def test_no_customer_occurs_in_both_splits() -> None:
    train, heldout = _names("train"), _names("heldout")
    assert len(train) > 50
    assert len(heldout) > 50
    assert not train & heldout


def test_split_follows_the_crc_of_the_spelling() -> None:
    # CRC-32 of "123456789" is 0xCBF43926 (the check value of every CRC catalogue); 0x26 % 8 == 6.
    assert split_of("123456789") == "train"


def test_sums_are_right() -> None:
    seen = 0
    for chat in documents(1, 300, "heldout"):
        for item in chat.exchanges:
            if found := re.fullmatch(r"What is (\d+) ([+-]) (\d+)\?", item.user):
                first, sign, second = int(found[1]), found[2], int(found[3])
                if item.reply.isdigit():
                    assert int(item.expected) == (first + second if sign == "+" else first - second)
                    seen += 1
    assert seen > 3


def test_extracted_names_stand_in_the_ticket() -> None:
    tickets = [
        item
        for chat in documents(2, 200, "train")
        for item in chat.exchanges
        if item.task == "json_extraction" and '"order"' in item.expected
    ]
    assert len(tickets) > 20
    for item in tickets:
        answer = json.loads(item.expected)
        assert answer["order"]["id"] in item.user
        assert all(line["product"] in item.user for line in answer["order"]["items"])


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
    assert all(set(task) - {"schema"} == keys for task in tasks)
    assert {task["scorer"] for task in tasks} == {"json_exact", "number", "exact", "rouge_l"}
    workload = _lines(inputs / "workload.jsonl")
    kinds = [line["kind"] for line in workload]
    assert kinds.count("system_short") >= 8
    assert kinds.count("system_long") >= 8
    turns = {line["text"] for line in workload if line["kind"] == "user"}
    assert len(turns) == kinds.count("user") >= 2000


def test_every_expected_answer_fits_its_schema_and_its_order(inputs: Path) -> None:
    """The order too, because engines write the keys in the order of the schema."""
    seen = 0
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
        seen += 1
    assert seen == 144


def test_a_schema_does_not_tell_whether_the_ticket_has_a_wish(inputs: Path) -> None:
    tasks = [task for task in _lines(inputs / "tasks.jsonl") if "wish" in str(task.get("schema"))]
    said = [json.loads(str(task["expected"])).get("wish") for task in tasks]
    assert None in said
    assert any(said)
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

    found = {name: hashlib.sha256((inputs / name).read_bytes()).hexdigest() for name in recorded}
    assert found == recorded
