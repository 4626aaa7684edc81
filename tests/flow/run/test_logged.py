"""``traffic: log.jsonl``: calibration, gate, load and confirmation are parts of one log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.flow.rounds_stage import Bench, build_bench, spec_of, story
from whet.core.errors import UsageError
from whet.core.records import OutputLengths
from whet.core.request_log import LogReader
from whet.core.request_log.sample import read_sample
from whet.core.run import Run
from whet.core.spec import Spec, TrafficSpec
from whet.core.store import RunStore

PAIR: dict[str, Any] = {"fp16": {}, "b": {"args": {"seed": 1}}}
ACCEPTED = {"accept_unproved": ["speculation", "settings", "prefix_cache"]}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = build_bench(monkeypatch)
    made.passes = True
    return made


def chats(count: int) -> list[dict[str, Any]]:
    return [
        {
            "request": {
                "model": "m",
                "messages": [
                    {"role": "system", "content": f"Desk {number % 3}."},
                    {"role": "user", "content": f"question {number}"},
                ],
                "temperature": 0.5,
            },
            "response": {
                "choices": [{"message": {"role": "assistant", "content": f"answer {number}"}}],
                "usage": {"completion_tokens": 3 + number % 4},
            },
        }
        for number in range(count)
    ]


def write_log(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def traffic_spec(folder: Path, log: Path, **change: Any) -> Spec:
    small = {"batch_sizes": [1, 2], "trials": 2, "min_requests": 4, "requests_per_slot": 1}
    load = {**small, "warmup_requests": 2}
    given = {"traffic": str(log), "load": load, "variants": PAIR, "evidence": ACCEPTED, **change}
    return spec_of(folder, **given, workload={})


def test_a_run_sends_the_log_and_its_parts_have_nothing_in_common(
    bench: Bench, tmp_path: Path
) -> None:
    log = write_log(tmp_path, chats(500))
    root = tmp_path / "run"
    story(traffic_spec(tmp_path, log), root)
    sent = {
        (plan.variant, plan.batch_size, plan.trial): plan.workload.facts.sha256
        for plan in bench.plans
    }
    assert {key[0] for key in sent} == {"fp16", "b"}
    for (_, size, trial), sha256 in sent.items():
        assert sent["fp16", size, trial] == sha256
    assert {call.temperature for plan in bench.plans for call in plan.calls or ()} == {0.5}
    assert {r.max_tokens for plan in bench.plans for r in plan.workload.requests} <= {3, 4, 5, 6}
    inputs = root / "inputs"
    sample = read_sample(LogReader(inputs / "traffic.jsonl"))
    assert sample.log_requests == 500
    texts = {}
    for name, part in (("calibration", "calibration"), ("heldout", "gate")):
        rows = [json.loads(line) for line in (inputs / f"{name}.jsonl").read_text().splitlines()]
        texts[name] = {row["messages"][1]["content"] for row in rows}
        expected = {each.request.messages[1]["content"] for each in sample.part(part)}
        assert texts[name] == expected
        assert all(row["messages"][-1]["role"] == "assistant" for row in rows)
    assert texts["calibration"].isdisjoint(texts["heldout"])


def test_a_run_goes_on_without_the_log(bench: Bench, tmp_path: Path) -> None:
    log = write_log(tmp_path, chats(100))
    root = tmp_path / "run"
    spec = traffic_spec(tmp_path, log)
    bench.stop_at = 2
    with pytest.raises(BaseException, match="stopped"):
        story(spec, root)
    bench.stop_at = None
    write_log(tmp_path, chats(30))
    story(spec, root, resume=True)
    assert {cell.status for cell in Run.read(root).cells} == {"complete"}


def test_arrivals_are_the_logs_own_at_the_rate_of_the_load(bench: Bench, tmp_path: Path) -> None:
    """Pairs of requests a millisecond apart, a pair a second."""
    lines = chats(300)
    for number, line in enumerate(lines):
        line["timestamp"] = 1_700_000_000 + number // 2 + 0.001 * (number % 2)
    load = {"rates": [4], "seconds": 5, "trials": 2, "min_requests": 4, "warmup_requests": 2}
    root = tmp_path / "run"
    story(traffic_spec(tmp_path, write_log(tmp_path, lines), load=load), root)
    for plan in bench.plans:
        gaps = np.diff(plan.offsets_ns)
        assert len(plan.offsets_ns) == 20
        assert plan.offsets_ns[-1] == pytest.approx(19 / 4 * 1e9, rel=1e-6)
        assert np.sort(gaps)[-9:] == pytest.approx(0.5e9, rel=0.1)
        assert np.sort(gaps)[:9].max() < 0.001e9
    both = {plan.trial: plan.offsets_ns for plan in bench.plans if plan.variant == "fp16"}
    assert both[0] == {plan.trial: plan.offsets_ns for plan in bench.plans}[0]


def test_answers_are_measured_where_the_log_has_none(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.flow.run.lengths.run_trial", bench.run_trial)
    lines = [{"prompt": f"Once {number}"} for number in range(100)]
    log = {"log": str(write_log(tmp_path, lines)), "answers": "natural", "max_output_tokens": 9}
    root = tmp_path / "run"
    story(traffic_spec(tmp_path, Path("unused"), traffic=log), root)
    with RunStore.open(root, resume=True) as store:
        measured = store.get("lengths", "answers", OutputLengths)
    assert measured is not None
    asked, *trials = bench.plans
    assert {r.max_tokens for r in asked.workload.requests} == {9}
    assert not any(call.ignore_eos for call in asked.calls or ())
    timed = {r.max_tokens for plan in trials for r in plan.workload.requests}
    assert timed
    assert timed <= set(measured.tokens)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"workload": {"seed": 3}}, "two sources of requests"),
        ({"load": {"trace": "other.jsonl"}}, "load.trace plays a log of its own"),
    ],
)
def test_one_source_of_requests(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    log = write_log(tmp_path, chats(3))
    with pytest.raises(UsageError, match=sentence):
        spec_of(tmp_path, **{"traffic": str(log), "workload": {}, **change})


def test_a_log_without_answers_is_refused(bench: Bench, tmp_path: Path) -> None:
    lines = [{"prompt": f"Once {number}"} for number in range(20)]
    with pytest.raises(UsageError, match="20 without an answer or its length"):
        story(traffic_spec(tmp_path, write_log(tmp_path, lines)), tmp_path / "run")


def test_three_requests_are_too_few(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give a log of 20 requests or more"):
        story(traffic_spec(tmp_path, write_log(tmp_path, chats(3))), tmp_path / "run")


def test_the_short_form_is_the_log() -> None:
    assert TrafficSpec.model_validate("a.jsonl").log == Path("a.jsonl")
