"""A logged request is sent with its fields, whichever option of a bench replays it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.load.prompts_factory import write_tokenizer
from tests.load.requests import bench_request
from whet.core.protocols import Lines, Silent
from whet.load.logged import SEVERAL, logged_call, marked, unsent_fields
from whet.load.sources.replay import open_rows
from whet.load.sources.request import Target
from whet.load.sources.source import build_load
from whet.load.texts import TextTokenizer, load_text_tokenizer
from whet.requests import LoggedRequest
from whet.requests.trace import read_trace

TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "order 7?"}], "weight": 1},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "sent"},
]
FIELDS: dict[str, Any] = {
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "response_format": {"type": "json_object"},
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "cache_salt": "tenant",
}
SAMPLER = {"temperature": 0.7, "top_p": 0.9, "stop": ["x"], "seed": 3}
LINE = {"messages": HISTORY, "max_tokens": 9, **FIELDS, **SAMPLER, "n": 2, "response": "yes"}
TEMPLATE = (
    "{% for t in tools or [] %}<|system|>{{ t.function.name }}<|end|>{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}<|end|>{% endfor %}"
    "{{ 'off' if enable_thinking is false }}<|assistant|>"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token a byte; the template renders tools and ``enable_thinking``."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), template=TEMPLATE)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return load_text_tokenizer(folder)


def test_a_dataset_and_a_trace_send_the_same_body(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    notes, request = Lines(), bench_request(source=path)
    target = Target(model="m", tokenizer=folder, rows=open_rows(request, folder, notes))
    (sent,) = build_load(request, target, 0).calls or ()
    assert logged_call(read_trace(path).rows[0], 3) == sent
    body = sent.body(model="m", stream=False)
    assert {name: body[name] for name in FIELDS} == FIELDS
    first = {"role": "user", "content": HISTORY[0]["content"]}
    assert body["messages"] == [first, *HISTORY[1:]]
    assert not {"n", "stop", "seed", "top_p"} & body.keys()
    assert (body["temperature"], body["max_tokens"]) == (0, 3)
    unsent = "fields of the log that are not sent: n of 1 request [not-sent]"
    assert notes.lines[1:] == [("warn", unsent)]


def test_the_prompt_counts_its_tools_and_template_arguments(tokenizer: TextTokenizer) -> None:
    plain = LoggedRequest(place="", messages=({"role": "user", "content": "abc"},))
    rich = LoggedRequest(
        place="",
        messages=plain.messages,
        tools=tuple(TOOLS),
        chat_template_kwargs={"enable_thinking": False},
    )
    assert len(tokenizer.request_ids(rich)) == len(tokenizer.request_ids(plain)) + 6 + 3


def test_fields_that_are_not_sent_are_named_once_with_their_requests() -> None:
    requests = [
        LoggedRequest(place="", prompt="a", sampling={"response_format": {}, "temperature": 1}),
        LoggedRequest(place="", prompt="a", sampling={"response_format": {}, "n": 1}),
        LoggedRequest(place="", prompt="a", sampling={"tool_choice": "auto"}, cache_salt="s"),
    ]
    assert unsent_fields(requests) == (
        "fields of the log that are not sent: response_format of 2 requests, "
        "cache_salt of 1 request [not-sent]"
    )
    assert unsent_fields(requests, SEVERAL) is None


def test_a_mark_begins_each_form_of_prompt() -> None:
    parts = [{"type": "text", "text": "hi"}]
    chat = LoggedRequest(place="", messages=({"role": "user", "content": parts},))
    ids = LoggedRequest(place="", prompt_token_ids=(7, 8))
    (message,) = marked(chat, "[1] ", lambda text: [1]).messages or ()
    assert message["content"] == [{"type": "text", "text": "[1] "}, *parts]
    assert marked(ids, "[1] ", lambda text: [1]).prompt_token_ids == (1, 7, 8)


def test_a_conversation_is_sent_with_its_system_prompt_and_tools(
    tmp_path: Path, folder: Path
) -> None:
    turns = [{"from": "human", "value": "where is it?"}, {"from": "gpt", "value": "on its way"}]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"system": "Be brief.", "tools": TOOLS, "conversations": turns}]))
    (row,) = open_rows(bench_request(source=path), folder, Silent())
    call = logged_call(row.request, row.output_tokens)
    assert [message["role"] for message in call.messages or ()] == ["system", "user"]
    assert call.extra["tools"] == TOOLS
