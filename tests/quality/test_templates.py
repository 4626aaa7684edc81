"""Chat templates with dates and with thinking: the questions, the answers and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.quality.files import task_row, write_lines, write_tokenizer
from tests.quality.model_server import Body, Reply, likelihoods, model_server, says
from whet.core.errors import UsageError
from whet.core.records.codec import decode, encode
from whet.core.records.quality import QualityRecord, TaskAnswer
from whet.core.spec import QualitySpec
from whet.load.workload import Renderer
from whet.quality import QualityPlan, measure_quality, tokens_needed
from whet.quality.data import Encoder, Task, identity
from whet.quality.identity import token_identity
from whet.requests import LoggedRequest

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
OPEN = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
LLAMA = (
    "{% if not date_string is defined %}{% if strftime_now is defined %}"
    "{% set date_string = strftime_now('%d %b %Y') %}{% else %}"
    "{% set date_string = '26 Jul 2024' %}{% endif %}{% endif %}Today Date: {{ date_string }}"
    + TURNS
    + OPEN
)
GPT_OSS = (
    "{% macro build() %}Current date: {{ strftime_now('%Y-%m-%d') }}{% endmacro %}"
    "<|start|>system<|message|>{{ build() }}Reasoning: {{ reasoning_effort|default('medium') }}"
    + TURNS
    + "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    "{% if false %}<|channel|>final<|message|>{% endif %}"
)
GRANITE = (
    "{% if messages[0].role != 'system' %}Today's Date: {{ strftime_now('%B %d, %Y') }}.{% endif %}"
    + TURNS
    + OPEN
)
QWEN = (
    TURNS + "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
R1 = TURNS + "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + TURNS
    + OPEN
)
SYSTEM, USER = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}


def task(*messages: dict[str, str], **more: Any) -> Task:
    return Task.model_validate(task_row(1, messages=messages or (USER,), **more))


@pytest.mark.parametrize("template", [LLAMA, GPT_OSS, GRANITE])
def test_token_ids_and_hashes_are_the_same_on_every_day(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tokenizer(tmp_path, template=template)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    seen, clock = [], []
    for day in (datetime(2026, 11, 24, 23), datetime(2026, 11, 25, 1)):

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None, day: datetime = day) -> Any:
                return day

        monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Clock)
        clock.append(tokenizer.apply_chat_template([USER], tokenize=False))
        encoder, tasks = Encoder(folder), [task(), task(SYSTEM, USER)]
        document = encoder.document(
            LoggedRequest(place="", messages=({"role": "user", "content": "u"},) * 2)
        )
        prompts = [encoder.task(each) for each in tasks]
        load = Renderer(tokenizer).render("s", "u")
        seen.append((identity([document], prompts, tasks), prompts, load))
    assert clock[0] != clock[1]  # the clock of transformers is really another one
    assert seen[0] == seen[1]


def test_a_task_s_own_variables_are_in_its_ids_and_add_nothing_to_the_hash(tmp_path: Path) -> None:
    encoder = Encoder(write_tokenizer(tmp_path, template=QWEN))
    off, on = task(), task(chat_template_kwargs={"enable_thinking": True})
    assert len(encoder.task(off)) > len(encoder.task(on))
    assert identity([], [(1,)], [off]) == identity([], [(1,)], [on])
    assert (encoder.thinking(off, 9), encoder.thinking_off) == (None, {"enable_thinking": False})
    thinking = encoder.thinking(on, 9)
    assert thinking is not None
    assert (thinking.opened, thinking.tokens) == (False, 9)


def test_a_system_turn_is_folded_where_the_template_refuses_it(tmp_path: Path) -> None:
    encoder = Encoder(write_tokenizer(tmp_path, template=GEMMA))
    whole = task({"role": "user", "content": "s\n\nu"})
    assert encoder.task(task(SYSTEM, USER)) == encoder.task(whole)
    bare = write_tokenizer(tmp_path / "x", template="{{ functions }}{{ functions.x }}")
    with pytest.raises(UsageError, match=r"'functions' is undefined.*quality.chat_template_kwargs"):
        Encoder(bare).task(task())


def plan_of(folder: Path, template: str, **spec: Any) -> QualityPlan:
    rows = [{"text": ("ab" * 25)[: 10 + i % 40]} for i in range(60)]
    return QualityPlan(
        variant="fp16",
        tokenizer=write_tokenizer(folder / "tokenizer", template=template),
        spec=QualitySpec(max_tokens=64, concurrency=4, **spec),
        heldout=write_lines(folder / "heldout.jsonl", rows),
        tasks=write_lines(folder / "tasks.jsonl", [task_row(i, expected="42") for i in range(20)]),
        baseline=None,
        tolerances=(0.01,),
    )


def measure(plan: QualityPlan, texts: Sequence[str]) -> tuple[QualityRecord, list[Body]]:
    """``texts`` are written in turn, in the order in which tasks are asked."""
    told = iter(list(texts) * 99)

    def reply(body: Body) -> Reply:
        if "prompt_logprobs" in body:
            return likelihoods(body, lambda *_: -math.log(256))
        return says(next(told))

    with model_server(reply) as (url, asked):
        record = measure_quality(url, "m", plan).record
    return record, [body for body in asked if "prompt_logprobs" not in body]


def test_thinking_is_off_in_the_gate_and_the_record_says_so(tmp_path: Path) -> None:
    record, asked = measure(plan_of(tmp_path, QWEN), ["42"])
    assert record.reason is not None
    assert "answered without thinking (enable_thinking: false" in record.reason
    assert [word for _, word in record.verdicts] == ["pass"]
    assert {body["max_tokens"] for body in asked} == {8}


@pytest.mark.parametrize(
    ("template", "text"), [(QWEN, "<think>41?</think>42"), (R1, "41?</think>\n\n42")]
)
def test_a_thinking_model_is_scored_on_what_follows_with_tokens_to_think(
    template: str, text: str, tmp_path: Path
) -> None:
    kwargs = {"enable_thinking": True}
    plan = plan_of(tmp_path, template, chat_template_kwargs=kwargs, thinking_tokens=100)
    record, asked = measure(plan, [text])
    assert all(answer.right and not answer.unfinished for answer in record.answers)
    assert {answer.text for answer in record.answers} == {"42"}
    assert {body["max_tokens"] for body in asked} == {108}
    assert [word for _, word in record.verdicts] == ["pass"]
    assert tokens_needed(plan) > 108


def test_reasoning_that_never_ends_on_both_sides_is_unknown(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, R1)
    first, _ = measure(plan, ["so 42 or 41"])
    assert [word for _, word in first.verdicts] == ["unknown"]
    second, _ = measure(replace(plan, variant="awq", baseline=first), ["so 42 or 43"])
    assert [word for _, word in second.verdicts] == ["unknown"]
    assert second.reason is not None
    assert "20 of 20 answers here and 20 of 20 of the baseline's did not end" in second.reason
    assert "raise quality.thinking_tokens" in second.reason
    assert not any(answer.right for answer in second.answers)
    assert decode(QualityRecord, encode(second)) == second


def test_one_answer_in_twenty_that_never_ends_is_counted_and_decides_nothing(
    tmp_path: Path,
) -> None:
    record, _ = measure(plan_of(tmp_path, R1), ["42", *["hm</think>42"] * 19])
    assert sum(answer.unfinished for answer in record.answers) == 1
    assert [word for _, word in record.verdicts] == ["pass"]
    assert "1 of 20 answers here did not end their reasoning" in (record.reason or "")


def test_a_stored_answer_of_an_earlier_version_is_finished() -> None:
    old = {"id": "a", "task": "t", "text": "x", "right": True}
    assert decode(TaskAnswer, old).unfinished is False


@pytest.mark.parametrize(
    ("template", "compared"), [(LLAMA, 2), (GPT_OSS, 0), (GRANITE, 1), (QWEN, 2), (GEMMA, 2)]
)
def test_a_server_s_date_is_no_difference_and_it_gets_the_variables(
    template: str, compared: int, tmp_path: Path
) -> None:
    """The server renders with its own clock, as vLLM does."""
    folder = write_tokenizer(tmp_path, template=template)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chats: list[Body] = []

    def answer(body: Body) -> Reply:
        if "messages" in body:
            chats.append(body)
            text = tokenizer.apply_chat_template(
                body["messages"],
                tokenize=False,
                add_generation_prompt=True,
                **body.get("chat_template_kwargs", {}),
            )
            return 200, {"tokens": tokenizer(text, add_special_tokens=False)["input_ids"]}
        if "tokens" in body:
            return 200, {"prompt": tokenizer.decode(body["tokens"])}
        return 200, {"tokens": tokenizer(body["prompt"])["input_ids"]}

    asked = [(USER,), (SYSTEM, USER)]
    with model_server(answer) as (url, _):
        found = token_identity(
            url, "m", folder, [], chats=asked, variables={"enable_thinking": False}
        )
    assert not any("template" in problem for problem in found.problems)
    assert len(chats) == compared
    assert all(body["chat_template_kwargs"]["enable_thinking"] is False for body in chats)
