"""Every command that takes a log reads each form of it, packed or not, with the same rules."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from tests.load.requests import bench_request
from whet.core.errors import UsageError
from whet.core.protocols import Silent
from whet.demo import pair_paths
from whet.load.sources.replay import open_rows
from whet.prompts.analyse import PromptLog
from whet.quality.data import load_documents
from whet.quant import load_calibration
from whet.requests import LogReader, plain_messages
from whet.requests.trace import read_trace

TARGET = pair_paths()[0]
QUESTION = "Which order was sent on Monday?"
ANSWER = "The order of three lamps was sent on Monday."
ASK = [{"role": "user", "content": QUESTION}]
ANSWERED = {"choices": [{"message": {"role": "assistant", "content": ANSWER}}]}
SHAREGPT = [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]

FORMS: dict[str, dict[str, Any]] = {
    "chat": {"messages": ASK, "response": ANSWERED},
    "batch": {"custom_id": "1", "body": {"messages": ASK}, "response": {"body": ANSWERED}},
    "text of objects": {"request": json.dumps({"messages": ASK}), "response": json.dumps(ANSWERED)},
    "prompt": {"prompt": QUESTION, "response": {"choices": [{"text": ANSWER}]}},
    "plain answer": {"prompt": QUESTION, "response": ANSWER},
    "completion": {"prompt": QUESTION, "completion": ANSWER},
    "sharegpt": {"id": "a", "conversations": SHAREGPT},
    "with its answer": {"messages": [*ASK, {"role": "assistant", "content": ANSWER}]},
    "alpaca": {"instruction": QUESTION, "output": ANSWER},
    "responses": {
        "instructions": "Be brief.",
        "input": QUESTION,
        "response": {"output": [{"content": [{"type": "output_text", "text": ANSWER}]}]},
    },
    "anthropic": {
        "request": {"system": "Be brief.", "messages": ASK},
        "response": {"content": [{"type": "text", "text": ANSWER}]},
    },
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": QUESTION}]}],
        "response": {"candidates": [{"content": {"parts": [{"text": ANSWER}]}}]},
    },
    "converse": {
        "messages": [{"role": "user", "content": [{"text": QUESTION}]}],
        "response": {"output": {"message": {"role": "assistant", "content": [{"text": ANSWER}]}}},
    },
    "langfuse": {"input": ASK, "output": {"role": "assistant", "content": ANSWER}},
}


def bench(path: Path) -> int:
    return len(open_rows(bench_request(source=path), Path(TARGET), Silent()))


def arrivals(path: Path) -> int:
    return len(read_trace(path).rows)


def prompts(path: Path) -> int:
    return sum(1 for _ in PromptLog(path, str(TARGET)).prompts())


def calibration(path: Path) -> int:
    return len(load_calibration(path, TARGET, samples=10**6, max_tokens=64, seed=0).ids)


def heldout(path: Path) -> int:
    return len(load_documents(path, 10**6))


USERS = pytest.mark.parametrize("count", [bench, arrivals, prompts, calibration, heldout])
Count = Callable[[Path], int]


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write(folder: Path, data: bytes, name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@USERS
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read(tmp_path: Path, form: str, count: Count) -> None:
    assert count(write(tmp_path, lines(*[FORMS[form]] * 3))) == 3


@USERS
def test_packed_logs_and_folders_are_read(tmp_path: Path, count: Count) -> None:
    data = lines(*FORMS.values())
    packed = write(tmp_path, gzip.compress(data), "a.jsonl.gz")
    assert count(packed) == len(FORMS)
    zstd = pyarrow.compress(data, codec="zstd", asbytes=True)
    assert count(write(tmp_path, zstd, "b.jsonl.zst")) == len(FORMS)
    assert count(tmp_path) == 2 * len(FORMS)


@USERS
def test_a_log_whose_counts_are_of_another_text_is_refused(tmp_path: Path, count: Count) -> None:
    rows = [{**FORMS["prompt"], "usage": {"prompt_tokens": 900 + n}} for n in range(9)]
    with pytest.raises(UsageError, match=r"says 904 tokens per prompt .* \[redacted\]"):
        count(write(tmp_path, lines(*rows)))


@USERS
def test_rows_of_lengths_are_no_prompts(tmp_path: Path, count: Count) -> None:
    path = write(tmp_path, lines(*[{"timestamp": 1, "input_length": 9, "output_length": 9}] * 3))
    if count is arrivals:
        assert count(path) == 3
    else:
        with pytest.raises(UsageError, match="lengths without a prompt: whet bench --trace"):
            count(path)


@USERS
def test_over_one_percent_of_broken_lines_refuses_the_log(tmp_path: Path, count: Count) -> None:
    def log(broken: int) -> Path:
        good = lines(*[FORMS["chat"]] * (200 - broken))
        return write(tmp_path, good[: len(good) // 2] + good[len(good) // 2 :] + b"{]\n" * broken)

    assert count(log(1)) == 199
    assert count(log(2)) == 198
    place = r"4 of 200 lines are broken, more than 1% \(first log.jsonl:197: not valid JSON\)"
    with pytest.raises(UsageError, match=place):
        count(log(4))


@USERS
def test_lines_of_another_kind_are_not_broken(tmp_path: Path, count: Count) -> None:
    other = {"url": "/v1/embeddings", "body": {"input": "x"}}
    unfinished = b'{"prompt": "cut o'
    assert count(write(tmp_path, lines(FORMS["chat"], other) + unfinished)) == 1


@pytest.mark.parametrize("count", [arrivals, prompts, calibration, heldout])
def test_a_log_without_answers_is_read(tmp_path: Path, count: Count) -> None:
    assert count(write(tmp_path, lines({"messages": ASK}, {"prompt": QUESTION}))) == 2


def test_a_dataset_without_answers_says_what_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, lines({"messages": ASK}))
    with pytest.raises(UsageError, match=r"no answer to take the length from: 1, first log"):
        bench(path)


@pytest.mark.parametrize("kind", ["image_url", "input_audio"])
def test_images_and_audio_are_named_and_never_scored_or_sent_as_text(
    tmp_path: Path, kind: str
) -> None:
    parts = [{"type": "text", "text": QUESTION}, {"type": kind, kind: {}}]
    row = {"messages": [{"role": "user", "content": parts}], "response": ANSWERED}
    path = write(tmp_path, lines(row, FORMS["chat"]))
    assert (heldout(path), bench(path)) == (1, 1)
    facts = load_calibration(path, TARGET, samples=2, max_tokens=64, seed=0).facts
    assert facts.samples == 2
    assert f"1 {kind}" in facts.warnings[0]


def test_the_logged_answer_is_the_last_message_of_heldout_text(tmp_path: Path) -> None:
    (document,) = load_documents(write(tmp_path, lines(FORMS["batch"])), 5)
    assert [(each["role"], each["content"]) for each in plain_messages(document)] == [
        ("user", QUESTION),
        ("assistant", ANSWER),
    ]


def test_a_request_can_be_sent_again_as_it_was(tmp_path: Path) -> None:
    sampling = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "stop": ["\n"],
        "seed": 3,
        "response_format": {"type": "json_object"},
        "tool_choice": "auto",
    }
    usage = {"prompt_tokens": 9, "completion_tokens": 5}
    row = {
        "body": {"messages": ASK, **sampling, "max_completion_tokens": 50},
        "response": {"usage": usage},
    }
    (request,) = LogReader(write(tmp_path, lines(row)))
    assert request.sampling == sampling
    counts = (request.max_tokens, request.prompt_tokens, request.output_tokens)
    assert counts == (50, 9, 5)


def test_times_of_two_units_are_refused_where_they_are_used(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "timestamp": at} for at in (12.5, 1_700_000_000)]
    with pytest.raises(UsageError, match=r"log.jsonl:2: time jumps by 19,676 days; write all"):
        arrivals(write(tmp_path, lines(*rows)))
