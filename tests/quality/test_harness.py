"""lm-evaluation-harness: reading what it writes, and whole tasks against scripted servers."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.quality.files import write_lines, write_tokenizer
from tests.quality.model_server import Body, Reply, model_server, says
from whet.core.errors import MeasurementError, UsageError
from whet.core.records.codec import decode, encode
from whet.quality.asking import ModelEndpoint
from whet.quality.harness import (
    HarnessRun,
    compare_harness,
    read_output,
    require_harness,
    run_harness,
)
from whet.quality.verdicts import losses

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


def test_a_group_is_one_task_with_the_documents_of_its_members() -> None:
    values = read_output(OUTPUT / "both", "both")
    assert list(values) == ["both acc"]
    assert list(values["both acc"].values()) == [1.0, 0.0, 1.0, 0.0] * 2
    first = next(iter(values["both acc"]))
    assert first == "letters_one 85a6c013c0697d63 fbde253607672e75 0"


def test_a_task_s_figure_gets_wilson_s_interval() -> None:
    (score,), _ = compare_harness(run({"t acc": [1, 1, 0, 0]}))
    # Two of four: (p + z²/2n ± z√(p(1−p)/n + z²/4n²)) ÷ (1 + z²/n) with z = 1.959964.
    assert (score.score.low, score.score.high) == (
        pytest.approx(0.150039, abs=1e-6),
        pytest.approx(0.849961, abs=1e-6),
    )
    assert (score.n, score.p_value, score.difference) == (4, None, None)


def edited(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the group's output with every sample changed."""
    shutil.copytree(OUTPUT / "both", folder)
    for file in folder.rglob("samples_*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            change(row)
        write_lines(file, rows)
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda row: row["filtered_resps"][0].__setitem__(0, "nan"),
            "letters_one has 4 likelihoods that are not numbers",
        ),
        (
            lambda row: row.update(filtered_resps=[["0.0", "True"]] * 2),
            "every choice the same log-probability",
        ),
        (lambda row: row.update(acc=[1, 2]), "one number per document"),
        (lambda row: row.pop("doc_hash"), r"install lm-eval>=0\.4\.13"),
    ],
)
def test_samples_that_cannot_be_scored_say_why(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    with pytest.raises(MeasurementError, match=reason):
        read_output(edited(tmp_path / "changed", change), "both")


def test_output_of_another_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"install lm-eval>=0\.4\.13"):
        read_output(tmp_path, "both")


def test_a_metric_that_should_be_low_is_turned(tmp_path: Path) -> None:
    folder = edited(tmp_path / "low", lambda row: row.update(acc=0.25))
    (file,) = folder.rglob("results_*.json")
    file.write_text(file.read_text().replace('"acc": true', '"acc": false'))
    assert set(read_output(folder, "both")["both acc"].values()) == {0.75}


def run(values: Mapping[str, Sequence[float]], **missing: str) -> HarnessRun:
    return HarnessRun(
        max_length=2048,
        values={name: {f"d{at}": x for at, x in enumerate(each)} for name, each in values.items()},
        missing=missing,
    )


def shares(lost: int, gained: int, both: int) -> tuple[HarnessRun, HarnessRun]:
    """(variant, baseline) of right and wrong answers."""
    before = [1.0] * lost + [0.0] * gained + [1.0] * both
    now = [0.0] * lost + [1.0] * gained + [1.0] * both
    return run({"t acc": now}), run({"t acc": before})


def test_right_and_wrong_answers_are_mcnemars_coin() -> None:
    (score,), gaps = compare_harness(*shares(lost=10, gained=3, both=87))
    assert (score.n, score.lost, score.gained, score.graded) == (100, 10, 3, False)
    assert score.p_value == pytest.approx(756 / 8192)  # 2 · (1 + 13 + 78 + 286) ÷ 2¹³
    assert score.difference is not None
    assert score.difference.value == pytest.approx(-0.07)
    assert gaps == ()


def test_a_run_against_itself_has_no_loss_and_still_an_interval() -> None:
    same, _ = shares(lost=0, gained=0, both=60)
    (score,), _ = compare_harness(same, same)
    assert score.p_value == 1.0
    assert score.difference is not None
    assert score.difference.low is not None
    assert score.difference.low < 0  # 60 questions cannot prove that there is no loss
    assert losses([score]) == []


def test_grades_are_tested_by_every_sign_pattern() -> None:
    before = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    here, there = run({"t f1": [x - 0.1 for x in before]}), run({"t f1": before})
    (score,), _ = compare_harness(here, there)
    assert score.graded
    assert score.p_value == pytest.approx(2 / 2**6)  # all six fell alike: two patterns of 64
    assert losses([score]) == ["t f1: the mean grade changed by -0.100 (p 0.031 after Holm)"]


def test_grades_that_are_all_0_or_1_on_one_side_stay_grades() -> None:
    here, there = run({"t f1": [1.0, 0.0, 1.0]}), run({"t f1": [1.0, 0.5, 1.0]})
    (score,), gaps = compare_harness(here, there)
    assert (score.graded, score.lost, gaps) == (True, 1, ())


def test_only_documents_of_both_sides_are_compared() -> None:
    here, there = run({"t acc": [1.0, 1.0, 0.0]}), run({"t acc": [1.0, 1.0]})
    (score,), _ = compare_harness(here, there)
    assert (score.n, score.lost) == (2, 0)


def test_what_a_side_lacks_is_a_gap() -> None:
    here = run({"t acc": [1.0], "u acc": [1.0]}, v="lm_eval failed (no data)")
    there = HarnessRun(max_length=2048, values={"t acc": {"other": 1.0}}, missing={"w": "lost"})
    assert compare_harness(here, there) == (
        (),
        (
            "v: lm_eval failed (no data)",
            "w: lost (baseline)",
            "t acc: the baseline has no document with the same prompt",
            "u acc: the baseline has no document with the same prompt",
        ),
    )


def test_a_run_is_stored_whole() -> None:
    here, _ = shares(lost=1, gained=2, both=3)
    assert decode(HarnessRun, encode(here)) == here


def test_without_the_harness_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'lm-eval\[api\]'"):
        require_harness()


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks of eight documents, and a tokenizer."""
    folder = tmp_path_factory.mktemp("harness")
    data = write_lines(
        folder / "rows.jsonl",
        [{"prompt": f"question {i}:", "answer": i % 2, "reply": "yes"} for i in range(8)],
    )
    (folder / "letters.yaml").write_text(CHOICE % data, encoding="utf-8")
    (folder / "echoes.yaml").write_text(GENERATE % data, encoding="utf-8")
    write_tokenizer(folder / "tokenizer")
    return folder


def measured(
    folder: Path, reply: Callable[[Body], Reply], *tasks: str
) -> tuple[HarnessRun, list[Body]]:
    with model_server(reply) as (url, asked):
        result = run_harness(
            ModelEndpoint(url=url, model="m", concurrency=2),
            tasks,
            ["--include_path", str(folder)],
            tokenizer=folder / "tokenizer",
            max_length=256,
        )
    return result, asked


def alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


@installed
def test_a_model_that_likes_one_letter_is_right_half_the_time(folder: Path) -> None:
    liked = alphabet().index("a")
    here, asked = measured(
        folder,
        scorer(lambda place, token: -0.1 if token == liked else -2 - place / 99),
        "letters",
        "echoes",
    )
    scores, gaps = compare_harness(here, here)
    assert {score.task: (score.n, score.score.value, score.lost) for score in scores} == {
        "letters acc": (8, 0.5, 0),
        "echoes exact_match": (8, 1.0, 0),
    }
    assert gaps == ()
    assert all(body["model"] == "m" for body in asked)


@installed
def test_without_an_echo_likelihood_tasks_have_no_figures_and_others_run(folder: Path) -> None:
    here, _ = measured(folder, lambda _: says("yes"), "letters", "echoes")
    assert set(here.missing) == {"letters"}
    assert set(here.values) == {"echoes exact_match"}


@installed
def test_a_likelihood_that_is_nan_is_broken_and_not_chance(folder: Path) -> None:
    liked = alphabet().index("a")
    here, _ = measured(
        folder,
        scorer(lambda place, token: math.nan if token == liked else -0.1 * place - 0.01 * token),
        "letters",
    )
    assert "letters has 8 likelihoods that are not numbers" in here.missing["letters"]


@installed
def test_a_name_that_is_no_task_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="knows no task 'leters'"):
        measured(folder, scorer(lambda place, _: -0.1 * place), "leters")


@installed
def test_data_out_of_reach_is_a_reason_and_no_crash(folder: Path, tmp_path: Path) -> None:
    (folder / "lost.yaml").write_text(
        CHOICE.replace("letters", "lost") % (tmp_path / "absent.jsonl"), encoding="utf-8"
    )
    here, _ = measured(folder, scorer(lambda place, _: -0.1 * place), "lost")
    assert here.missing["lost"].startswith("lm_eval failed (")
