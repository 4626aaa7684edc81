"""Data files: what is refused, with the line, and that no kind of task is cut off."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.load.prompts_factory import write_tokenizer
from tests.load.test_logged_call import TEMPLATE, TOOLS
from tests.quality.files import task_row, write_lines
from whet.core.errors import UsageError
from whet.quality.data import Encoder, load_documents, load_tasks
from whet.requests import LoggedRequest


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (task_row(1, scorer="jsn_exact"), "did you mean 'json_exact'"),
        (task_row(1, scorer="json_exact", expected="{"), "not JSON"),
        (task_row(1, expected="none"), "no number"),
        (task_row(1, scorer="contains", expected=" "), "empty"),
        (task_row(1, messages=[]), "messages"),
        (task_row(1, scorer="json_schema", expected={"type": "text"}), "not a JSON Schema"),
        (task_row(1, scorer="regex", expected="("), "not a pattern"),
        (task_row(1, scorer="tool_call", expected={"name": "f"}), "a call is"),
        (task_row(1, max_tokens=0), "max_tokens"),
        (task_row(1, prompt="2 + 2 ="), "either messages or prompt"),
        (task_row(1, messages=None), "either messages or prompt"),
        (task_row(1, messages=None, prompt=""), "prompt"),
    ],
)
def test_a_task_that_cannot_be_scored_is_refused(
    tmp_path: Path, row: dict[str, object], said: str
) -> None:
    path = write_lines(tmp_path / "tasks.jsonl", [task_row(0), row])
    with pytest.raises(UsageError, match=f"line 2.*{said}"):
        load_tasks(path, 10)


def test_two_tasks_of_one_id_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "tasks.jsonl", [task_row(1), task_row(1)])
    with pytest.raises(UsageError, match="'q1' occurs twice"):
        load_tasks(path, 10)


def test_a_limit_keeps_every_kind_of_task(tmp_path: Path) -> None:
    rows = [task_row(i, task="sums" if i < 8 else "recall") for i in range(10)]
    kept = load_tasks(write_lines(tmp_path / "tasks.jsonl", rows), 4)
    assert [task.id for task in kept] == ["q0", "q8", "q1", "q9"]


def test_a_limit_takes_documents_from_the_whole_file(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "heldout.jsonl", [{"text": str(i)} for i in range(10)])
    assert [document.prompt for document in load_documents(path, 5)] == ["0", "2", "4", "6", "8"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("{\n", "not valid JSON: 1, first heldout.jsonl:1"),
        ('{"text": ""}\n', "first heldout.jsonl:1"),
        ('{"prompt": [1, 2]}\n', "no held-out text; give lines with messages or text"),
    ],
)
def test_a_file_without_text_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "heldout.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        load_documents(path, 5)


def test_a_missing_file_names_the_mend(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no log .* give a file or folder"):
        load_documents(tmp_path / "none.jsonl", 5)


def test_a_document_has_the_tools_of_its_request(tmp_path: Path) -> None:
    encoder = Encoder(write_tokenizer(tmp_path, template=TEMPLATE))
    plain = LoggedRequest(place="", messages=({"role": "user", "content": "hi"},), output="ok")
    assert len(encoder.document(replace(plain, tools=tuple(TOOLS)))) > len(encoder.document(plain))
