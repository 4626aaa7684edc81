"""Causes that were planted in known numbers are found in those numbers, and no others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.prefix.planted import planted_log
from tests.prefix.scenario_tables import FOUND, NOTHING
from tests.prefix.scenarios import (
    BODY,
    CODE,
    START,
    chat,
    code,
    conversations,
    edit,
    edited,
    last,
    time_of,
)
from whet.core.records import LoggedRequest, PromptAnalysis
from whet.prefix.analyse import PromptQuestion, analyse, mended_log
from whet.prefix.log import LogReader

TARGET = Path("src/whet/demo/pair/target")
TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|end|>"
    "{% endif %}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{{ message['content'] }}<|end|>{% endfor %}<|assistant|>"
)
MENDED = {"whitespace", "date", "id", "version", "name", "json", "order"}
SIX = {"whitespace": 11, "date": 17, "id": 13, "version": 7, "name": 19, "json": 15, "order": 23}


def ask_of(rows: Iterable[dict[str, Any]], folder: Path) -> PromptQuestion:
    log, template = folder / "log.jsonl", folder / "chat.jinja"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    template.write_text(TEMPLATE)
    return PromptQuestion(log=log, target=str(TARGET), chat_template=template)


def counts(found: PromptAnalysis) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for cause in found.causes:
        kinds[cause.kind] += cause.requests
    return dict(kinds)


def row_of(request: LoggedRequest) -> dict[str, Any]:
    told = (
        {"prompt": request.prompt}
        if request.messages is None
        else {"messages": [dict(each) for each in request.messages]}
    )
    tools = {"tools": [dict(each) for each in request.tools]} if request.tools else {}
    return {"model": "m", **told, **tools}


def text_of(request: LoggedRequest) -> str:
    return request.prompt or " ".join(str(m.get("content") or "") for m in request.messages or ())


def test_seven_causes_in_one_log(tmp_path: Path) -> None:
    found = analyse(ask_of(planted_log(SIX, clean=100), tmp_path))
    assert counts(found) == SIX


@pytest.mark.parametrize("what", FOUND)
def test_what_is_planted_is_found_mended_and_gone(what: str, tmp_path: Path) -> None:
    build, expected = FOUND[what]
    question = ask_of(build(), tmp_path)
    found = analyse(question)
    assert counts(found) == expected
    sent, mended = list(LogReader(question.log)), list(mended_log(question))
    for one, two in zip(sent, mended, strict=True):
        _keeps_everything(one, two)
    again = analyse(ask_of(map(row_of, mended), tmp_path))
    assert not MENDED & counts(again).keys()
    assert again.hits.hit_tokens == pytest.approx(found.repaired.hit_tokens, rel=0.01)
    assert found.repaired.hit_tokens >= found.hits.hit_tokens


def _keeps_everything(sent: LoggedRequest, mended: LoggedRequest) -> None:
    """Every word, every message and its role, every tool; what was moved stands at the end."""
    lost = _words(text_of(sent)) - _words(text_of(mended))
    assert not lost
    assert [m.get("role") for m in sent.messages or ()] == [
        m.get("role") for m in mended.messages or ()
    ]
    assert sorted(json.dumps(t, sort_keys=True) for t in sent.tools) == sorted(
        json.dumps(t, sort_keys=True) for t in mended.tools
    )


def _words(text: str) -> Counter[str]:
    return Counter("".join(c if c.isalnum() else " " for c in text).split())


@pytest.mark.parametrize("what", NOTHING)
def test_nothing_is_found_where_nothing_is_planted(what: str, tmp_path: Path) -> None:
    question = ask_of(NOTHING[what](), tmp_path)
    found = analyse(question)
    assert counts(found) == {}
    assert found.proposals == ()
    assert found.repaired == found.hits
    assert list(mended_log(question)) == list(LogReader(question.log))


def test_a_change_is_told_as_of_when(tmp_path: Path) -> None:
    (cause,) = analyse(ask_of(edited(BODY, edit(3, "x")), tmp_path)).causes
    assert cause.since_ns == int(time_of(30).timestamp()) * 10**9
    assert cause.where == "the system message"
    # Of several edits the last is the one that is in force.
    (cause,) = analyse(ask_of(edited(BODY, edit(3, "x"), edit(3, "y")), tmp_path)).causes
    assert (cause.requests, cause.since_ns) == (2, int(time_of(60).timestamp()) * 10**9)
    assert int(START.timestamp()) == 1793610000


def test_a_time_hides_what_was_cut_until_it_is_mended(tmp_path: Path) -> None:
    rows = conversations(8, 8, last(9), start="It is {time}.\n{}")
    question = ask_of(rows, tmp_path)
    mended = [row_of(each) for each in mended_log(question)]
    # Turns 6 to 8 of eight conversations have more than nine messages.
    assert counts(analyse(ask_of(mended, tmp_path))) == {"truncation": 8 * 3}


def test_code_keeps_its_white_space(tmp_path: Path) -> None:
    for each in mended_log(ask_of(code(same=True), tmp_path)):
        assert each.messages is not None
        assert CODE in each.messages[-1]["content"]


def test_pictures_and_calls_stay_as_they_are(tmp_path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    rows = [
        chat(
            i,
            f"It is {time_of(i):%H:%M:%S}.\n{BODY}",
            {"role": "user", "content": [{"type": "text", "text": f"a {i}"}, picture]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "done", "tool_call_id": "c1"},
            {"role": "user", "content": [picture, {"type": "text", "text": f"b {i}"}]},
        )
        for i in range(20)
    ]
    question = ask_of(rows, tmp_path)
    sent, mended = list(LogReader(question.log)), list(mended_log(question))
    for one, two in zip(sent, mended, strict=True):
        assert one.messages is not None
        assert two.messages is not None
        assert two.messages[0]["content"].startswith("It is [date 1].\n")
        assert list(two.messages[1:4]) == list(one.messages[1:4])
        *kept, told = two.messages[4]["content"]
        assert kept == one.messages[4]["content"]
        assert told["text"].startswith("\n[date 1]: ")
