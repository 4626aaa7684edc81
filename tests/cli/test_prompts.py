"""``whet prompts`` at a terminal: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stage import Whet
from tests.prompts.planted import planted_log
from whet.core.errors import CheckpointError, UsageError
from whet.demo import pair_paths
from whet.requests.trace import read_trace

USAGE = UsageError.exit_code
MODEL = ("--model", pair_paths()[0])
COUNTS = {"date": 4, "whitespace": 3, "name": 5}
SECRET = "sk-abcdefghijklmnopqrstuvwxyz012345"


def lines(path: str, rows: Iterable[object]) -> Path:
    text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    Path(path).write_text(text, encoding="utf-8")
    return Path(path)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.fixture
def log(whet: Whet) -> Path:
    """A log with three planted causes."""
    planted = planted_log(COUNTS, clean=20, tools=False)
    return lines("log.jsonl", [{"max_tokens": 8, "timestamp": 1e9, **row} for row in planted])


def test_the_report_and_the_files_are_written(whet: Whet, log: Path) -> None:
    files = ("--fixed-log", "fixed.jsonl", "--workload", "w.jsonl")
    said = whet("prompts", log, *MODEL, *files)
    assert said.code == 0, said.err
    for words in ("date or time", "white space", "user name", "Report: "):
        assert words in said.out
    analysis = json.loads(Path("prompts/prompts.json").read_text())
    assert {each["kind"]: each["requests"] for each in analysis["causes"]} == COUNTS
    assert analysis["fixes"]
    assert {path.name for path in Path("prompts").iterdir()} == {"prompts.html", "prompts.json"}
    rows, earlier, hits = read_trace(Path("w.jsonl")).rows, set[int](), 0
    for row in rows:
        hits += 16 * len(earlier.intersection(row.hash_ids))
        earlier.update(row.hash_ids)
    assert (len(rows), hits) == (32, analysis["hits"]["hit_tokens"])
    assert "Alice" not in Path("w.jsonl").read_text()

    again = whet("prompts", "fixed.jsonl", *MODEL, "-o", "again")
    assert again.code == 0, again.err
    best = (analysis["together"] or analysis["fixes"][0])["hits"]
    assert json.loads(Path("again/prompts.json").read_text())["hits"] == best


def test_redacted_output_holds_no_text(whet: Whet, log: Path) -> None:
    said = whet("prompts", log, *MODEL, "--redact")
    assert said.code == 0
    written = "".join(path.read_text() for path in Path("prompts").iterdir())
    for word in ("Alice", "warranty", "customer of ours", "kettle"):
        assert word not in said.out + written


def test_secrets_are_never_shown(whet: Whet) -> None:
    rules = "Answer politely and never promise a date. " * 12
    log = lines(
        "log.jsonl",
        [chat(f"Key {SECRET}{i % 4} at 10:00:{i:02d}.\n{rules}\nWhat is {i}?") for i in range(24)],
    )
    said = whet("prompts", log, *MODEL)
    assert said.code == 0, said.err
    written = "".join(path.read_text() for path in Path("prompts").iterdir())
    assert SECRET[:16] not in said.out + written


def test_no_piece_of_a_secret_is_shown_wherever_prompts_part_in_it(whet: Whet) -> None:
    rules = "Answer politely and never promise a date. " * 12
    body = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7" * 3
    keys = [
        f"sk-{body[:at]}{body[at:][::-1]}{number:02d}" for number, at in enumerate(range(6, 78, 3))
    ]
    log = lines("log.jsonl", [chat(f"Key {key}.\n{rules}\nWhat now?") for key in keys * 2])
    said = whet("prompts", log, *MODEL)
    assert said.code == 0, said.err
    written = said.out + "".join(path.read_text() for path in Path("prompts").iterdir())
    pieces = {key[at : at + 6] for key in keys for at in range(3, len(key) - 5)}
    assert [piece for piece in sorted(pieces) if piece in written] == []


def test_torn_lines_and_long_ones_are_counted_with_their_place(whet: Whet) -> None:
    rows = [chat(f"question {number}") for number in range(300)]
    log = lines("log.jsonl", [chat("one"), '{"messages": [{"role"\n', *rows, "\n"])
    with log.open("a") as file:
        file.write(json.dumps(chat("x" * (33 << 20))) + "\n")
    said = whet("prompts", log, *MODEL)
    assert said.code == 0, said.err
    assert "log.jsonl:2" in said.out
    assert "log.jsonl:304" in said.out
    assert "longer than 32 MiB" in said.out


def test_a_picture_is_a_mark(whet: Whet) -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    log = lines("log.jsonl", [{"messages": [{"role": "user", "content": parts}]}] * 3)
    said = whet("prompts", log, *MODEL)
    assert said.code == 0, said.err
    assert "AAAA" not in Path("prompts/prompts.html").read_text()


@pytest.mark.parametrize(
    ("rows", "words", "code", "told"),
    [
        ([chat("a", model="x"), chat("b", model="y")], (), USAGE, "--served-model x"),
        ([chat("a", model="big")], ("--served-model", "bog"), USAGE, "'big'"),
        ([{"no": "request"}], (), USAGE, "no request"),
        ([], (), USAGE, "is empty"),
        ([chat("a")], ("--fixed-log", "log.jsonl"), USAGE, "give another file"),
        ([chat("a")], ("--chat-template", "missing.jinja"), USAGE, "missing.jinja"),
        ([chat("a")], ("--model", "nowhere"), CheckpointError.exit_code, "nowhere"),
    ],
)
def test_what_is_refused(
    whet: Whet, rows: list[object], words: tuple[str, ...], code: int, told: str
) -> None:
    said = whet("prompts", lines("log.jsonl", rows), *MODEL, *words)
    assert told in said.sentence(code)


def test_a_template_that_refuses_leaves_its_requests_out(whet: Whet) -> None:
    Path("strict.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{{ m.content }}{% endfor %}"
    )
    told = {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}
    log = lines("log.jsonl", [chat("fine"), told])
    said = whet("prompts", log, *MODEL, "--chat-template", "strict.jinja")
    assert said.code == 0, said.err
    assert "log.jsonl:2" in said.out
    none = whet("prompts", lines("only.jsonl", [told]), *MODEL, "--chat-template", "strict.jinja")
    assert "no system); give the template that the server uses" in none.sentence(USAGE)
