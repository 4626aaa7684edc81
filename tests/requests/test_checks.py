"""The log's own counts against its text, and the order of its requests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.requests.log_stage import write
from whet.core.errors import UsageError
from whet.requests import LoggedRequest, LogReader, TokenCheck

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
    assert said.startswith("all 20 prompts end in the same text, or in a placeholder")


@pytest.mark.parametrize(
    "text",
    ["***", "", None, "lorem ipsum dolor", "[REDACTED {} chars]", "<redacted:{}>",
     "sha256:{:064x}", "{:032x}"],
)  # fmt: skip
def test_words_in_the_place_of_a_prompt_are_said(tmp_path: Path, text: str | None) -> None:
    def hidden(number: int) -> dict[str, Any]:
        content = None if text is None else text.format(number * 7919)
        return {"role": "user", "content": content}

    rows = [{"messages": [hidden(n)] * (1 + 2 * (n % 2))} for n in range(20)]
    (said,) = doubts(log(tmp_path, rows))
    assert said.startswith("all 20 prompts end in the same text, or in a placeholder")
    rows = [{"messages": [{"role": "user", "content": f"[{n}] {TEXT}"}]} for n in range(20)]
    assert doubts(log(tmp_path, rows)) == []


@pytest.mark.parametrize(
    "end", ["...[truncated]", "... (litellm_truncated 9000 chars)", "…<truncated>"]
)
def test_a_prompt_that_says_it_was_cut_is_said(tmp_path: Path, end: str) -> None:
    rows = [{"prompt": f"{n} {TEXT}{end if n == 3 else ''}"} for n in range(5)]
    (said,) = doubts(log(tmp_path, rows))
    assert said.startswith("1 of 5 requests (first log.jsonl:4) have a prompt that says it was tr")
    assert said.endswith(" [truncated]")


def turn(session: int, number: int, **more: Any) -> dict[str, Any]:
    """The request of a chat's nth turn."""
    said = [{"role": "user", "content": f"{session} {TEXT}"}]
    for at in range(number):
        answer = {"role": "assistant", "content": f"answer {at}"}
        said += [answer, {"role": "user", "content": f"more {at}"}]
    return {"messages": said, **more}


CHATS = [turn(session, number) for session in range(4) for number in range(5)]
TIMED = [{**row, "timestamp": 1_760_000_000 + at // 2} for at, row in enumerate(CHATS)]
USAGE = {"prompt_tokens": 30, "completion_tokens": 90}


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        (CHATS, None),
        (CHATS[::-1], "order"),
        ([{**row, "session_id": f"s{at // 5}"} for at, row in enumerate(CHATS)][::-1], "order"),
        ([{**row, "timestamp": -at} for at, row in enumerate(TIMED)], "order"),
        (TIMED, None),
        (TIMED[::-1], None),
        ([{**row, "session_id": "project"} for row in CHATS], "sessions"),
        ([{"prompt": "*" * 9 if n % 20 else f"hello {n}"} for n in range(40)], "one-text"),
        ([{"prompt": f"{n} {TEXT}" if n % 3 else "ping"} for n in range(40)], None),
        ([{"prompt": f"{n} {TEXT * 9}"[: 90 * (n % 5 + 1)][:300]} for n in range(60)], "truncated"),
        ([{"prompt": f"{n} {TEXT * 9}"[: 90 * (n % 5 + 1)]} for n in range(40)], None),
        ([{"prompt": f"{n} {TEXT}", "max_tokens": 64, "usage": USAGE} for n in range(9)], "counts"),
        ([{"prompt": f"{n} {TEXT}", "documents": [{"text": "a"}]} for n in range(9)],
         "template-fields"),
        ([turn(n, 0, chat_template="x") for n in range(9)], "template-fields"),
    ],
)  # fmt: skip
def test_what_no_line_shows_alone_is_named(
    tmp_path: Path, rows: list[dict[str, Any]], name: str | None
) -> None:
    names = [each.rpartition(" [")[2] for each in doubts(log(tmp_path, rows))]
    assert names == ([] if name is None else [f"{name}]"])


def test_equal_times_of_a_log_that_is_newest_first_are_reversed(tmp_path: Path) -> None:
    expected = [row["messages"] for row in TIMED]
    for rows in (TIMED, TIMED[::-1]):
        requests = list(LogReader(log(tmp_path, rows)))
        assert [list(each.messages or ()) for each in requests] == expected


def test_lines_twice_and_several_models_are_said(tmp_path: Path) -> None:
    at = 1_760_000_000
    rows = [{"prompt": f"{n} {TEXT}", "timestamp": at + n, "model": f"m{n % 2}"} for n in range(4)]
    twice, models = doubts(log(tmp_path, rows + rows[:3]))[::-1]
    whole_seconds = [{**row, "timestamp": at} for row in rows]
    assert doubts(log(tmp_path, whole_seconds * 2))[-1].startswith("4 of 8 requests")
    assert models.endswith("several models, taken together here: m0 (4), m1 (3) [models]")
    assert twice.startswith("3 of 7 requests (first log.jsonl:5) have the text of an earlier one")


def test_a_time_that_is_not_understood_is_said(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} {TEXT}", "timestamp": f"day {n}"} for n in range(3)]
    (said,) = doubts(log(tmp_path, rows))
    assert said.startswith("3 of 3 requests (first log.jsonl:1) have a time that is not understood")


@pytest.mark.parametrize(
    ("back_s", "said"), [(3600, True), (1803, True), (7200, False), (5, False)]
)
def test_a_clock_that_was_set_back_is_said(tmp_path: Path, back_s: int, said: bool) -> None:
    times = [1_760_000_000 + 2 * n - (back_s if n > 9 else 0) for n in range(20)]
    rows = [{"prompt": f"{n} {TEXT}", "timestamp": at} for n, at in enumerate(times)]
    heard = doubts(log(tmp_path, rows))
    assert [each.partition(" at log.jsonl:11,")[0][:17] for each in heard] == (
        ["time goes back by"] if said else []
    )


@pytest.mark.parametrize(
    ("logged", "counted", "said"),
    [
        (824, 16, "the log says 824 tokens per prompt and its text has 16 .*: redacted, cut, or"),
        (350, 956, "the log says 350 tokens per prompt and its text has 956 .* without cached"),
        (1000, 820, "says 1,000 tokens .* has 820 .* requests.: another tokenizer or template"),
        (820, 1000, "another tokenizer"),
        (1000, 960, None),
        (960, 1000, None),
        (60, 10, None),
    ],
)
def test_counts_of_the_log_and_of_the_tokenizer_agree_or_are_said(
    logged: int, counted: int, said: str | None
) -> None:
    check = TokenCheck(str.split)
    for theirs, ours in [*[(logged, counted)] * 6, *[(90, 90)] * 3, (None, 5)]:
        check.add(LoggedRequest(place="log:1", prompt="", prompt_tokens=theirs), ours)
    assert [re.search(said or "", doubt) is not None for doubt in check.doubts()] == (
        [] if said is None else [True]
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"output_tokens": 30}, None),
        ({"output_tokens": 36}, None),
        ({"output_tokens": 90}, "the log says 90 tokens per answer and its text has 30 .* totals"),
        ({"output_tokens": 12}, "says 12 tokens per answer .* more than it"),
        ({"max_tokens": 30}, None),
        ({"max_tokens": 8}, r"9 of 9 requests \(first log:1\) have an answer of more tokens than"),
        ({"output_tokens": 90, "tool_calls": ({},)}, None),
    ],
)
def test_answers_of_the_log_and_of_the_tokenizer_agree_or_are_said(
    fields: dict[str, Any], said: str | None
) -> None:
    check = TokenCheck(str.split)
    for _ in range(9):
        check.add(LoggedRequest(place="log:1", prompt="", output="word " * 30, **fields), 3)
    assert [re.search(said or "", doubt) is not None for doubt in check.doubts()] == (
        [] if said is None else [True]
    )


AT = 1_760_000_000


@pytest.mark.parametrize(
    ("second", "read", "said"),
    [
        ({"timestamp": AT + 0.003}, 20, "each is counted once"),
        ({"timestamp": AT + 90}, 20, "each is counted once"),
        ({"response": None}, 20, "each is counted once"),
        ({"request_id": None}, 40, "within a second"),
        ({"request_id": "other", "timestamp": AT + 0.9}, 40, "within a second"),
        ({"request_id": None, "timestamp": AT + 30}, 40, None),
        ({"response": "another answer"}, 40, None),
    ],
)
def test_a_request_that_two_programs_log_is_counted_once_or_said(
    tmp_path: Path, second: dict[str, Any], read: int, said: str | None
) -> None:
    rows = []
    for number in range(20):
        row = {"prompt": f"{number} {TEXT}", "response": f"answer {number}", "timestamp": AT,
               "request_id": f"r{number}"}  # fmt: skip
        rows += [row, {**row, **second}]
    path = log(tmp_path, rows)
    reader = LogReader(path)
    assert len(list(reader)) == read
    assert [(said or "") in doubt for doubt in reader.check.doubts()] == [True] * (said is not None)


@pytest.mark.parametrize("name", ["request_id", "id"])
def test_an_id_of_several_prompts_is_not_one_of_a_request(tmp_path: Path, name: str) -> None:
    rows = [
        {"prompt": f"{n % 10} {TEXT}", "response": "yes", name: "chat", "timestamp": AT + 60 * n}
        for n in range(40)
    ]
    assert len(list(LogReader(log(tmp_path, rows)))) == 40


@pytest.mark.parametrize("mask", ["x", "X", "*", "#", "•"])
def test_a_text_that_is_masked_letter_by_letter_is_refused(tmp_path: Path, mask: str) -> None:
    masked = [re.sub(r"\w", mask, f"{TEXT}{'too ' * (n % 7)}").capitalize() for n in range(20)]
    with pytest.raises(UsageError, match="20 of 20 requests have a prompt that is masked"):
        doubts(log(tmp_path, [{"prompt": text} for text in masked]))


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
