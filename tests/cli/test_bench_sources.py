"""``whet bench`` with datasets and traces, against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stage import Whet
from tests.scripted_server import scripted_server
from whet.core.errors import UsageError
from whet.demo import pair_paths

USAGE = UsageError.exit_code
SMALL = ("--tokenizer", pair_paths()[0], "--num-warmups", 2)
SAVE = ("--save-result", "-o", "out")
SHAREGPT = [
    {
        "conversations": [
            {"from": "human", "value": f"question {number} about an order"},
            {"from": "gpt", "value": "the order was sent and will arrive"},
        ]
    }
    for number in range(8)
]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:46.{tenth}000000,{30 + tenth},{1 + tenth}\n" for tenth in range(4)
)
MOONCAKE = [
    {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [7, 8]},
    {"timestamp": 20, "input_length": 1100, "output_length": 3, "hash_ids": [7, 9, 10]},
    {"timestamp": 40, "input_length": 600, "output_length": 2, "hash_ids": [11, 12]},
]


def lines(path: Path, rows: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def saved(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "out" / "bench.json").read_text())
    return told


def shared(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def test_rows_of_a_dataset_are_sent_once_each(whet: Whet, tmp_path: Path) -> None:
    file = lines(tmp_path / "sharegpt.jsonl", SHAREGPT)
    with scripted_server(ttft_s=0.05) as server:
        said = whet("bench", server.url, *SMALL, "--dataset-path", file, "--num-prompts", 6, *SAVE)
        sent = [body["messages"][-1]["content"] for body in server.requests]
    assert said.code == 0, said.err
    assert "8 rows can be used, left out: none" in said.out
    assert sorted(sent) == [row["conversations"][0]["value"] for row in SHAREGPT]
    assert saved(tmp_path)["completed"] == 6
    assert saved(tmp_path)["run_info"]["warmup_requests"] == 2


def test_the_output_length_may_be_given(whet: Whet, tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": f"hello {n}"}]} for n in range(5)]
    file = lines(tmp_path / "chats.jsonl", rows)
    with scripted_server(ttft_s=0.05) as server:
        said = whet(
            "bench", server.url, *SMALL, "--dataset-path", file,
            "--num-prompts", 3, "--output-len", 5, "--request-rate", 100,
        )  # fmt: skip
        bodies = server.requests
    assert said.code == 0, said.err
    assert {body["max_tokens"] for body in bodies} == {5}
    assert all(body["messages"] for body in bodies)


def test_a_trace_of_lengths_is_played_at_its_times(whet: Whet, tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(AZURE + "2023-11-16 18:15:47.0000000,10,0\n")
    with scripted_server(ttft_s=0.05) as server:
        said = whet("bench", server.url, *SMALL, "--trace", file, "--trace-speed", 2, *SAVE)
        bodies = server.requests[2:]
    assert said.code == 0, said.err
    assert "4 requests, 20 requests a second for 0.15 s; 1 row without" in said.out
    assert [len(body["prompt"]) for body in bodies] == [30, 31, 32, 33]
    assert [body["max_tokens"] for body in bodies] == [1, 2, 3, 4]
    told = saved(tmp_path)
    assert told["request_rate"] == pytest.approx(20)
    starts = [at - told["start_times"][0] for at in told["start_times"]]
    assert starts == pytest.approx([0.0, 0.05, 0.1, 0.15], abs=0.04)


def test_a_trace_is_cut_to_its_first_seconds(whet: Whet, tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(AZURE)
    with scripted_server(ttft_s=0.05) as server:
        words = (*SMALL, "--trace", file, "--trace-duration", 0.15, "--max-concurrency", 1)
        said = whet("bench", server.url, *words, "--form", "text")
        prompts = [body["prompt"] for body in server.requests]
    assert said.code == 0, said.err
    assert len(prompts) == 4
    assert all(isinstance(prompt, str) for prompt in prompts)


def test_hash_ids_say_what_prompts_share(whet: Whet, tmp_path: Path) -> None:
    file = lines(tmp_path / "mooncake.jsonl", MOONCAKE)
    with scripted_server(ttft_s=0.05) as server:
        said = whet("bench", server.url, *SMALL, "--trace", file)
        *warm, first, second, third = [body["prompt"] for body in server.requests]
    assert said.code == 0, said.err
    assert [len(first), len(second), len(third)] == [600, 1100, 600]
    assert 512 <= shared(first, second) < 512 + 16
    assert shared(first, third) < 16
    assert all(shared(one, other) < 16 for one in warm for other in (first, second, third))
    assert f"prefix hit rate to expect: {512 / 2300:.3g}" in said.out


def test_a_log_is_sent_as_it_was(whet: Whet, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "where is my order"}]
    rows = [
        {"timestamp": 1, "messages": chat, "max_tokens": 3},
        {"timestamp": 1.02, "prompt": "hello there", "max_tokens": 4},
        {"timestamp": 1.04, "prompt": [5, 6, 7]},
    ]
    file = lines(tmp_path / "log.jsonl", rows)
    with scripted_server(ttft_s=0.05) as server:
        refused = whet("bench", server.url, *SMALL, "--trace", file).sentence(USAGE)
        assert "1 of the requests in" in refused
        assert "give --output-len" in refused
        assert server.requests == []
        said = whet("bench", server.url, *SMALL, "--trace", file, "--output-len", 6)
        sent = server.requests[2:]
    assert said.code == 0, said.err
    assert sent[0]["messages"] == chat
    assert [body.get("prompt") for body in sent] == [None, "hello there", [5, 6, 7]]
    assert [body["max_tokens"] for body in sent] == [3, 4, 6]


# Bad input


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--dataset-path", "a", "--trace", "b"), "are different traffic"),
        (("--trace", "a", "--request-rate", 2), "--request-rate does not go with --trace"),
        (("--trace", "a", "--input-len", 5), "--input-len does not go with --trace"),
        (("--trace", "a", "--burstiness", 2), "--burstiness needs --request-rate"),
        (("--trace", "azure.csv", "--trace-speed", 0), "--trace-speed 0"),
        (("--trace", "azure.csv", "--trace-duration", 0), "duration in seconds is 0"),
        (("--trace", "missing.csv"), "there is no log missing.csv"),
        (("--trace", "untimed.jsonl"), "has no times to play"),
        (("--trace", "timed.jsonl", "--form", "chat"), "holds its own prompts"),
        (("--trace", "azure.csv", "--output-len", 5), "leave out --output-len"),
        (("--trace", "timed.jsonl"), "content that is not text"),
        (("--trace", "mooncake.jsonl", "--form", "text"), "leave out --form"),
        (("--trace-speed", 2), "--trace-speed needs --trace"),
        (("--trace-duration", 2), "--trace-duration needs --trace"),
        (("--dataset-path", "a", "--prefixes", 2), "--prefixes does not go with --dataset-path"),
        (("--dataset-path", "a", "--form", "chat"), "--form does not go with --dataset-path"),
        (("--dataset-path", "missing.jsonl"), "there is no log missing.jsonl"),
        (("--dataset-path", "rows.jsonl"), "8 rows that can be used; 200 requests and 2 of"),
        (("--dataset-path", "rows.jsonl", "--random-range-ratio", 0.5), "does not go with"),
        (("--dataset-name", "sharegpt"), "the form of --dataset-path is recognised"),
        (("--random-range-ratio", 1), "--random-range-ratio 1: give 0 or more, below 1"),
        (("--trace", "azure.csv", "--prefix-len", 5), "--prefix-len does not go with --trace"),
    ],
)
def test_flags_that_do_not_go_together(
    whet: Whet, tmp_path: Path, words: tuple[Any, ...], told: str
) -> None:
    (tmp_path / "azure.csv").write_text(AZURE)
    lines(tmp_path / "rows.jsonl", SHAREGPT)
    lines(tmp_path / "mooncake.jsonl", MOONCAKE)
    content = [{"type": "image_url", "image_url": {"url": "https://x"}}]
    asked = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
    lines(tmp_path / "untimed.jsonl", [asked])
    lines(tmp_path / "timed.jsonl", [asked | {"timestamp": 1}])
    with scripted_server() as server:
        assert told in whet("bench", server.url, *SMALL, *words).sentence(USAGE)
        assert server.requests == []


CHATS = [
    {
        "timestamp": 1_760_000_000 + number / 20,
        "messages": [{"role": "user", "content": f"where is order {number}?"}],
        "tools": [{"type": "function", "function": {"name": "find", "parameters": {}}}],
        "response": {"usage": {"prompt_tokens": 20, "completion_tokens": 3}},
    }
    for number in range(6)
]


@pytest.mark.parametrize(
    "words",
    [
        ("--form", "text", "--input-len", 20),
        ("--form", "chat", "--input-len", 20),
        ("--dataset-path", "chats.jsonl"),
        ("--trace", "chats.jsonl"),
    ],
)
def test_a_strict_server_is_sent_the_fields_of_openai_alone(
    whet: Whet, tmp_path: Path, words: tuple[object, ...]
) -> None:
    lines(tmp_path / "chats.jsonl", CHATS)
    count = () if "--trace" in words else ("--num-prompts", 4)
    plain = ("--no-ignore-eos", "--extra-body", '{"stream_options": null}')
    with scripted_server(ttft_s=0.01) as server:
        said = whet("bench", server.url, *SMALL, *words, *count, *plain)
        bodies = server.requests
    assert bodies, said.err
    known = {"model", "prompt", "messages", "max_tokens", "temperature", "stream", "tools"}
    assert set().union(*bodies) <= known


@pytest.mark.parametrize("option", ["--dataset-path", "--trace"])
def test_tools_of_a_log_are_sent(whet: Whet, tmp_path: Path, option: str) -> None:
    file = lines(tmp_path / "chats.jsonl", CHATS)
    with scripted_server(ttft_s=0.01) as server:
        whet("bench", server.url, *SMALL[:2], "--num-warmups", 0, option, file, "--num-prompts", 4)
        bodies = server.requests
    assert [body["tools"] for body in bodies] == [CHATS[0]["tools"]] * 4


@pytest.mark.parametrize("option", ["--dataset-path", "--trace"])
def test_a_redacted_log_is_not_measured(whet: Whet, tmp_path: Path, option: str) -> None:
    usage = {"usage": {"prompt_tokens": 824, "completion_tokens": 9}}
    gone = [{"role": "user", "content": "redacted"}]
    file = lines(
        tmp_path / "log.jsonl", [{**row, "messages": gone, "response": usage} for row in CHATS]
    )
    with scripted_server() as server:
        said = whet("bench", server.url, *SMALL, option, file, "--num-prompts", 4)
        assert not server.requests
    assert "says 824 tokens per prompt and its text has 78 bytes" in said.sentence(USAGE)


def test_a_log_whose_counts_are_others_is_said(whet: Whet, tmp_path: Path) -> None:
    long = [{"role": "user", "content": "where is the order that I paid for? " * 40}]
    file = lines(tmp_path / "log.jsonl", [{**row, "messages": long} for row in CHATS])
    for option in ("--dataset-path", "--trace"):
        with scripted_server(ttft_s=0.01) as server:
            said = whet("bench", server.url, *SMALL, option, file, "--num-prompts", 4)
        assert said.out.count("the log says 20 tokens per prompt and its text has") == 1
