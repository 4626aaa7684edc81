"""When a model reasons before its answer, and where the answer begins."""

from __future__ import annotations

from typing import Any

import pytest

from whet.checkpoint.thinking import Thinking, find_thinking, thinking_off

SWITCH = (
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
DEFAULTED = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ thinking }}"
ALWAYS = "{{ content.split('</think>')[-1] }}"
FIELD = (
    "{% for m in messages %}{% set thinking = m.thinking %}{{ m['enable_thinking'] }}{% endfor %}"
)
TEXT = "Mind enable_thinking and your thinking.{{ 'thinking' }}"
CHANNELS = "<|start|>assistant<|channel|>final<|message|>{{ reasoning_effort }}"


@pytest.mark.parametrize(
    ("template", "variables", "off"),
    [
        (SWITCH, {}, {"enable_thinking": False}),
        ("{% generation %}" + SWITCH + "{% endgeneration %}", {}, {"enable_thinking": False}),
        (DEFAULTED, {}, {"thinking": False}),
        (SWITCH, {"enable_thinking": True}, {}),
        (SWITCH, {"reasoning_effort": "high"}, {}),
        (SWITCH, {"mood": "!"}, {"enable_thinking": False}),
        (FIELD, {}, {}),
        (TEXT, {}, {}),
        ("{% broken", {}, {}),
    ],
)
def test_thinking_is_turned_off_where_the_template_has_a_switch(
    template: str, variables: dict[str, Any], off: dict[str, Any]
) -> None:
    assert thinking_off(template, variables) == off


@pytest.mark.parametrize(
    ("template", "prompt", "variables", "opened"),
    [
        (SWITCH, "<assistant>\n", {"enable_thinking": True}, False),
        (SWITCH, "<assistant>\n<think>\n\n</think>\n\n", {"enable_thinking": False}, None),
        (SWITCH, "<assistant>\n", {"enable_thinking": False}, None),
        (ALWAYS, "<assistant>", {}, False),
        (ALWAYS, "<assistant><think>\n", {"enable_thinking": False}, True),
        (ALWAYS, "<assistant>", {"enable_thinking": False}, False),  # it has no such switch
        (CHANNELS, "<|start|>assistant", {}, False),
        (CHANNELS, "<|start|>assistant", {"reasoning_effort": "high"}, False),
        ("{{ content }}", "<assistant>", {"enable_thinking": True}, None),
        ("{{ content }}", "Is <think> a tag?<assistant>", {}, None),
        ("{{ x }}", "<seed:think>", {}, True),
        ("{{ x }}", "[THINK]", {}, True),
        ("{{ x }}", "<|channel>thought\n<channel|>", {}, None),
    ],
)
def test_the_prompt_s_end_decides_and_then_the_switch(
    template: str, prompt: str, variables: dict[str, Any], opened: bool | None
) -> None:
    thinking = find_thinking(template, prompt, variables)
    assert (None if thinking is None else thinking.opened) == opened


def of(template: str, prompt: str = "") -> Thinking:
    thinking = find_thinking(template, prompt, {})
    assert thinking is not None
    return thinking


@pytest.mark.parametrize(
    ("template", "prompt", "text", "answer"),
    [
        (ALWAYS, "", "<think>hm 41</think>\n\n42", "42"),
        (ALWAYS, "", "<think>hm", None),
        (ALWAYS, "", "42", "42"),
        (ALWAYS, "<think>", "hm 41</think>42", "42"),
        (ALWAYS, "<think>", "hm 41", None),
        (ALWAYS, "", "<think>a</think>b<think>c</think>d", "d"),
        (
            CHANNELS,
            "",
            "<|channel|>analysis<|message|>hm<|end|><|channel|>final<|message|>42",
            "42",
        ),
        (CHANNELS, "", "<|channel|>final <|constrain|>json<|message|>{}", "{}"),
        (CHANNELS, "", "<|channel|>analysis<|message|>hm", None),
        (CHANNELS, "", "<|channel|>commentary to=functions.f <|message|>{}", "{}"),
        ("[/THINK]", "", "[THINK]hm[/THINK]42", "42"),
    ],
)
def test_an_answer_is_what_follows_the_reasoning(
    template: str, prompt: str, text: str, answer: str | None
) -> None:
    assert of(template, prompt).answer(text) == answer


def test_marks_that_are_special_tokens_have_to_be_asked_for() -> None:
    for special, hidden in (("<|channel|>", True), ("</think>", False), ("<s>", False)):
        thinking = find_thinking(CHANNELS, "", {}, [special])
        assert thinking is not None
        assert thinking.special is hidden
    assert of(ALWAYS).special is False
    asked = find_thinking(ALWAYS, "", {}, ["</think>"])
    assert asked is not None
    assert asked.special
