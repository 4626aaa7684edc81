"""A whole measurement against scripted models whose perplexity and answers are known."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.quality.files import task_row, write_lines, write_tokenizer
from tests.quality.model_server import Body, Reply, likelihoods, model_server, says
from whet.core.errors import CheckpointError, UsageError
from whet.core.protocols import Silent
from whet.core.records.codec import decode, encode
from whet.core.records.quality import QualityRecord
from whet.core.spec import QualitySpec
from whet.demo import pair_paths
from whet.quality import ChecksPlan, QualityPlan, measure_quality
from whet.quality.data import Encoder
from whet.quality.golden import read_golden
from whet.quality.measure import encode_documents

DOCUMENTS, TASKS = 60, 20


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> QualityPlan:
    folder = tmp_path_factory.mktemp("quality")
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    rows: list[dict[str, Any]] = [
        {"text": ("ab" * 25)[: 10 + i % 40]} for i in range(DOCUMENTS - 1)
    ]
    return QualityPlan(
        variant="fp16",
        tokenizer=write_tokenizer(folder / "tokenizer"),
        spec=QualitySpec(max_tokens=64, concurrency=4),
        heldout=write_lines(folder / "heldout.jsonl", [{"messages": chat}, *rows]),
        tasks=write_lines(folder / "tasks.jsonl", [task_row(i) for i in range(TASKS)]),
        baseline=None,
        tolerances=(0.01, 0.05),
    )


def spoken(body: Body) -> str:
    """The prompt as text: one token a byte, in the order of the byte-level alphabet."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = "".join(alphabet[token] if token < len(alphabet) else "|" for token in body["prompt"])
    return plain.replace("\u0120", " ")


def model(
    logprob: Callable[[int, int], Any], answer: Callable[[int], str] = str
) -> Callable[[Body], Reply]:
    """A server whose likelihoods and whose answer to "question n" are given."""

    def reply(body: Body) -> Reply:
        if "prompt_logprobs" in body:
            return likelihoods(body, logprob)
        number = re.search(r"question (\d+)", spoken(body))
        assert number is not None
        return says(answer(int(number[1])))

    return reply


def measure(plan: QualityPlan, reply: Callable[[Body], Reply]) -> tuple[QualityRecord, list[Body]]:
    with model_server(reply) as (url, asked):
        return measure_quality(url, "m", plan).record, asked


def uniform(position: int, token: int) -> float:
    return -math.log(256)


@pytest.fixture(scope="module")
def baseline(plan: QualityPlan) -> QualityRecord:
    return measure(plan, model(uniform))[0]


def against(baseline: QualityRecord, plan: QualityPlan) -> QualityPlan:
    return replace(plan, variant="awq", baseline=baseline)


def test_a_uniform_model_is_as_perplexed_as_its_vocabulary(baseline: QualityRecord) -> None:
    assert baseline.perplexity is not None
    assert baseline.perplexity.value == pytest.approx(256)
    assert baseline.verdicts == ((0.01, "pass"), (0.05, "pass"))
    assert (baseline.tasks[0].right, baseline.tasks[0].p_value) == (TASKS, None)


def test_every_token_but_the_first_is_scored(baseline: QualityRecord) -> None:
    # the chat is "<s>user hello</s><s>assistant good day</s>", <s> and </s> one token each
    chat = len("user hello") + len("assistant good day") + 4
    assert [tokens for _, tokens in baseline.nll] == [
        chat - 1,
        *(9 + i % 40 for i in range(DOCUMENTS - 1)),
    ]


def test_a_task_prompt_opens_the_assistants_turn_and_is_answered_greedily(
    plan: QualityPlan,
) -> None:
    _, asked = measure(plan, model(uniform))
    tasks = [body for body in asked if "prompt_logprobs" not in body]
    assert spoken(tasks[0]).startswith("|user question ")
    assert spoken(tasks[0]).endswith("||assistant ")
    assert {(body["temperature"], body["max_tokens"]) for body in tasks} == {(0.0, 8)}
    assert not any("ignore_eos" in body for body in tasks)


def test_each_part_of_the_questions_is_named_while_it_is_asked(plan: QualityPlan) -> None:
    class Ear(Silent):
        def progress(self, label: str, done: int, total: int) -> None:
            heard.setdefault(label, []).append((done, total))

    heard: dict[str, list[tuple[int, int]]] = {}
    with model_server(model(uniform)) as (url, _):
        measure_quality(url, "m", plan, observer=Ear())
    assert list(heard) == ["fp16 likelihood", "fp16 tasks", "fp16 distances"]
    assert heard["fp16 tasks"][0] == (0, 1)
    assert heard["fp16 tasks"][-1] == (TASKS, TASKS)


def test_a_known_loss_is_the_ratio(plan: QualityPlan, baseline: QualityRecord) -> None:
    worse = model(lambda position, token: -math.log(256) - 0.02)
    record, _ = measure(against(baseline, plan), worse)
    assert record.perplexity_ratio is not None
    assert record.perplexity_ratio.value == pytest.approx(math.exp(0.02))
    assert record.verdicts == ((0.01, "fail"), (0.05, "pass"))


def test_one_document_scored_as_noise_fails_although_the_mean_is_inconclusive(
    plan: QualityPlan, baseline: QualityRecord
) -> None:
    def reply(body: Body) -> Reply:
        wrong = "prompt_logprobs" in body and spoken(body) == ("ab" * 25)[:25]
        return likelihoods(body, lambda *_: -math.log(256) - 2.0) if wrong else plain(body)

    plain = model(uniform)
    record, _ = measure(replace(against(baseline, plan), scoring_defect="known"), reply)
    assert {word for _, word in record.verdicts} == {"fail"}
    assert record.reason is not None
    assert f"2 of {DOCUMENTS} held-out documents changes by up to +2.00 nats" in record.reason
    assert record.reason.endswith("; known")


def test_a_task_that_the_baseline_cannot_answer_says_nothing(plan: QualityPlan) -> None:
    lost = model(uniform, lambda number: "no")
    first, _ = measure(plan, lost)
    assert dict(first.verdicts) == {0.01: "pass", 0.05: "pass"}
    assert "sums tasks are not judged: fp16 answers 0 of 20 itself" in str(first.reason)
    record, _ = measure(against(first, plan), lost)
    assert {word for _, word in record.verdicts} == {"unknown"}
    assert "no task shows whether answers are still right" in str(record.reason)


@pytest.mark.parametrize(("chance", "refused"), [(0.0, False), (0.25, True), (None, False)])
def test_a_guess_says_where_the_chance_level_is(
    tmp_path: Path, plan: QualityPlan, chance: float | None, refused: bool
) -> None:
    rows = [task_row(i) | {"chance": chance} for i in range(TASKS)]
    mixed = replace(plan, tasks=write_lines(tmp_path / "tasks.jsonl", rows))
    first, _ = measure(mixed, model(uniform, lambda n: str(n) if n < 8 else "no"))
    said = "fp16 answers 8 of 20 itself, and guessing gets 25 %"
    assert (said in str(first.reason)) is refused
    assert first.data_sha256 == measure(plan, model(uniform))[0].data_sha256


def test_lost_answers_are_paired_and_shown(plan: QualityPlan, baseline: QualityRecord) -> None:
    record, _ = measure(
        against(baseline, plan), model(uniform, lambda n: "1000" if n < 9 else str(n))
    )
    [score] = record.tasks
    assert (score.right, score.baseline_right, score.lost, score.gained) == (11, 20, 9, 0)
    assert score.p_value == pytest.approx(2 / 2**9)
    assert [example.answer for example in record.examples] == ["1000"] * 5
    assert {word for _, word in record.verdicts} == {"fail"}


def test_a_server_without_prompt_logprobs_is_unknown_and_is_asked_once(
    plan: QualityPlan, baseline: QualityRecord
) -> None:
    record, asked = measure(against(baseline, plan), lambda body: says("1"))
    assert sum("prompt_logprobs" in body for body in asked) == 1
    assert record.perplexity is None
    assert record.reason is not None
    assert "leaves prompt_logprobs out" in record.reason


def test_a_server_that_refuses_prompt_logprobs_is_unknown(
    plan: QualityPlan, baseline: QualityRecord
) -> None:
    plain = model(uniform)

    def refuse(body: Body) -> Reply:
        return (400, {"error": "no"}) if "prompt_logprobs" in body else plain(body)

    record, _ = measure(against(baseline, plan), refuse)
    assert {word for _, word in record.verdicts} == {"unknown"}


def test_a_server_without_token_ids_has_no_golden_probes_and_is_judged(
    plan: QualityPlan, tmp_path: Path
) -> None:
    """It scores prompts, and names the tokens of its own answers by their text."""

    def reply(body: Body) -> Reply:
        if body.get("logprobs"):
            text = {"index": 0, "text": "x", "logprobs": {"top_logprobs": [{" the": -0.5}]}}
            return 200, {"choices": [text]}
        if "prompt_logprobs" not in body and "question" not in spoken({"prompt": []} | body):
            return 400, {"error": {"message": "unknown field"}}
        return model(uniform)(body)

    checks = ChecksPlan(
        golden=tmp_path / "golden",
        same_weights_reference=None,
        plain=None,
        is_plain=False,
    )
    spec = plan.spec.model_copy(update={"top_logprobs": 0})
    checked = replace(plan, checks=checks, spec=spec)
    first, _ = measure(checked, reply)
    assert dict(first.verdicts) == {0.01: "pass", 0.05: "pass"}, first.reason
    assert "no golden probes: the server names tokens by their text" in (first.reason or "")
    second, _ = measure(replace(checked, variant="awq", baseline=first), reply)
    assert "no golden probes: " in (second.reason or "")
    assert not (tmp_path / "golden").exists()


def test_golden_probes_of_a_private_log_hold_text_of_another_file(
    plan: QualityPlan, tmp_path: Path
) -> None:
    """They come before the tokens of that text that the model is least sure of."""
    text = write_lines(tmp_path / "text.jsonl", [{"text": f"{i} {'open' * 30}"} for i in range(30)])

    def reply(body: Body) -> Reply:
        if body.get("prompt_logprobs"):  # sure of every token but the 21st
            entries: list[Any] = [None]
            for position, token in enumerate(body["prompt"][1:], start=1):
                other = 0.6 if position == 20 else 1e-6
                pair = ((token, 1 - other), ((token + 1) % 256, other))
                entries.append({str(t): {"logprob": math.log(share)} for t, share in pair})
            return 200, {"choices": [{"index": 0, "text": "x", "prompt_logprobs": entries}]}
        if body.get("logprobs"):
            top = {"top_logprobs": [{"token_id:9": -0.5, "token_id:8": -1.5}]}
            return 200, {"choices": [{"index": 0, "text": "x", "logprobs": top}]}
        return model(uniform)(body)

    checks = ChecksPlan(
        golden=tmp_path / "golden",
        golden_text=text,
        same_weights_reference=None,
        plain=None,
        is_plain=False,
    )
    spec = plan.spec.model_copy(update={"top_logprobs": 1})
    measure(replace(plan, checks=checks, spec=spec), reply)
    golden = read_golden(tmp_path / "golden" / "fp16.json")
    prompts = [spoken({"prompt": list(probe.prompt)}) for probe in golden.probes]
    assert len(prompts) == spec.golden_probes
    assert {len(prompt) for prompt in prompts} == {20}
    assert all("openopen" in prompt for prompt in prompts)


@pytest.mark.parametrize("value", [None, float("nan"), -9999.0])
def test_nan_fails_with_words(plan: QualityPlan, baseline: QualityRecord, value: object) -> None:
    record, _ = measure(against(baseline, plan), model(lambda position, token: value))
    assert {word for _, word in record.verdicts} == {"fail"}
    assert record.perplexity is None
    assert record.reason is not None


def test_nan_that_the_server_cannot_write_fails_too(
    plan: QualityPlan, baseline: QualityRecord
) -> None:
    plain = model(uniform)
    error = {"error": {"message": "Out of range float values are not JSON compliant"}}

    def reply(body: Body) -> Reply:
        return (500, error) if "prompt_logprobs" in body else plain(body)

    record, _ = measure(against(baseline, plan), reply)
    assert {word for _, word in record.verdicts} == {"fail"}


def test_nan_among_others_fails_although_the_text_is_right_alone(
    plan: QualityPlan, baseline: QualityRecord
) -> None:
    plain, seen = model(uniform), list[int]()
    error = {"error": {"message": "Out of range float values are not JSON compliant: nan"}}

    def reply(body: Body) -> Reply:
        if "prompt_logprobs" in body and len(body["prompt"]) > 8:
            seen.append(len(body["prompt"]))
            if len(seen) == 2:
                return 500, error
        return plain(body)

    record, _ = measure(against(baseline, plan), reply)
    assert {word for _, word in record.verdicts} == {"fail"}
    assert record.reason is not None
    assert f"(NaN) in 1 of {DOCUMENTS} documents" in record.reason


@pytest.mark.parametrize("value", [float("nan"), -7.0])
def test_a_known_defect_is_named_where_scores_fail(
    plan: QualityPlan, baseline: QualityRecord, value: float
) -> None:
    suspected = replace(against(baseline, plan), scoring_defect="the engine is known to")
    failed, _ = measure(suspected, model(lambda position, token: value))
    assert failed.reason is not None
    assert failed.reason.endswith("; the engine is known to")
    right, _ = measure(suspected, model(uniform))
    assert right.reason is None
    wrong, _ = measure(suspected, model(uniform, lambda number: "no"))
    assert wrong.reason is not None
    assert "known" not in wrong.reason, "answers are no scores"


def test_a_document_that_fails_once_is_asked_again(plan: QualityPlan) -> None:
    plain, seen = model(uniform), set[int]()

    def reply(body: Body) -> Reply:
        length = len(body["prompt"])
        if "prompt_logprobs" in body and length > 8 and length not in seen:
            seen.add(length)
            return 500, {"error": "out of memory"}
        return plain(body)

    record, _ = measure(plan, reply)
    assert record.perplexity is not None
    assert len(record.nll) == DOCUMENTS


def too_long(limit: int) -> Callable[[Body], Reply]:
    plain = model(uniform)

    def reply(body: Body) -> Reply:
        if "prompt_logprobs" in body and len(body["prompt"]) > limit:
            return 500, {"error": "out of memory"}
        return plain(body)

    return reply


def test_documents_leave_room_for_the_token_asked(tmp_path: Path) -> None:
    rows = [{"text": "The lamp was sent on 3 May, and came back. " * 40}, {"text": "It was sent."}]
    path = write_lines(tmp_path / "a.jsonl", rows)
    encoder, spec = Encoder(pair_paths()[0]), QualitySpec(max_tokens=32)
    found = encode_documents(path, encoder, spec)
    assert len(found) == 2
    assert len(found[0]) == 31
    with pytest.raises(UsageError, match="no document of two tokens"):
        encode_documents(path, encoder, QualitySpec(max_tokens=2))


def test_a_document_that_cannot_be_scored_leaves_the_verdict_unknown(
    plan: QualityPlan, tmp_path: Path
) -> None:
    text = "the order was shipped today and nothing has come by then " * 20
    path = write_lines(tmp_path / "corpus.jsonl", [{"text": text}])
    record, _ = measure(replace(plan, heldout=path), too_long(16))
    assert record.nll == ()
    assert {word for _, word in record.verdicts} == {"unknown"}
    assert "raise max_model_len" in str(record.reason)


def test_a_variant_that_cannot_score_what_the_baseline_could_is_unknown(
    plan: QualityPlan, baseline: QualityRecord
) -> None:
    record, _ = measure(against(baseline, plan), too_long(16))
    assert {word for _, word in record.verdicts} == {"unknown"}
    assert record.nll == ()
    assert record.reason is not None
    assert "out of memory" in record.reason


def test_a_dead_server_is_unknown_and_is_left_alone(plan: QualityPlan) -> None:
    with model_server(model(uniform)) as (url, _):
        pass
    record = measure_quality(url, "m", plan).record
    assert {word for _, word in record.verdicts} == {"unknown"}
    assert record.answers == ()


def test_a_failing_task_request_leaves_the_verdict_unknown(
    plan: QualityPlan, baseline: QualityRecord
) -> None:
    plain = model(uniform)

    def reply(body: Body) -> Reply:
        failing = "prompt_logprobs" not in body and "question 7" in spoken(body)
        return (500, {"error": "x"}) if failing else plain(body)

    record, _ = measure(against(baseline, plan), reply)
    assert {word for _, word in record.verdicts} == {"unknown"}
    assert len(record.answers) == TASKS - 1


def test_records_of_other_text_are_never_paired(
    plan: QualityPlan, baseline: QualityRecord, tmp_path: Path
) -> None:
    rows = [{"text": "bc" * (5 + i)} for i in range(DOCUMENTS)]
    other = replace(plan, heldout=write_lines(tmp_path / "heldout.jsonl", rows))
    record, _ = measure(against(baseline, other), model(uniform))
    assert record.perplexity_ratio is None
    assert record.tasks[0].p_value is None
    assert {word for _, word in record.verdicts} == {"unknown"}


def test_documents_are_cut_so_that_one_more_token_fits(plan: QualityPlan) -> None:
    spec = QualitySpec(max_tokens=12, concurrency=4)
    _, asked = measure(replace(plan, spec=spec), model(uniform))
    scored = [len(body["prompt"]) for body in asked if "prompt_logprobs" in body]
    assert max(scored) == 11


def test_a_base_model_is_asked_plain_prompts_only(plan: QualityPlan, tmp_path: Path) -> None:
    """Tasks with messages are left out, and chats of the held-out text are plain text."""
    rows = [task_row(i) for i in range(3)]
    plain = {**task_row(3), "prompt": "question 3"}
    del plain["messages"]
    bare = replace(
        plan,
        tokenizer=write_tokenizer(tmp_path / "bare", template=None),
        tasks=write_lines(tmp_path / "tasks.jsonl", [*rows, plain]),
    )
    record, asked = measure(bare, model(uniform))
    assert [answer.id for answer in record.answers] == ["q3"]
    (prompt,) = [spoken(body) for body in asked if "prompt_logprobs" not in body]
    assert prompt == "question 3"
    assert record.nll[0][1] == len("hello\n\ngood day") - 1
    assert record.verdicts == ((0.01, "pass"), (0.05, "pass"))


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
def test_without_a_task_perplexity_alone_decides(
    plan: QualityPlan, tmp_path: Path, template: str | None
) -> None:
    spec = plan.spec if template is None else plan.spec.model_copy(update={"max_tasks": 0})
    tokenizer = write_tokenizer(tmp_path / "bare", template=template)
    record, asked = measure(replace(plan, tokenizer=tokenizer, spec=spec), model(uniform))
    assert (record.tasks, record.answers) == ((), ())
    assert all("prompt_logprobs" in body for body in asked)
    assert record.verdicts == ((0.01, "pass"), (0.05, "pass"))
    assert record.reason == "no task is asked: perplexity alone decides"


def test_a_folder_without_a_tokenizer_is_a_checkpoint_error(
    plan: QualityPlan, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        measure_quality("http://127.0.0.1:9", "m", replace(plan, tokenizer=tmp_path))


def test_the_record_survives_its_json_form(baseline: QualityRecord) -> None:
    assert decode(QualityRecord, encode(baseline)) == baseline
