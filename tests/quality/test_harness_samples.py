"""The harness's results as records, and the files that keep them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from whet.core.errors import StorageError
from whet.core.records import HarnessRun
from whet.quality.harness_samples import (
    RECORD,
    SAMPLES,
    mean_estimate,
    read_harness,
    read_samples,
    read_tasks,
    student,
    write_harness,
)


def logged(doc_id: int, acc: Any, **changes: Any) -> dict[str, Any]:
    """One entry of ``results["samples"][task]`` as lm_eval 0.4.13 writes it."""
    return {
        "doc_id": doc_id,
        "doc": {"question": "?"},
        "target": 1,
        "arguments": [("x" * 900 + " the end?", " no"), ("x" * 900 + " the end?", " yes")],
        "resps": [[(-3.5, False)], [(-0.5, True)]],
        "filtered_resps": [(-3.5, False), (-0.5, True)],
        "filter": "none",
        "metrics": ["acc", "f1"],
        "doc_hash": f"d{doc_id}",
        "prompt_hash": f"p{doc_id}",
        "target_hash": "t",
        "acc": acc,
        "f1": (1, 0),
        **changes,
    }


def results(*samples: dict[str, Any], acc: float) -> dict[str, Any]:
    figures = {"name": "t", "alias": "t", "sample_len": len(samples), "f1,none": 0.25}
    return {
        "results": {"t": {**figures, "acc,none": acc, "acc_stderr,none": "N/A"}},
        "group_subtasks": {"t": []},
        "configs": {"t": {"output_type": "multiple_choice"}},
        "versions": {"t": 1.0},
        "n-shot": {"t": 5},
        "higher_is_better": {"t": {"acc": True, "f1": True}},
        "n-samples": {"t": {"original": 900, "effective": len(samples)}},
        "samples": {"t": list(samples)},
    }


def run_of(found: dict[str, Any]) -> HarnessRun:
    samples = read_samples(found)
    return HarnessRun(
        variant="awq",
        model="m",
        harness_version="0.4.13",
        seed=1234,
        limit=None,
        chat_template=False,
        max_length=2048,
        tasks=read_tasks("t", found, samples),
        samples=samples,
        echo=None,
        truncated=0,
        seconds=1.0,
    )


def test_a_sample_keeps_its_identity_its_numbers_and_its_answer() -> None:
    (one,) = read_samples(results(logged(7, 1.0), acc=1.0))
    assert (one.task, one.doc_id, one.doc_hash, one.prompt_hash) == ("t", 7, "d7", "p7")
    assert one.metrics == (("acc", 1.0),)  # f1 is a pair a document, no number
    assert json.loads(one.response) == [[-3.5, False], [-0.5, True]]
    assert one.prompt_end.endswith("the end?")
    assert len(one.prompt_end) == 400


def test_a_generated_answer_is_kept_as_text() -> None:
    (one,) = read_samples(results(logged(0, 0.0, filtered_resps=["42"], target="43"), acc=0.0))
    assert (one.response, one.target) == ("42", "43")


def test_numpy_values_and_bools_are_numbers() -> None:
    import numpy as np

    found = results(logged(0, np.float64(0.5)), logged(1, np.bool_(True)), acc=0.75)
    assert [one.metrics[0][1] for one in read_samples(found)] == [0.5, 1.0]


def test_the_harness_s_figure_gets_wilson_s_interval() -> None:
    found = results(*(logged(i, 0.0) for i in range(10)), acc=0.0)
    task = run_of(found).tasks[0]
    acc = next(metric for metric in task.metrics if metric.name == "acc")
    assert acc.score.high == pytest.approx(0.277533, abs=1e-6)  # z² ÷ (n + z²)
    assert (task.num_fewshot, task.samples, task.available, task.version) == (5, 10, 900, "1.0")


def test_a_figure_that_is_no_mean_of_its_samples_has_no_interval() -> None:
    task = run_of(results(logged(0, 1.0), logged(1, 0.0), acc=0.9)).tasks[0]
    scores = {metric.name: metric.score for metric in task.metrics}
    assert (scores["acc"].value, scores["acc"].low) == (0.9, None)
    assert (scores["f1"].value, scores["f1"].samples) == (0.25, 0)
    assert "acc_stderr" not in scores


def test_nan_likelihoods_are_counted() -> None:
    nan = [(math.nan, False), (-0.5, True)]
    found = results(logged(0, 1.0, filtered_resps=nan), logged(1, 1.0), acc=1.0)
    assert run_of(found).tasks[0].broken == 1


def test_a_group_s_own_figure_stands_before_its_members() -> None:
    found = results(logged(0, 1.0), acc=1.0)
    found["groups"] = {"all": {"acc,none": 1.0, "sample_len": 1}}
    found["group_subtasks"] = {"all": ["t"]}
    tasks = read_tasks("all", found, read_samples(found))
    assert [(task.task, task.members) for task in tasks] == [("all", ("t",)), ("t", ())]
    assert {task.asked for task in tasks} == {"all"}


def test_students_interval_is_the_textbook_s() -> None:
    found = student([1.0, 2.0, 3.0, 4.0, 5.0])  # 3 ± 2.776445 · 1.581139 ÷ √5
    assert (found.low, found.high) == (pytest.approx(1.036757), pytest.approx(4.963243))


def test_equal_grades_say_nothing_of_their_spread() -> None:
    assert (mean_estimate([0.5, 0.5]).low, student([0.0, 0.0]).high) == (None, None)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = run_of(results(logged(0, 1.0, filtered_resps=["a\u2028b\ud800"]), acc=1.0))
    write_harness(tmp_path, found)
    again = read_harness(tmp_path)
    assert (again.tasks, len(again.samples)) == (found.tasks, 1)
    assert again.samples[0].response.startswith("a\u2028b")


def test_samples_of_another_run_are_refused(tmp_path: Path) -> None:
    write_harness(tmp_path, run_of(results(logged(0, 1.0), acc=1.0)))
    (tmp_path / SAMPLES).write_text("", encoding="utf-8")
    with pytest.raises(StorageError, match="does not belong"):
        read_harness(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text("{", encoding="utf-8")
    with pytest.raises(StorageError, match="no readable harness run"):
        read_harness(tmp_path)
