"""The timed answers of a run: whose are looked at, beside whose, and what the store keeps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.flow.stage import FakeEngine, tiny_spec
from tests.levers.builders import workload
from tests.metrics.events import event, trial
from whet.core.load import Load, trial_key, workload_key
from whet.core.protocols import Silent
from whet.core.records.model import ModelFacts
from whet.core.records.quality_checks import DegenerateTraffic
from whet.core.run import Run
from whet.core.store import RunStore
from whet.flow.run.check.check import prepare
from whet.flow.run.conclude.conclude import examine_all
from whet.flow.run.plan import Recorder

MARKS = "!" * 64
TEXTS = [f"The red lamp of order {number} comes from Porto on Friday." for number in range(12)]
VARIANTS: dict[str, Any] = {"fp16": {}, "b": {}, "c": {"prefix_cache": True}}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Run]:
    spec = tiny_spec(tmp_path, variants=VARIANTS)
    with RunStore.open(tmp_path / "run") as store:
        prepare(spec, Recorder(store=store, observer=Silent()), FakeEngine(), skip_infeasible=False)
        yield Run(store)


def keep(job: Run, name: str, texts: Sequence[str], *, size: int = 1, number: int = 0) -> None:
    events = [replace(event(index=index), text=text) for index, text in enumerate(texts)]
    record = trial(events, number=number, variant=name, load=Load.at(size))
    job.store.put("trials", trial_key(name, Load.at(size), number), record)


def verdicts(job: Run) -> dict[str, str]:
    return {record.variant: record.verdict for record in examine_all(Run(job.store))}


def test_every_trial_of_a_variant_is_looked_at_and_kept_as_one_record(job: Run) -> None:
    for size in (1, 2):
        for number in (0, 1):
            keep(job, "fp16", TEXTS, size=size, number=number)
            keep(job, "b", [*TEXTS[:4], *[MARKS] * (size + 6)], size=size, number=number)
    assert verdicts(job) == {"fp16": "pass", "b": "fail"}
    kept = RunStore.read(job.store.root).get("degenerate", "b", DegenerateTraffic)
    assert kept is not None
    assert (kept.answers, kept.found, kept.baseline_share) == (46, (("one mark", 30),), 0.0)


@pytest.mark.parametrize(
    ("sources", "verdict"),
    [
        (lambda _trial: (), "pass"),  # requests of one number are one prompt: 3 of 12 differ
        (lambda _trial: (*range(8), *[0] * 4), "pass"),  # 1 of 8 differs
        (lambda _trial: (0, 1, 2, 3) * 3, "unknown"),  # 4 prompts are too few
        (lambda trial: range(12 * trial, 12 * trial + 12), "fail"),  # 24 of 96 differ
    ],
)
def test_answers_to_one_prompt_are_one_unit_over_loads_and_trials(
    job: Run, sources: Callable[[int], Iterable[int]], verdict: str
) -> None:
    for trial_number, (size, number) in enumerate(product((1, 2), range(4))):
        keep(job, "fp16", TEXTS, size=size, number=number)
        keep(job, "b", [MARKS, *TEXTS[1:8], *[MARKS] * 2, *TEXTS[10:]], size=size, number=number)
        facts = replace(workload(), sources=tuple(sources(trial_number)))
        job.store.put("workloads", workload_key(Load.at(size), number), facts)
    assert verdicts(job)["b"] == verdict


def test_a_variant_without_trials_has_no_record_and_neither_has_the_repeat(job: Run) -> None:
    keep(job, "fp16", TEXTS)
    keep(job, "fp16.again", TEXTS)
    assert verdicts(job) == {"fp16": "pass"}
    assert job.store.get("degenerate", "fp16.again", DegenerateTraffic) is None


def test_without_the_baselines_answers_a_variant_is_unknown(job: Run) -> None:
    keep(job, "b", TEXTS)
    assert verdicts(job) == {"b": "unknown"}


def test_text_past_the_end_token_of_the_target_is_no_answer(job: Run) -> None:
    target = job.models["target"]
    vocabulary = json.loads((Path(target.path) / "tokenizer.json").read_text("utf-8"))
    [end] = [x for x in vocabulary["added_tokens"] if x["id"] in target.tokenizer.eos_token_ids]
    keep(job, "fp16", TEXTS)
    keep(job, "b", [text + end["content"] + "I am sorry. " * 30 for text in TEXTS])
    assert verdicts(job)["b"] == "pass"


def test_a_tokenizer_that_is_no_longer_there_is_not_needed(job: Run) -> None:
    shutil.rmtree(job.models["target"].path)
    keep(job, "fp16", TEXTS)
    assert verdicts(job) == {"fp16": "pass"}
    assert job.store.get("models", "target", ModelFacts) is not None
