"""docs/logs.md: each example is read as it says, and each finding and refused form is in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from whet.core.format import plural
from whet.requests import LoggedRequest, LogReader
from whet.requests.parse import FOREIGN
from whet.requests.records import FindingName

PAGE = (Path(__file__).parents[2] / "docs" / "logs.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```(json|csv)\n(.*?)```\n\nRead as: ([^\n]*)\n", PAGE, re.DOTALL)


def summary(request: LoggedRequest) -> str:
    """What the page says of a request."""
    known = request.prompt_tokens, request.output_tokens
    parts = [
        plural(len(request.messages), "message") if request.messages else "",
        "prompt" if request.prompt else "",
        "" if request.has_prompt else "lengths",
        plural(len(request.tools), "tool") if request.tools else "",
        plural(len(request.tool_calls), "call") if request.tool_calls else "",
        "answer" if request.output else "",
        f"{known[0]} + {known[1]} tokens" if None not in known else "",
        f"{known[1]} tokens of answer" if known[0] is None and known[1] else "",
        plural(len(request.hash_ids), "hash id") if request.hash_ids else "",
        f"limit {request.max_tokens}" if request.max_tokens else "",
        "time" if request.at_ns is not None else "",
        "session" if request.session else "",
    ]
    return ", ".join(filter(None, parts))


@pytest.mark.parametrize(("kind", "text", "said"), EXAMPLES, ids=range(len(EXAMPLES)))
@pytest.mark.parametrize("many", [1, 3])
def test_an_example_is_read_as_the_page_says(
    tmp_path: Path, kind: str, text: str, said: str, many: int
) -> None:
    path = tmp_path / f"log.{kind}"
    head, _, row = text.partition("\n")
    path.write_text(head + "\n" + row * many if kind == "csv" else text * many)
    reader = LogReader(path, lengths=True)
    expected = said.split("; ") * many
    assert [summary(request) for request in reader] == expected
    assert reader.left_out() == ()


def test_each_form_has_an_example() -> None:
    sections = PAGE[: PAGE.index("## Forms that are not read")].split("\n### ")[1:]
    assert len(sections) == 21
    assert all("Read as: " in section for section in sections)


@pytest.mark.parametrize("name", get_args(FindingName))
def test_a_finding_is_explained(name: str) -> None:
    assert re.search(rf"^\| {name} \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("what", FOREIGN.values())
def test_a_form_that_is_not_read_is_in_the_table(what: str) -> None:
    form = what.split(",", maxsplit=1)[0].split(";", maxsplit=1)[0].removesuffix(" of a batch")
    assert form.lower() in PAGE.lower()
