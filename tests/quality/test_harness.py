"""lm-evaluation-harness: reading what it writes, and whole tasks against scripted servers."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.quality.files import write_lines, write_tokenizer
from tests.quality.model_server import Body, Reply, model_server, says
from whet.core.errors import MeasurementError, StorageError, UsageError
from whet.core.records import HarnessRun
from whet.quality.harness import (
    RECORD,
    HarnessPlan,
    max_model_length,
    read_harness,
    read_output,
    run_harness,
    write_harness,
)
from whet.quality.harness_compare import compare_harness

installed = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed"
)
OUTPUT = Path(__file__).with_name("lm_eval_output")
"""What lm_eval 0.4.13 wrote about a model that likes the letter a: a group, and generated text."""

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


def test_a_group_comes_before_its_members_with_its_own_figure() -> None:
    version, tasks, samples = read_output(OUTPUT / "both", "both")
    assert version == "0.4.13"
    assert [(task.task, task.members) for task in tasks] == [
        ("both", ("letters_one", "letters_two")),
        ("letters_one", ()),
        ("letters_two", ()),
    ]
    assert [(task.samples, task.metrics[0].score.value) for task in tasks] == [
        (8, 0.5),
        (4, 0.5),
        (4, 0.5),
    ]
    assert {task.asked for task in tasks} == {"both"}
    assert len(samples) == 8


def test_a_task_s_figure_gets_wilson_s_interval() -> None:
    _, (_, task, _), _ = read_output(OUTPUT / "both", "both")
    [metric] = task.metrics
    assert (metric.name, metric.filter, metric.higher_is_better) == ("acc", "none", True)
    # Two of four: (p + z²/2n ± z√(p(1−p)/n + z²/4n²)) ÷ (1 + z²/n) with z = 1.959964.
    assert (metric.score.low, metric.score.high) == (
        pytest.approx(0.150039, abs=1e-6),
        pytest.approx(0.849961, abs=1e-6),
    )
    assert (task.num_fewshot, task.available, task.output_type) == (0, 4, "multiple_choice")


def test_a_sample_keeps_its_identity_its_numbers_and_its_answer() -> None:
    _, _, samples = read_output(OUTPUT / "both", "both")
    first = samples[0]
    assert (first.task, first.doc_id, first.doc_hash[:4]) == ("letters_one", 0, "85a6")
    assert first.metrics == (("acc", 1.0),)
    assert json.loads(first.response)[0] == ["-0.1", "True"]
    assert (first.prompt_end, first.target) == ("question 0:", "0")


def test_a_generated_answer_is_kept_as_text() -> None:
    _, [task], samples = read_output(OUTPUT / "echoes", "echoes")
    assert (task.task, task.broken, task.metrics[0].name) == ("echoes", 0, "exact_match")
    assert (samples[0].response, samples[0].target) == ("yes", "yes")


def edited(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the group's output with every sample changed."""
    shutil.copytree(OUTPUT / "both", folder)
    for file in folder.rglob("samples_*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            change(row)
        write_lines(file, rows)
    return folder


def test_likelihoods_that_are_nan_are_counted(tmp_path: Path) -> None:
    nan = edited(tmp_path / "nan", lambda row: row["filtered_resps"][0].__setitem__(0, "nan"))
    assert [task.broken for task in read_output(nan, "both")[1]] == [0, 4, 4]


def test_an_echo_of_zeros_gives_no_figures_but_a_reason(tmp_path: Path) -> None:
    zeros = edited(tmp_path / "zeros", lambda row: row.update(filtered_resps=[["0.0", "True"]] * 2))
    _, tasks, _ = read_output(zeros, "both")
    assert "every choice the same log-probability" in str(tasks[1].missing)
    assert tasks[1].metrics == ()


def test_a_figure_that_is_no_mean_of_its_samples_has_no_interval(tmp_path: Path) -> None:
    other = edited(tmp_path / "other", lambda row: row.update(acc=1.0))
    score = read_output(other, "both")[1][1].metrics[0].score
    assert (score.value, score.low) == (0.5, None)


def test_output_of_another_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="wrote no results"):
        read_output(tmp_path, "both")
    (tmp_path / "results_1.json").write_text('{"n-samples": {"t": {}}}')
    with pytest.raises(MeasurementError, match=r"install lm-eval>=0\.4\.13"):
        read_output(tmp_path, "both")


def recorded() -> HarnessRun:
    version, tasks, samples = read_output(OUTPUT / "both", "both")
    return HarnessRun(
        variant="awq",
        model="m",
        harness_version=version,
        seed=1234,
        limit=None,
        max_length=2048,
        tasks=tasks,
        samples=samples,
        seconds=1.0,
    )


def test_a_group_is_compared_as_one() -> None:
    [score] = compare_harness(recorded(), recorded())
    assert (score.task, score.metric, score.pairs, score.lost) == ("both", "acc", 8, 0)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_harness(tmp_path, recorded())
    assert read_harness(tmp_path) == recorded()


def test_a_file_that_is_no_run_or_lacks_its_samples_is_refused(tmp_path: Path) -> None:
    write_harness(tmp_path, replace(recorded(), samples=()))
    with pytest.raises(StorageError, match="earlier version of whet"):
        read_harness(tmp_path)
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(StorageError, match="no readable run"):
        read_harness(tmp_path)


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
        assert (max_model_length(url, "m"), max_model_length(url, "absent")) == (4096, None)
        server.shutdown()


def test_without_the_harness_the_fix_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'whet\[lm-eval\]'"):
        run_harness(
            "http://127.0.0.1:9", "m", HarnessPlan(variant="a", tasks=("x",), tokenizer=tmp_path)
        )


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


def varied(place: int, token: int) -> float:
    return -0.1 * place - 0.01 * token


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
    assert (letters.samples, letters.broken, len(run.samples)) == (8, 0, 16)
    assert all(body["model"] == "m" for body in asked)
    assert [(s.task, s.pairs, s.lost, s.unpaired) for s in compare_harness(run, run)] == [
        ("letters", 8, 0, 0),
        ("echoes", 8, 0, 0),
    ]


@installed
def test_without_an_echo_likelihood_tasks_have_no_figures_and_others_run(
    plan: HarnessPlan,
) -> None:
    run, _ = whole(plan, lambda _: says("yes"))
    letters, echoes = run.tasks
    assert letters.missing is not None
    assert (letters.metrics, echoes.missing) == ((), None)


@installed
def test_a_likelihood_that_is_nan_is_broken_and_not_chance(plan: HarnessPlan) -> None:
    liked = alphabet().index("a")
    run, _ = whole(
        replace(plan, tasks=("letters",)),
        scorer(lambda place, token: math.nan if token == liked else varied(place, token)),
    )
    assert run.tasks[0].broken == 8
    [score] = compare_harness(run, run)
    assert score.p_value is None


@installed
def test_a_name_that_is_no_task_is_refused(plan: HarnessPlan) -> None:
    with pytest.raises(UsageError, match="knows no task 'leters'"):
        whole(replace(plan, tasks=("leters",)), scorer(varied))


@installed
def test_data_out_of_reach_is_a_reason_and_no_crash(plan: HarnessPlan, tmp_path: Path) -> None:
    (tmp_path / "lost.yaml").write_text(
        CHOICE.replace("letters", "lost") % (tmp_path / "absent.jsonl"), encoding="utf-8"
    )
    run, _ = whole(replace(plan, tasks=("lost",), include_path=tmp_path), scorer(varied))
    assert "lm_eval failed (" in str(run.tasks[0].missing)
