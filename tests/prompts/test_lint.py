"""What the prompt linter finds, where, and what it says that it costs."""

from __future__ import annotations

from typing import Any

import pytest

from whet.prompts.lint import Finding, guess_kind, lint_prompt
from whet.prompts.options import LintOptions
from whet.prompts.prompt_file import read_prompt

STABLE = "You answer questions about orders. " * 16  # 560 characters, no rule's business


def lint(raw: str, path: str = "a.jinja", **change: object) -> list[Finding]:
    options = LintOptions(**change)  # type: ignore[arg-type]
    return lint_prompt(read_prompt(raw, path), options)


def rules(raw: str, path: str = "a.jinja", **change: Any) -> list[str]:
    return [each.rule for each in lint(raw, path, **change)]


def test_a_slot_before_stable_text_and_its_cost() -> None:
    # 12 characters stand before the slot and 574 in all: 3 and 143 tokens of four characters,
    # so 0 and 8 full blocks of 16.
    (found,) = lint(f"Line one\nOn {{{{ now }}}} {STABLE}x")
    assert (found.rule, found.level, found.line, found.column) == ("WHET001", "error", 2, 4)
    assert found.lost_tokens == 128
    assert "128 tokens (8 blocks) differ with its value" in found.message


def test_the_cost_follows_the_block_size() -> None:
    text = f"{{{{ user_id }}}}{STABLE}."
    assert lint(text, block_size=100)[0].lost_tokens == 100  # 561 // 4 = 140


def test_a_slot_behind_the_stable_text_is_fine() -> None:
    assert rules(f"{STABLE.rstrip()}\nToday is {{{{ now }}}}. Be kind.") == []


@pytest.mark.parametrize(
    ("slot", "path", "rule"),
    [
        ("{{ now() }}", "a.jinja", "WHET001"),
        ("{{ strftime_now('%d %b') }}", "a.j2", "WHET001"),
        ("{{- request_id -}}", "a.jinja", "WHET002"),
        ("{{ build_version }}", "a.jinja", "WHET003"),
        ("{{ user['first_name'] | title }}", "a.jinja", "WHET004"),
        ("{{ documents[0] }}", "a.jinja", "WHET005"),
        ("{% if tools %}", "a.jinja", "WHET006"),
        ("{date}", "a.txt", "WHET001"),
        ("{now:%d %B %Y}", "a.txt", "WHET001"),
        ("${session.id}", "a.md", "WHET002"),
        ("<<customer name>>", "a.prompt", "WHET004"),
        ("Session id: %s", "a.txt", "WHET002"),
        ("%(username)s", "a.txt", "WHET004"),
        ("{{#each docs}}", "a.prompt", "WHET006"),
        ("{0}", "a.txt", "WHET005"),
    ],
)
def test_the_kinds_of_slots(slot: str, path: str, rule: str) -> None:
    assert rules(f"{slot} {STABLE}.", path) == [rule]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{{ bos_token }}{{ 'a word' }}{# {{ now }} #}{% set x = 1 %}", "a.jinja"),
        ("{% raw %}{{ now }}{% endraw %}", "a.jinja"),
        ("{date} ${id} %s", "a.jinja"),
        ('Answer as {"total": 1} or {{"total": 1}}.', "a.txt"),
        (r"\frac{a}{b} x_{i} \d{4} <<SYS>> <</SYS>> 100%", "a.md"),
        ("{{ never closed", "a.jinja"),
    ],
)
def test_what_is_no_slot(text: str, path: str) -> None:
    assert rules(f"{text} {STABLE}.", path) == []


def test_names_say_kinds() -> None:
    names = ["createdAt", "userID", "user_query", "candidate", "customer.email | lower", "X"]
    assert [guess_kind(name) for name in names] == ["date", "id", "text", "text", "name", "text"]


@pytest.mark.parametrize(
    ("text", "rule", "level"),
    [
        ("As of 2024-05-01 do this:", "WHET011", "warning"),
        ("Run 123e4567-e89b-12d3-a456-426614174000:", "WHET012", "warning"),
        ("Desk v1.2.3:", "WHET013", "warning"),
        ("Write to a.b@example.com:", "WHET014", "warning"),
        ("Use at most 10000 words:", "WHET012", "note"),
        ("Closed on Sunday, but:", "WHET011", "note"),
    ],
)
def test_what_is_written_into_stable_text(text: str, rule: str, level: str) -> None:
    (found,) = lint(f"{text} {STABLE}.")
    assert (found.rule, found.level) == (rule, level)
    assert rules(f"{STABLE}. {text} ok") == []  # nothing much behind it


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        ("{now} <!-- whet: ignore WHET001 -->\n{id}", ["WHET002"]),
        ("<!-- whet: ignore[WHET001] -->\n{now}\n{date}", ["WHET001"]),
        ("# whet: ignore\n{now} {id}\n{date}", ["WHET001"]),
        ("{now} # whet: ignore WHET002", ["WHET001"]),
        ("# whet: ignore-file WHET001, WHET003\n{now} {id}\n{date}", ["WHET002"]),
    ],
)
def test_comments_that_silence(raw: str, left: list[str]) -> None:
    assert rules(f"{raw}\n{STABLE}", "a.md") == left
    assert rules(f"{{now}} {STABLE}", "a.md", ignore=("WHET001",)) == []


def test_a_byte_order_mark_moves_no_place() -> None:
    (finding,) = lint(f"\ufeffOn {{{{ now }}}} {STABLE}")
    assert (finding.rule, finding.line, finding.column) == ("WHET001", 1, 5)


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-a1b2c3d4e5",
        "AKIAIOSFODNN7EXAMPLE",
        "Bearer a1b2c3d4e5f6",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIBOgIB\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_is_told_and_never_shown(secret: str) -> None:
    raw = f"Key: {secret} \u00a0of 2024-05-01 {STABLE}."
    found = lint(raw)
    assert [f.rule for f in found if f.level == "error"] == ["WHET041"]
    assert "MIIBOgIB" not in repr(found)
    assert secret[-10:] not in repr(found)


def test_words_are_no_secrets() -> None:
    assert (
        rules("Bearer authentication, sk-learn, a task-list-of-things-to-do-by-then", "a.md") == []
    )


def test_a_secret_of_the_environment_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "hunter2hunter2")
    (finding,) = lint(f"say hunter2hunter2 {{{{ now }}}} {STABLE}")
    assert "hunter2" not in repr(finding)


def test_excerpts_are_short_and_can_be_left_out() -> None:
    raw = f"{{{{ {'very_long_' * 30}date }}}} {STABLE}."
    assert len(lint(raw)[0].excerpt or "") == 60
    assert lint(raw, redact=True)[0].excerpt is None
    assert "very_long" not in repr(lint(raw, redact=True))
