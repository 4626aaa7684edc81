"""The bridge: what is refused before a task runs, and whole tasks against scripted servers."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.quality.files import write_lines, write_tokenizer
from tests.quality.model_server import Body, Reply, model_server, says
from whet.core.errors import UsageError
from whet.core.records import HarnessRun
from whet.quality.asking import Peer
from whet.quality.harness import HarnessPlan, echo_problem, run_harness, served_length
from whet.quality.harness_compare import compare_harness

IDS = (5, 6, 7, 8)
installed = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed"
)

CHOICE = """\
task: letters
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: ["a", "b"]
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
GENERATE = """\
task: echoes
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{reply}}"
generation_kwargs: {until: ["."], max_gen_toks: 8}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""

GROUP = """\
group: both
task: [letters_one, letters_two]
aggregate_metric_list:
  - {metric: acc, aggregation: mean, weight_by_size: true}
"""


def echo(ids: list[int], score: Callable[[int, int], Any]) -> dict[str, Any]:
    """A choice as vLLM answers echo with logprobs; ``score(position, token)`` is this model."""
    scores = [None, *(score(place, ids[place]) for place in range(1, len(ids))), -0.1]
    tops = [None if value is None else {"x": value, "y": -9.0} for value in scores]
    return {"index": 0, "text": "x", "logprobs": {"token_logprobs": scores, "top_logprobs": tops}}


def scorer(score: Callable[[int, int], Any], text: str = "yes") -> Callable[[Body], Reply]:
    def reply(body: Body) -> Reply:
        if not body.get("echo"):
            return says(text)
        prompt = body["prompt"]
        ids = prompt[0] if isinstance(prompt[0], list) else prompt
        return 200, {"choices": [echo(ids, score)]}

    return reply


def problem(reply: Callable[[Body], Reply]) -> str | None:
    with model_server(reply) as (url, _):
        return echo_problem(Peer(url=url, model="m", concurrency=1), IDS)


def varied(place: int, token: int) -> float:
    return -0.1 * place - 0.01 * token


def test_an_echo_as_vllm_writes_it_is_accepted() -> None:
    assert problem(scorer(varied)) is None


def test_an_echo_of_the_reply_alone_is_refused() -> None:
    only = {"token_logprobs": [-0.1], "top_logprobs": [{"x": -0.1}]}
    reply = 200, {"choices": [{"index": 0, "text": "x", "logprobs": only}]}
    assert "leaves the prompt's log-probabilities out" in str(problem(lambda _: reply))


def test_an_answer_without_logprobs_is_refused() -> None:
    assert "leaves the prompt's log-probabilities out" in str(problem(lambda _: says("x")))


def test_zeros_for_every_token_are_refused() -> None:
    assert "the same log-probability" in str(problem(scorer(lambda place, token: 0.0)))


def test_a_gap_in_the_echo_is_refused() -> None:
    gappy = scorer(lambda place, token: None if place == 2 else -0.1 * place)
    assert "for some tokens" in str(problem(gappy))


def test_a_server_that_refuses_echo_says_why() -> None:
    said = problem(lambda _: (400, {"error": "echo is not supported"}))
    assert "echo is not supported" in str(said)


def test_nan_is_the_tasks_finding_and_no_refusal() -> None:
    error = {"error": {"message": "Out of range float values are not JSON compliant: nan"}}
    assert problem(lambda _: (400, error)) is None


def test_the_length_that_the_server_holds_is_read() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cards = [{"id": "other", "max_model_len": 1}, {"id": "m", "max_model_len": 4096}]
            data = json.dumps({"data": cards}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert (served_length(url, "m"), served_length(url, "absent")) == (4096, None)
        server.shutdown()


def test_without_the_harness_the_mend_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'whet\[lm-eval\]'"):
        run_harness(
            "http://127.0.0.1:9", "m", HarnessPlan(variant="a", tasks=("x",), tokenizer=tmp_path)
        )


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> HarnessPlan:
    folder = tmp_path_factory.mktemp("harness")
    data = write_lines(
        folder / "rows.jsonl",
        [{"prompt": f"question {i}:", "answer": i % 2, "reply": "yes"} for i in range(8)],
    )
    (folder / "letters.yaml").write_text(CHOICE % data, encoding="utf-8")
    (folder / "echoes.yaml").write_text(GENERATE % data, encoding="utf-8")
    return HarnessPlan(
        variant="fp16",
        tasks=("letters", "echoes"),
        tokenizer=write_tokenizer(folder / "tokenizer"),
        include_path=folder,
        concurrency=2,
        max_length=256,
    )


def whole(plan: HarnessPlan, reply: Callable[[Body], Reply]) -> tuple[HarnessRun, list[Body]]:
    with model_server(reply) as (url, asked):
        return run_harness(url, "m", plan), asked


def alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


@installed
def test_a_model_that_likes_one_letter_is_right_half_the_time(plan: HarnessPlan) -> None:
    liked = alphabet().index("a")
    run, asked = whole(
        plan, scorer(lambda place, token: -0.1 if token == liked else -2 - place / 99)
    )
    letters, echoes = run.tasks
    assert [(m.name, m.score.value) for m in letters.metrics] == [("acc", 0.5)]
    assert [(m.name, m.score.value) for m in echoes.metrics] == [("exact_match", 1.0)]
    assert (letters.samples, letters.broken, run.echo, run.truncated) == (8, 0, None, 0)
    assert len(run.samples) == 16
    assert all(body["model"] == "m" for body in asked)


@installed
def test_an_a_a_comparison_loses_nothing(plan: HarnessPlan) -> None:
    first, _ = whole(plan, scorer(varied))
    again, _ = whole(plan, scorer(varied))
    assert [(s.task, s.pairs, s.lost, s.unpaired) for s in compare_harness(again, first)] == [
        ("letters", 8, 0, 0),
        ("echoes", 8, 0, 0),
    ]


@installed
def test_without_an_echo_likelihood_tasks_are_refused_and_others_run(plan: HarnessPlan) -> None:
    run, asked = whole(plan, lambda _: says("yes"))
    letters, echoes = run.tasks
    assert "it needs likelihoods, and the server leaves" in str(letters.missing)
    assert (letters.metrics, echoes.missing) == ((), None)
    assert sum(bool(body.get("echo")) for body in asked) == 1
    assert run.echo is not None


@installed
def test_a_likelihood_that_is_nan_is_broken_and_not_chance(plan: HarnessPlan) -> None:
    liked = alphabet().index("a")
    run, _ = whole(
        plan, scorer(lambda place, token: math.nan if token == liked else varied(place, token))
    )
    assert run.tasks[0].broken == 8
    (score, _) = compare_harness(run, run)
    assert score.p_value is None


@installed
def test_prompts_that_do_not_fit_are_counted(plan: HarnessPlan) -> None:
    run, _ = whole(replace(plan, tasks=("letters",), max_length=8), scorer(varied))
    assert run.truncated == 16  # eight documents of two choices, "question n:" is eleven bytes


@installed
def test_the_key_of_the_server_is_sent(plan: HarnessPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    from whet.quality.harness_model import BoundedCompletions

    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    lm = BoundedCompletions("http://127.0.0.1:9", "m", plan, max_length=64)
    assert lm.header["Authorization"] == "Bearer sk-0123456789abcdef"


@installed
def test_a_name_that_is_nearly_a_task_is_answered_with_the_task(plan: HarnessPlan) -> None:
    from whet.quality.harness import _Catalogue

    catalogue = _Catalogue(plan.include_path)
    catalogue._all = catalogue._own  # the harness's own index takes many seconds to read
    with pytest.raises(UsageError, match="did you mean 'letters'"):
        catalogue.load("leters")


@installed
def test_data_out_of_reach_is_a_reason_and_no_crash(plan: HarnessPlan, tmp_path: Path) -> None:
    (tmp_path / "lost.yaml").write_text(
        CHOICE.replace("letters", "lost") % (tmp_path / "absent.jsonl"), encoding="utf-8"
    )
    run, _ = whole(replace(plan, tasks=("lost",), include_path=tmp_path), scorer(varied))
    assert "its data could not be loaded" in str(run.tasks[0].missing)


@installed
def test_a_group_is_run_whole_and_compared_as_one(plan: HarnessPlan, tmp_path: Path) -> None:
    assert plan.include_path is not None
    one = (plan.include_path / "letters.yaml").read_text(encoding="utf-8")
    for name in ("letters_one", "letters_two"):
        (tmp_path / f"{name}.yaml").write_text(one.replace("letters", name), encoding="utf-8")
    (tmp_path / "both.yaml").write_text(GROUP, encoding="utf-8")
    liked = alphabet().index("a")
    run, _ = whole(
        replace(plan, tasks=("both",), include_path=tmp_path),
        scorer(lambda place, token: -0.1 if token == liked else -2 - place / 99),
    )
    assert [task.task for task in run.tasks] == ["both", "letters_one", "letters_two"]
    assert [metric.score.value for metric in run.tasks[0].metrics] == [0.5]
    assert [(s.task, s.metric, s.pairs) for s in compare_harness(run, run)] == [("both", "acc", 16)]
