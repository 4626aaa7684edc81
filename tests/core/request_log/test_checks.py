"""The log's own counts against its text, and the order of its requests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.core.request_log.log_stage import write
from whet.core.errors import UsageError
from whet.core.request_log import LogReader, count_doubt

TEXT = "where is the order that I paid for last week and why does it take so long "


def log(folder: Path, rows: list[dict[str, Any]]) -> Path:
    return write(folder, "".join(json.dumps(row) + "\n" for row in rows))


def asked(text: str, prompt: int, answer: int = 5, said: str = "on its way", **more: Any) -> Any:
    usage = {"prompt_tokens": prompt, "completion_tokens": answer}
    return {
        "messages": [{"role": "user", "content": text}],
        "response": {"choices": [{"message": {"content": said}}], "usage": usage},
        **more,
    }


def doubts(path: Path) -> list[str]:
    reader = LogReader(path)
    list(reader)
    reader.refuse_textless()
    return list(reader.check.doubts())


@pytest.mark.parametrize("text", ["redacted-by-proxy", TEXT[:40] + "… (truncated)"])
def test_a_log_without_its_text_is_refused_with_both_numbers(tmp_path: Path, text: str) -> None:
    path = log(tmp_path, [asked(text, 800 + number) for number in range(30)])
    size = len(text.encode())
    with pytest.raises(UsageError, match=rf"says 81\d tokens per prompt and its text has {size} b"):
        doubts(path)


def test_a_part_without_text_is_said(tmp_path: Path) -> None:
    rows = [asked(f"{TEXT}{number}", 20) for number in range(20)]
    path = log(tmp_path, [*rows, asked("gone", 900), asked(TEXT, 20, 500)])
    prompts, answers = doubts(path)
    assert prompts.startswith("1 of 22 requests (first log.jsonl:21) have a prompt of fewer bytes")
    assert answers.startswith("1 of 22 requests (first log.jsonl:22) have an answer of fewer bytes")


def test_tools_images_and_small_templates_raise_no_doubt(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": TEXT * 30}}]
    image = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "what?"}]
    rows = [asked(f"{number}", 600, tools=tools) for number in range(10)]
    rows += [{**asked("", 900), "messages": [{"role": "user", "content": image}]}] * 9
    rows += [asked(f"hi {number}", 60) for number in range(10)]
    assert doubts(log(tmp_path, rows)) == []


def test_one_text_in_all_prompts_is_said(tmp_path: Path) -> None:
    (said,) = doubts(log(tmp_path, [{"prompt": "REDACTED"}] * 20))
    assert said == "all 20 prompts are the same text: they may be redacted"


@pytest.mark.parametrize(
    ("logged", "counted", "said"),
    [
        (824, 16, "the log says 824 tokens per prompt and its text has 16 .*: redacted, cut, or"),
        (350, 956, "the log says 350 tokens per prompt and its text has 956 .* without cached"),
        (1000, 820, None),
        (820, 1000, None),
        (60, 10, None),
    ],
)
def test_counts_of_the_log_and_of_the_tokenizer_agree_or_are_said(
    logged: int, counted: int, said: str | None
) -> None:
    doubt = count_doubt([*[(logged, counted)] * 6, *[(90, 90)] * 3, (None, 5)])
    if said is None:
        assert doubt is None
    else:
        assert re.search(said, doubt or "")


def test_requests_come_by_time_and_equal_times_as_in_the_file(tmp_path: Path) -> None:
    times = [9, 9, 7, None, 8, 1]
    rows = [{"prompt": f"{n}"} | ({} if at is None else {"timestamp": at})
            for n, at in enumerate(times)]  # fmt: skip
    reader = LogReader(log(tmp_path, rows))
    for _ in range(2):
        assert [each.prompt for each in reader] == ["5", "2", "3", "4", "0", "1"]
    (said,) = reader.check.doubts()
    assert said.startswith("1 of 6 requests (first log.jsonl:4) have no time")


def test_rotated_files_of_a_folder_are_one_log_by_time(tmp_path: Path) -> None:
    for name, at in (("app.jsonl", 30), ("app.1.jsonl", 20), ("app.2.jsonl", 10)):
        (tmp_path / name).write_text(json.dumps({"prompt": name, "timestamp": at}) + "\n")
    prompts = [each.prompt for each in LogReader(tmp_path)]
    assert prompts == ["app.2.jsonl", "app.1.jsonl", "app.jsonl"]
