"""Planted causes are found in their numbers, and each fix shown is one that pays when replayed."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.prompts.planted import planted_log, question, rules
from whet.checkpoint.encoder import load_encoder
from whet.core.errors import UsageError
from whet.demo import pair_paths
from whet.prompts.analyse import PromptLog, analyse, answer_ids
from whet.prompts.fixes import apply_fixes
from whet.prompts.options import PromptsOptions
from whet.prompts.records import PromptAnalysis
from whet.requests import LoggedRequest
from whet.requests.records import request_line

TARGET = pair_paths()[0]
TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|end|>"
    "{% endif %}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{{ message['content'] }}<|end|>{% endfor %}<|assistant|>"
)
BODY = "\n".join(rules(30))
START = datetime(2026, 11, 2, 9, 0, 0, tzinfo=UTC)
PLANTED = {"whitespace": 11, "date": 17, "id": 13, "name": 19, "order": 23}

Row = dict[str, Any]


def log_of(rows: Iterable[Row], folder: Path, **options: Any) -> PromptLog:
    log, template = folder / "log.jsonl", folder / "chat.jinja"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    template.write_text(TEMPLATE)
    return PromptLog(log, str(TARGET), PromptsOptions(chat_template=template, **options))


def analysed(rows: Iterable[Row], folder: Path, **options: Any) -> PromptAnalysis:
    return analyse(log_of(rows, folder, **options))[0]


def counts(analysis: PromptAnalysis) -> dict[str, int]:
    kinds: Counter[str] = Counter()
    for cause in analysis.causes:
        kinds[cause.kind] += cause.requests
    return dict(kinds)


def chat(index: int, system: str, user: str = "") -> Row:
    rng = random.Random(index)
    at = START + timedelta(seconds=index)
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": user or question(index, rng)},
    ]
    return {"timestamp": at.isoformat(), "model": "m", "messages": messages}


def at_time(index: int) -> str:
    return f"{START + timedelta(seconds=7 * index):%Y-%m-%d %H:%M:%S}"


NAMES = ("Ada", "Bob", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "Jana")


COLOURS = ("red", "blue", "green", "white", "black", "brown")


def documents(index: int) -> str:
    rng = random.Random(index)
    texts = [f"Document {word}.\n{' '.join(rules(6, word))}" for word in COLOURS]
    rng.shuffle(texts)
    return "\n\n".join(["Answer from the documents.", *texts, question(index, rng)])


@pytest.mark.parametrize("order", ["newest first", "by end"])
def test_the_order_of_the_file_changes_no_figure(tmp_path: Path, order: str) -> None:
    """Five chats of four turns, a turn a minute; a later turn is often the shorter one."""
    rows = []
    for turn in range(4):
        for number in range(5):
            row = chat(60 * turn + number, BODY, f"question {number}")
            said = [{"role": "user", "content": f"more {number} {at}"} for at in range(turn)]
            rows.append({**row, "messages": row["messages"] + said})
    expected = analysed(rows, tmp_path)
    moved = rows[::-1] if order == "newest first" else [*rows[5:8], *rows[:5], *rows[8:]]
    found = analysed(moved, tmp_path)
    assert found.hits == expected.hits
    assert (found.first_at_ns, found.last_at_ns) == (expected.first_at_ns, expected.last_at_ns)


def test_counts_that_the_text_contradicts_are_said_or_refused(tmp_path: Path) -> None:
    rows = [chat(at, BODY) | {"prompt_tokens": 100, "completion_tokens": 5} for at in range(9)]
    (doubt,) = analysed(rows, tmp_path).doubts
    assert doubt.startswith("the log says 100 tokens per prompt and its text has ")
    gone = [{**row, "messages": [{"role": "user", "content": "[gone]"}]} for row in rows]
    with pytest.raises(UsageError, match="says 900 tokens per prompt and its text has 6 bytes"):
        analysed([{**row, "prompt_tokens": 900} for row in gone], tmp_path)


CASES: dict[str, tuple[str, Callable[[int], Row]]] = {
    "date": ("date", lambda i: chat(i, f"It is {at_time(i)}.\n{BODY}")),
    "id": ("id", lambda i: chat(i, f"Session req_{i:05d}ab9.\n{BODY}")),
    "name": (
        "name",
        lambda i: chat(i, f"You help {NAMES[i % 10]} Smith{'abcdef'[i // 10]}.\n{BODY}"),
    ),
    "whitespace": ("whitespace", lambda i: chat(i, f"Be kind.{' ' * i}\n{BODY}")),
    "order": ("order", lambda i: chat(i, "Be kind.", documents(i))),
}


def test_five_causes_in_one_log_are_counted_exactly(tmp_path: Path) -> None:
    analysis = analysed(planted_log(PLANTED, clean=100), tmp_path)
    assert counts(analysis) == PLANTED


@pytest.mark.parametrize("what", CASES)
def test_a_fix_that_pays_is_shown_with_its_replayed_hits(what: str, tmp_path: Path) -> None:
    kind, row = CASES[what]
    rows = [row(i) for i in range(40)]
    log = log_of(rows, tmp_path)
    analysis, variables = analyse(log)
    assert set(counts(analysis)) == {kind}
    (fix,) = analysis.fixes
    assert fix.kinds == (kind,)
    assert fix.hits.rate > analysis.hits.rate + 0.2
    fixed = [request_line(apply_fixes(p.request, variables, fix.kinds)) for p in log.prompts()]
    again = analysed(fixed, tmp_path)
    # The figure is that of the fixed log analysed as any other.
    assert again.hits == fix.hits
    assert counts(again) == {}
    for one, two in zip(rows, fixed, strict=True):
        assert words(one) <= words(two)


def words(row: Row) -> Counter[str]:
    text = " ".join(message["content"] for message in row["messages"])
    return Counter("".join(c if c.isalnum() else " " for c in text).split())


def test_a_fix_that_loses_is_not_shown(tmp_path: Path) -> None:
    """One request in a hundred differs, and the fix moves the date in all of them."""
    rare = [chat(i, f"It is {at_time(i if i % 100 == 50 else 0)}. {'Be kind. ' * 12}\n{BODY[:400]}")
            for i in range(200)]  # fmt: skip
    log = log_of(rare, tmp_path, block_size=8)
    analysis, variables = analyse(log)
    assert counts(analysis) == {"date": 2}
    fixed = log.fixed(list(log.prompts()), variables, ("date",))
    # The fix makes every prompt longer.
    assert sum(len(prompt.ids) for prompt in fixed) > analysis.hits.prompt_tokens
    assert analysis.fixes == ()
    assert analysis.best == analysis.hits


def test_fixes_together_are_replayed_together(tmp_path: Path) -> None:
    rows = [chat(i, f"It is {at_time(i)}.\nSession req_{i:05d}ab9.\n{BODY}") for i in range(40)]
    dated = [chat(i, f"It is {at_time(i)}.\nSession req_00000ab9.\n{BODY}") for i in range(20)]
    numbered = [chat(i, f"It is {at_time(0)}.\nSession req_{i:05d}ab9.\n{BODY}") for i in range(20)]
    analysis = analysed([*dated, *numbered], tmp_path)
    assert {fix.kinds for fix in analysis.fixes} == {("date",), ("id",)}
    assert analysis.together is not None
    assert analysis.best.rate > max(fix.hits.rate for fix in analysis.fixes)
    # Where both differ in every request, neither fix alone helps.
    assert counts(analysed(rows, tmp_path)) == {"date": 39}


@pytest.mark.parametrize(
    "row",
    [
        lambda i: chat(i, BODY),
        lambda i: chat(i, f"You are desk {i}.", question(i, random.Random(i))),
        lambda i: chat(i, BODY, f"What of order {10_000 + i}, due {at_time(i)}?"),
        lambda i: {"model": "m", "prompt": question(i, random.Random(i))},
        lambda i: {"model": "m", "prompt": [i, *range(100)]},
    ],
)
def test_no_cause_is_found_where_nothing_is_lost(row: Callable[[int], Row], tmp_path: Path) -> None:
    analysis = analysed((row(i) for i in range(30)), tmp_path)
    assert (counts(analysis), analysis.fixes) == ({}, ())


def test_a_conversation_that_grows_has_no_cause(tmp_path: Path) -> None:
    rows: list[Row] = []
    for talk in range(5):
        messages = [{"role": "system", "content": BODY}]
        for turn in range(4):
            rng = random.Random(10 * talk + turn)
            messages = [*messages, {"role": "user", "content": question(turn, rng)}]
            rows.append({"model": "m", "messages": messages})
            messages = [*messages, {"role": "assistant", "content": question(turn, rng)}]
    assert counts(analysed(rows, tmp_path)) == {}


def test_a_template_change_has_a_time_and_no_fix(tmp_path: Path) -> None:
    after = BODY.replace("Rule order:", "Rule order now:", 1)
    rows = [chat(i, BODY if i < 20 else after) for i in range(40)]
    analysis = analysed(rows, tmp_path)
    (cause,) = analysis.causes
    assert (cause.kind, cause.where, cause.requests) == ("template", "system", 1)
    assert cause.since_ns == int((START + timedelta(seconds=20)).timestamp()) * 10**9
    assert analysis.fixes == ()
    # A text of the instructions that never comes again is not a template.
    varying = [chat(i, f"{rules(1, str(i))[0]}\n{BODY}") for i in range(10)]
    analysis = analysed(varying, tmp_path)
    assert counts(analysis) == {"other": 9}


def test_images_are_said_to_be_left_out_of_the_counts(tmp_path: Path) -> None:
    rows = [chat(i, BODY) for i in range(4)]
    image = {"type": "image_url", "image_url": {"url": "https://x"}}
    rows[1]["messages"].append({"role": "user", "content": [image]})
    assert analysed(rows, tmp_path).doubts == (
        "1 of 4 requests hold images or sound: their text alone is counted [media]",
    )


HEX = [f"{(7919 * (n + 1)) % 16**7:07x}" for n in range(40)]


@pytest.mark.parametrize(
    "head",
    [
        lambda i: f"x-header: v=1.7; cch={HEX[i][-5:]};",
        lambda i: f"commit {HEX[i]}",
        lambda i: f"build {HEX[i].upper()} of {HEX[-i - 1]}",
        lambda i: f"Request {i + 1} of today.",
        lambda i: f"You have {i % 7 + 1} unread messages and {i + 3} orders.",
        lambda i: f"x-id: 1.0.{HEX[i][-4:]}",
        lambda i: f"shard-{i}, attempt #{i % 3}",
        lambda i: f"[{i:03d}] desk",
    ],
)
@pytest.mark.parametrize("apps", [1, 3])
def test_short_values_that_change_are_ids_and_their_fix_pays(
    head: Callable[[int], str], apps: int, tmp_path: Path
) -> None:
    """Also where several applications take turns, so that the request before is another's."""
    rows = [chat(i, f"{head(i)}\nYou are desk {'ABC'[i % apps]}.\n{BODY}") for i in range(40)]
    log = log_of(rows, tmp_path)
    analysis, variables = analyse(log)
    named = counts(analysis)
    assert set(named) <= {"id", "template", "other"}
    assert named["id"] >= 0.9 * (40 - apps)
    (fix,) = analysis.fixes
    assert fix.kinds == ("id",)
    assert fix.hits.rate > analysis.hits.rate + 0.2
    fixed = [request_line(apply_fixes(p.request, variables, fix.kinds)) for p in log.prompts()]
    assert analysed(fixed, tmp_path).hits == fix.hits


def test_a_difference_without_a_name_is_shown_with_its_place(tmp_path: Path) -> None:
    moods = ("so calm", "in haste", "with some doubt", "at peace", "as ever, kind", "late")
    rows = [chat(i, f"Be brief.\nYou are {mood}\n{BODY}") for i, mood in enumerate(moods)]
    (cause,) = analysed(rows, tmp_path).causes
    assert (cause.kind, cause.where, cause.requests) == ("other", "system, line 2", 5)
    example = cause.examples[0]
    assert (example.place, example.other_place) == ("log.jsonl:2", "log.jsonl:1")
    assert "You are" in (example.before or "")
    asked = [chat(i, "Be brief.", f"Hi.\n\nI am {mood}\n{BODY}") for i, mood in enumerate(moods)]
    assert [cause.where for cause in analysed(asked, tmp_path).causes] == ["user, line 3"]


@pytest.mark.parametrize(
    "text", ["Server time 2025-11-27 08:{:02d}:01", "Call req_8f3k{:02d}", "Build {:02d}x7"]
)
def test_what_changes_in_a_tool_is_moved_too(tmp_path: Path, text: str) -> None:
    def rows(number: int) -> Row:
        parameters = {"type": "object", "properties": {"id": {"description": BODY}}}
        about = f"{text.format(number)}. Find an order. {BODY}"
        function = {"name": "find", "description": about, "parameters": parameters}
        return {**chat(number, "Be kind."), "tools": [{"type": "function", "function": function}]}

    analysis = analysed(map(rows, range(30)), tmp_path)
    assert {cause.where for cause in analysis.causes} == {"tools"}
    assert analysis.best.rate > analysis.hits.rate + 0.3


def test_tools_in_another_order(tmp_path: Path) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "description": BODY[:300]}}
        for name in "abcd"
    ]
    rows = [{**chat(i, "Be kind."), "tools": random.Random(i).sample(tools, 4)} for i in range(30)]
    analysis = analysed(rows, tmp_path)
    assert {(cause.kind, cause.where) for cause in analysis.causes} == {("order", "tools")}
    assert [fix.kinds for fix in analysis.fixes] == [("order",)]


def test_hits_are_those_of_the_tokens_one_after_another(tmp_path: Path) -> None:
    log = log_of(planted_log(PLANTED, clean=10), tmp_path)
    analysis, _ = analyse(log)
    ids = [prompt.ids for prompt in log.prompts()]
    seen: set[bytes] = set()
    hits = 0
    for each in ids:
        blocks = [each[:end].tobytes() for end in range(16, len(each) + 1, 16)]
        most = (len(each) - 1) // 16
        hits += 16 * next((i for i, b in enumerate(blocks[:most]) if b not in seen), most)
        seen.update(blocks)
    assert analysis.hits.hit_tokens == hits


def test_a_reasoning_answer_is_not_found_by_the_next_turn(tmp_path: Path) -> None:
    encoder = load_encoder(TARGET)
    plain = LoggedRequest(place="a:1", prompt="x", output="one two three", output_tokens=30)
    assert answer_ids(encoder, plain).tolist() == encoder.encode("one two three")[:-1].tolist()
    thinking = replace(plain, reasoning="Hm.")
    assert len(answer_ids(encoder, thinking)) == 29
    assert answer_ids(encoder, thinking).max() < 0
    assert not np.array_equal(
        answer_ids(encoder, thinking), answer_ids(encoder, replace(thinking, place="a:2"))
    )


def test_salts_are_caches_of_their_own(tmp_path: Path) -> None:
    rows = [{**chat(i, BODY), "cache_salt": str(i % 2)} for i in range(10)]
    both = analysed(rows, tmp_path)
    one = analysed(rows[::2], tmp_path)
    assert both.hits.hit_tokens == 2 * one.hits.hit_tokens > 0


def secret_rows() -> Iterator[Row]:
    body = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7" * 3
    for number, at in enumerate(range(6, 78, 3)):
        yield chat(number, f"Key sk-{body[:at]}{body[at:][::-1]}{number:02d}.\n{BODY}")


def test_examples_hold_no_piece_of_a_secret(tmp_path: Path) -> None:
    analysis = analysed(secret_rows(), tmp_path)
    keys = [row["messages"][0]["content"].split()[1] for row in secret_rows()]
    pieces = {key[at : at + 6] for key in keys for at in range(3, len(key) - 5)}
    assert [piece for piece in sorted(pieces) if piece in repr(analysis)] == []
