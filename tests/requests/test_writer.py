"""What is written is what is read again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from whet.requests import LoggedRequest, LogReader
from whet.requests.records import request_line

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
CHAT = (
    {"role": "system", "content": "Be short.\u2028Caf\u00e9"},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "none"},
)  # fmt: skip
REQUESTS = {
    "bare": LoggedRequest(place="", prompt="Once upon"),
    "ids": LoggedRequest(place="", prompt_token_ids=(1, 2, 3), output_tokens=5),
    "chat": LoggedRequest(
        place="", messages=CHAT, tools=(TOOL,), model="m", session="s-1", cache_salt="x",
        at_ns=1_793_610_000_123_456_789, output="Hello.", output_tokens=3,
    ),
    "thinking": LoggedRequest(
        place="", messages=CHAT, chat_template_kwargs={"enable_thinking": True}, reasoning="Hm.",
        output="Yes.",
    ),
    "completion": LoggedRequest(place="", prompt="Once", at_ns=1, output="upon", model="m"),
    "length alone": LoggedRequest(place="", prompt="Once", at_ns=0, output_tokens=0),
    "sampled": LoggedRequest(
        place="", messages=CHAT, sampling={"temperature": 0.7, "seed": 3}, max_tokens=64,
        output_tokens=9,
    ),
    "whole second": LoggedRequest(place="", prompt="Once", at_ns=1_793_610_000 * 10**9),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_read_again_as_it_was_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    line = json.dumps(request_line(REQUESTS[name]), ensure_ascii=False)
    path.write_text(line + "\n", encoding="utf-8")
    (read,) = LogReader(path)
    limit = REQUESTS[name].max_tokens or REQUESTS[name].output_tokens  # a server needs one
    assert replace(read, place="") == replace(REQUESTS[name], max_tokens=limit)


def test_a_line_is_a_body_that_a_server_takes() -> None:
    line = request_line(REQUESTS["chat"])
    assert line["timestamp"] == "2026-11-02T09:00:00.123456789Z"
    assert (line["max_tokens"], line["model"], line["tools"]) == (3, "m", [TOOL])
    assert line["messages"] == list(CHAT)
