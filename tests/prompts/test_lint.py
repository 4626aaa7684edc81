"""What the prompt linter finds, where, and what it says that it costs."""

from __future__ import annotations

import json

import pytest

from whet.core.errors import UsageError
from whet.prompts.lint import LintOptions, fix_white_space, guess_kind, lint_file
from whet.prompts.prompt_file import read_prompts
from whet.prompts.rules import Finding

STABLE = "You answer questions about orders. " * 16  # 560 characters, no rule's business


def lint(raw: str, path: str = "a.jinja", **change: object) -> list[Finding]:
    return lint_file(raw, read_prompts(raw, path), LintOptions(**change))  # type: ignore[arg-type]


def rules(raw: str, path: str = "a.jinja", **change: object) -> list[str]:
    return [each.rule for each in lint(raw, path, **change)]


def golden(content: str, **more: object) -> str:
    messages = [{"role": "system", "content": content}, {"role": "user", "content": "2024-05-01"}]
    return json.dumps({"messages": messages, **more})


def test_a_slot_before_stable_text_and_its_cost() -> None:
    # 12 characters stand before the slot and 574 in all: 3 and 143 tokens of four characters,
    # so 0 and 8 full blocks of 16.
    (found,) = lint(f"Line one\nOn {{{{ now }}}} {STABLE}x")
    assert (found.rule, found.level, found.line, found.column) == ("WHET001", "error", 2, 4)
    assert found.lost_tokens == 128
    assert "128 tokens (8 blocks) differ with its value" in found.message


def test_the_cost_follows_block_size_and_tokenizer() -> None:
    text = f"{{{{ user_id }}}}{STABLE}."
    assert lint(text, block_size=100)[0].lost_tokens == 100  # 561 // 4 = 140
    # A token ends at each blank and at the last full stop: five words a sentence, and one.
    words = [i + 1 for i, c in enumerate(STABLE) if c == " "] + [len(STABLE) + 1]
    (found,) = lint(text, tokenize=lambda _text: words)
    assert len(words) == 81
    assert found.lost_tokens == 80


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


def test_white_space_and_its_places() -> None:
    raw = "\ufeffa \n\n\n\nb\u00a0c\r\n\t d\ne\u200bf"
    assert [(f.rule, f.line, f.column) for f in lint(raw)] == [
        ("WHET026", 1, 1),
        ("WHET021", 1, 3),
        ("WHET023", 1, 4),
        ("WHET025", 5, 2),
        ("WHET024", 5, 4),
        ("WHET022", 6, 1),
        ("WHET025", 7, 2),
    ]
    assert fix_white_space(raw) == "a\n\nb c\n\t d\nef"
    assert rules(fix_white_space(raw)) == ["WHET022"]


def test_joiners_of_scripts_and_emoji_are_text() -> None:
    assert rules("\u0928\u200d\u092e \U0001f469\u200d\U0001f4bb") == []


def test_fix_leaves_what_is_silenced() -> None:
    raw = "a \n{# whet: ignore[WHET021] #}\r\n"
    assert fix_white_space(raw) == "a \n{# whet: ignore[WHET021] #}\n"
    assert fix_white_space("a \n", ["WHET021"]) == "a \n"


def test_many_findings_of_a_rule_are_counted_by_the_last() -> None:
    found = lint("a \n" * 25)
    assert len(found) == 20
    assert found[-1].message.endswith("(and 5 more in this file)")


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        ("a {# whet: ignore WHET021 #} \nb ", ["WHET021"]),
        ("<!-- whet: ignore[WHET021] -->\na \nb ", ["WHET021"]),
        ("# whet: ignore\na \nb ", ["WHET021"]),
        ("a # whet: ignore WHET025 \n", ["WHET021"]),
        ("# whet: ignore-file WHET021, WHET026\na \nb ", []),
    ],
)
def test_comments_that_silence(raw: str, left: list[str]) -> None:
    assert rules(raw, "a.md") == left


def test_golden_requests_map_back_to_the_file() -> None:
    raw = golden('say "so" \n\U0001f600 2024-05-01 ' + STABLE + ".")
    found = lint(raw, "a.json")
    # The request's own keys are not sent, the user's last message (a date, too) does not stay.
    assert [each.rule for each in found] == ["WHET021", "WHET011"]
    lead = raw.index("2024-05-01")
    # Columns in a JSON string do not count its escapes: three of them before the date here, and a
    # pair of surrogates for the emoji.
    assert found[1].line == 1
    assert lead + 1 - 16 <= found[1].column <= lead + 1


def test_each_request_of_a_file_is_linted() -> None:
    raw = golden("fine") + "\n\n" + golden("a \nb") + "\n"
    (found,) = lint(raw, "a.jsonl")
    assert (found.rule, found.line) == ("WHET021", 3)
    batch = json.dumps({"custom_id": "1", "body": json.loads(golden("a \nb"))})
    assert rules(batch, "b.jsonl") == ["WHET021"]
    parts = [{"type": "image_url"}, {"type": "text", "text": "a \nb"}]
    listed = json.dumps([{"messages": [{"role": "system", "content": parts}]}])
    assert rules(listed, "c.json") == ["WHET021"]


def test_tools_and_json_keys_out_of_order() -> None:
    tools = [{"function": {"name": name}, "type": "function"} for name in "ba"]
    assert rules(golden("x", tools=tools), "a.json") == ["WHET032"]
    tools = [{"type": "function", "function": {"name": "a"}}]
    assert rules(golden("x", tools=tools), "a.json") == ["WHET031"]
    assert rules('Such as {"b": 1, "a": [1, 2]} here', "a.txt") == ["WHET031"]
    assert rules('Such as {"a": 1, "b": [1, 2]} here', "a.txt") == []


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
    assert secret[-10:] not in repr(found) + repr(lint(golden(f"\n{secret} \nx"), "a.json"))
    assert "WHET041" in rules(golden(f"\n{secret}"), "a.json")


def test_words_are_no_secrets() -> None:
    assert (
        rules("Bearer authentication, sk-learn, a task-list-of-things-to-do-by-then", "a.md") == []
    )


def test_a_secret_of_the_environment_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "hunter2hunter2")
    assert "hunter2" not in repr(lint("say hunter2hunter2 \nx"))


def test_excerpts_are_short_and_can_be_left_out() -> None:
    raw = f"{{{{ {'very_long_' * 30}date }}}} {STABLE}."
    assert len(lint(raw)[0].excerpt or "") == 60
    assert lint(raw, redact=True)[0].excerpt is None
    assert "very_long" not in repr(lint(raw, redact=True))


@pytest.mark.parametrize(
    ("raw", "path", "told"),
    [
        ('{"messages": []}\n{"mess', "a.jsonl", "a.jsonl:2 is not valid JSON"),
        ("[" * 100_000, "a.json", "nests JSON too deeply"),
        ('{"prompt": 1}', "a.json", '"messages" has to be a list'),
        ("[]", "a.json", "holds no chat request"),
    ],
)
def test_golden_files_that_are_none(raw: str, path: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_prompts(raw, path)
