"""Messages as vLLM hands them to a chat template, and templates that refuse them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from whet.checkpoint.chat import ChatTemplate, TemplateProblem
from whet.core.errors import UsageError
from whet.requests import LoggedRequest

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
WALKS = (
    "{%- for m in messages %}<{{ m['role'] }}>{%- for part in m['content'] %}"
    "{{ part.text if part.type == \"text\" else '[' + part.type + ']' }};{%- endfor %}{% endfor %}"
)
DUMPS = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
TOOLS = "{{ tools | tojson if tools else 'none' }}"
TOOL = {"type": "function", "function": {"name": "find", "description": "d", "parameters": {}}}
USER = {"role": "user", "content": "Hi"}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>")


def rendered(template: str, *messages: dict[str, Any], **fields: Any) -> str:
    request = LoggedRequest(place="", messages=messages, **fields)
    return ChatTemplate(tokenizer(), template).render(request)


def test_a_template_gets_messages_its_tokens_and_the_beginning_of_the_answer() -> None:
    template = "{{ bos_token }}" + PLAIN + "{% if add_generation_prompt %}<answer>{% endif %}"
    assert rendered(template, USER) == "<s><user>Hi<answer>"


@pytest.mark.parametrize(
    ("content", "plain", "walked"),
    [
        ("a\nb", "a\nb", "a\nb;"),
        (None, "", ""),
        ([], "", ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb", "a;b;"),
        (["a", {"text": "b"}], "a\nb", "a;b;"),
        ([{"type": "text", "text": ""}, {"type": "refusal", "refusal": "No."}], "No.", ";No.;"),
    ],
)
def test_parts_are_joined_for_a_template_that_knows_text_only(
    content: Any, plain: str, walked: str
) -> None:
    message = {"role": "user", "content": content}
    assert rendered(PLAIN, message) == f"<user>{plain}"
    assert rendered(WALKS, message) == f"<user>{walked}"


@pytest.mark.parametrize(
    ("loop", "walks"),
    [
        ("{% for c in message['content'] %}", True),
        ('{%- for c in message["content"] %}', True),
        ("{%- for item in content -%}", True),
        ("{% for c in message.content | selectattr('type', 'equalto', 'text') %}", True),
        ("{% for c in messages[0]['content'] %}", True),
        ("{% for c in message.content_parts %}", False),
        ("{% for t in message.tool_calls %}{{ t['type'] }}", False),
        ("{% for c in contents %}", False),
    ],
)
def test_it_is_seen_whether_a_template_walks_over_parts(loop: str, walks: bool) -> None:
    template = f"{{% for message in messages %}}{loop}{{% endfor %}}{{% endfor %}}"
    assert ChatTemplate(tokenizer(), template)._walks == walks


def test_media_stay_for_a_template_that_walks() -> None:
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}
    assert rendered(WALKS, message) == "<user>[image];?;"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"b": 1, "a": "\u00e9"}', '{"b": 1, "a": "\u00e9"}'),
        ({"b": 1}, '{"b": 1}'),
        ("", "{}"),
        (None, "{}"),
        ("{torn", "{}"),
        ("[1]", "{}"),
        ("null", "{}"),
    ],
)
def test_arguments_of_calls_are_objects(arguments: Any, expected: str) -> None:
    template = "{{ messages[1].tool_calls[0].function.arguments | tojson }}"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert rendered(template, USER, answer) == expected
    assert call["function"]["arguments"] == arguments  # the log is not written to


@pytest.mark.parametrize("calls", [None, []])
def test_no_calls_are_as_if_they_were_not_there(calls: Any) -> None:
    answer = {"role": "assistant", "content": "x", "tool_calls": calls, "refusal": None}
    assert rendered(DUMPS, answer) == '{"role": "assistant", "content": "x"}'


def test_fields_that_a_server_hands_on() -> None:
    answer = {"role": "assistant", "content": "x", "name": "a", "reasoning": "r", "audio": None}
    assert rendered(DUMPS, answer) == (
        '{"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r", '
        '"name": "a"}'
    )
    result = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "y"}]}
    assert rendered(DUMPS, result) == '{"role": "tool", "content": "y", "tool_call_id": "1"}'


def test_tools_have_their_fields_in_a_server_s_order() -> None:
    told = {"function": {"parameters": {"b": 1, "a": 2}, "name": "f", "extra": 1}, "cache": {}}
    assert rendered(TOOLS, USER, tools=(told,)) == (
        '[{"type": "function", "function": {"name": "f", "description": null, '
        '"parameters": {"b": 1, "a": 2}}}]'
    )
    strict = {"type": "function", "function": {"strict": True, "name": "f", "description": "d"}}
    assert rendered(TOOLS, USER, tools=(strict,)) == (
        '[{"type": "function", "function": {"name": "f", "description": "d", '
        '"parameters": null, "strict": true}}]'
    )
    assert rendered(TOOLS, USER, tools=({"name": "flat"},)) == '[{"name": "flat"}]'
    assert rendered(TOOLS, USER) == "none"


def test_a_request_s_own_variables_reach_the_template() -> None:
    template = PLAIN + "{% if enable_thinking is defined and not enable_thinking %}<no>{% endif %}"
    assert rendered(template, USER, chat_template_kwargs={"enable_thinking": False}) == (
        "<user>Hi<no>"
    )
    assert rendered(template, USER) == "<user>Hi"
    # They cannot replace the messages.
    assert rendered(PLAIN, USER, chat_template_kwargs={"messages": []}) == "<user>Hi"


def test_a_refusal_is_told_in_the_template_s_words_and_never_in_the_prompt_s() -> None:
    fixed = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TemplateProblem, match=r"its messages \(roles must alternate\)$"):
        rendered(fixed, USER)
    quoting = "{{ raise_exception('not so: ' + messages[0].content) }}"
    with pytest.raises(TemplateProblem) as told:
        rendered(quoting, {"role": "user", "content": "a secret"})
    assert str(told.value) == "the chat template does not take its messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].nothing.at_all }}",
        "{{ messages[0].content.index('z') }}",
    ],
)
def test_a_fault_while_rendering_is_a_refusal(template: str) -> None:
    if template == "{{ messages[7].content }}":
        template = "{{ messages[7].content.x }}"
    with pytest.raises(TemplateProblem, match="does not take its messages"):
        rendered(template, USER)


def test_a_template_that_cannot_be_parsed_is_told_at_once() -> None:
    with pytest.raises(UsageError, match=r"line 2: .*--chat-template"):
        ChatTemplate(tokenizer(), "ok\n{% for m in %}")


def test_a_tokenizer_without_a_template_needs_one() -> None:
    template = ChatTemplate(tokenizer())
    with pytest.raises(UsageError, match="--chat-template FILE"):
        template.render(LoggedRequest(place="", messages=(USER,)))


def test_of_several_templates_the_one_for_tools_is_taken() -> None:
    two = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    two.chat_template = {"default": PLAIN, "tool_use": TOOLS}
    template = ChatTemplate(two)
    assert template.render(LoggedRequest(place="", messages=(USER,))) == "<user>Hi"
    told = template.render(LoggedRequest(place="", messages=(USER,), tools=(TOOL,)))
    assert told.startswith('[{"type"')


def test_developer_messages_are_system_messages_where_a_template_knows_none() -> None:
    developer = {"role": "developer", "content": "Be short."}
    assert rendered(PLAIN, developer, USER) == "<system>Be short.<user>Hi"
    assert rendered(PLAIN, USER, developer) == "<system>Be short.<user>Hi"
    system = {"role": "system", "content": "Be kind."}
    assert rendered(PLAIN, system, USER, developer) == "<system>Be kind.\n\nBe short.<user>Hi"
    assert rendered(PLAIN, USER, system) == "<user>Hi<system>Be kind."
    knows = PLAIN + "{% if false %}{{ 'developer' }}{% endif %}"
    assert rendered(knows, developer, USER) == "<developer>Be short.<user>Hi"


def test_a_template_s_date_is_that_of_the_request() -> None:
    template = "{{ strftime_now('%d %b %Y') }}"
    at_ns = 1_793_610_000 * 10**9  # 2026-11-02 09:00:00 UTC
    assert rendered(template, USER, at_ns=at_ns) == "02 Nov 2026"
    assert len(rendered(template, USER)) == len("02 Nov 2026")


REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
SYSTEM = {"role": "system", "content": "Be brief."}


def chat(template: str, *messages: dict[str, Any], **more: Any) -> str:
    return ChatTemplate(tokenizer(), template).chat(messages, **more)


def test_a_system_turn_is_folded_into_the_first_one_where_it_is_refused() -> None:
    assert chat(REFUSES + PLAIN, SYSTEM, USER) == "<user>Be brief.\n\nHi"
    assert chat(PLAIN, SYSTEM, USER) == "<system>Be brief.<user>Hi"
    taken = ChatTemplate(tokenizer(), REFUSES + PLAIN).folded([SYSTEM, USER])[1]
    assert taken == [{"role": "user", "content": "Be brief.\n\nHi"}]
    with pytest.raises(TemplateProblem, match=r"\(no system role\)$"):
        chat(REFUSES + PLAIN, SYSTEM)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ functions }}{{ functions.x }}", r"\('functions' is undefined\)"),
        ("{% for t in tools %}{% endfor %}", r"\(TypeError: 'NoneType' object is not iterable\)"),
        ("{% for i in range(10**9) %}a{% endfor %}", r"\(OverflowError: .*\)"),
        ("{{ {}['x'].y.z }}", r"\(.* has no attribute .*\)"),
        ("{{ 1 / 0 }}", r"\(ZeroDivisionError: .*\)"),
    ],
)
def test_every_fault_of_a_template_is_one_problem_with_its_reason(template: str, why: str) -> None:
    with pytest.raises(
        TemplateProblem, match="the chat template does not take its messages " + why
    ):
        chat(template, USER)


def test_variables_of_all_chats_are_replaced_by_a_chat_s_own() -> None:
    template = ChatTemplate(tokenizer(), "{{ mood }}{{ size }}", {"mood": "!", "size": 1})
    assert template.chat([USER], variables={"size": 2}) == "!2"
    assert template.render(LoggedRequest(place="", messages=(USER,))) == "!1"
    request = LoggedRequest(place="", messages=(USER,), chat_template_kwargs={"mood": "?"})
    assert template.render(request) == "?1"


def test_a_template_that_takes_parts_only_gets_parts() -> None:
    assert chat(WALKS, USER) == "<user>Hi;"
    either = "{% if messages[0].content is string %}text{% else %}" + WALKS + "{% endif %}"
    assert chat(either, USER) == "text"


def test_text_without_a_time_has_the_fixed_date() -> None:
    assert rendered("{{ strftime_now('%Y-%m-%d') }}", USER) == "2026-01-01"
    template = ChatTemplate(tokenizer(), "{{ strftime_now('%Y-%m-%d') }}")
    assert template.chat([USER]) == "2026-01-01"
    assert template.shows_date([USER])
    assert not ChatTemplate(tokenizer(), PLAIN).shows_date([USER])
    pinned = {"strftime_now": 1, "tokenize": True}  # reserved names
    assert template.chat([USER], variables=pinned) == "2026-01-01"
