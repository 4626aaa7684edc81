"""``traffic: log.jsonl``: calibration, gate, load and confirmation are parts of one log."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint_factory import write_tiny_llama
from tests.flow.rounds_stage import Bench, build_bench, spec_of, story
from whet.checkpoint import read_facts
from whet.core.errors import UsageError
from whet.core.records.load import OutputLengths
from whet.core.run import Run
from whet.core.spec import Spec, TrafficSpec
from whet.core.store import RunStore
from whet.flow.run.conclude.faults import log_facts
from whet.flow.run.traffic.logged import TrafficLog, read_traffic
from whet.requests import LogReader
from whet.requests.sample import read_sample

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
    small = {"concurrency": [1, 2], "trials": 2, "min_requests": 4, "requests_per_slot": 1}
    load = {**small, "warmup_requests": 2}
    given = {"traffic": str(log), "load": load, "variants": PAIR, "evidence": ACCEPTED, **change}
    return spec_of(folder, **given, workload={})


def test_a_run_sends_the_log_and_its_parts_have_nothing_in_common(
    bench: Bench, tmp_path: Path
) -> None:
    log = write_log(tmp_path, chats(500))
    root = tmp_path / "run"
    story(bench, traffic_spec(tmp_path, log), root)
    sent = {
        (plan.variant, plan.load, plan.trial): plan.workload.facts.sha256 for plan in bench.plans
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
        story(bench, spec, root)
    bench.stop_at = None
    write_log(tmp_path, chats(30))
    story(bench, spec, root, resume=True)
    assert {cell.status for cell in Run.read(root).cells} == {"complete"}


def test_arrivals_are_the_logs_own_at_the_rate_of_the_load(bench: Bench, tmp_path: Path) -> None:
    """Pairs of requests a millisecond apart, a pair a second."""
    lines = chats(300)
    for number, line in enumerate(lines):
        line["timestamp"] = 1_700_000_000 + number // 2 + 0.001 * (number % 2)
    load = {"rates": [4], "seconds": 5, "trials": 2, "min_requests": 4, "warmup_requests": 2}
    root = tmp_path / "run"
    story(bench, traffic_spec(tmp_path, write_log(tmp_path, lines), load=load), root)
    for plan in bench.plans:
        gaps = np.diff(plan.offsets_ns)
        assert len(plan.offsets_ns) == 20
        assert plan.offsets_ns[-1] == pytest.approx(19 / 4 * 1e9, rel=1e-6)
        assert np.sort(gaps)[-9:] == pytest.approx(0.5e9, rel=0.1)
        assert np.sort(gaps)[:9].max() < 0.001e9
    both = {plan.trial: plan.offsets_ns for plan in bench.plans if plan.variant == "fp16"}
    assert both[0] == {plan.trial: plan.offsets_ns for plan in bench.plans}[0]


def test_the_logs_volume_is_of_its_own_times_and_a_resumed_run_keeps_it(
    bench: Bench, tmp_path: Path
) -> None:
    """300 requests, two a second, of 4.5 output tokens in the mean."""
    lines = chats(300)
    for number, line in enumerate(lines):
        line["timestamp"] = 1_700_000_000 + number / 2
    spec, root = traffic_spec(tmp_path, write_log(tmp_path, lines)), tmp_path / "run"
    story(bench, spec, root)
    facts = log_facts(Run.read(root))
    assert facts is not None
    assert facts.output_tokens_per_s == pytest.approx(2 * 4.5)
    story(bench, spec, root, resume=True)
    assert log_facts(Run.read(root)) == facts


def test_answers_are_measured_where_the_log_has_none(bench: Bench, tmp_path: Path) -> None:
    lines = [{"prompt": f"Once {number}"} for number in range(100)]
    log = {"log": str(write_log(tmp_path, lines)), "answers": "natural", "max_output_tokens": 9}
    root = tmp_path / "run"
    story(bench, traffic_spec(tmp_path, Path("unused"), traffic=log), root)
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
        story(bench, traffic_spec(tmp_path, write_log(tmp_path, lines)), tmp_path / "run")


def test_three_requests_are_too_few(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give a log of 20 requests or more"):
        story(bench, traffic_spec(tmp_path, write_log(tmp_path, chats(3))), tmp_path / "run")


def test_requests_of_one_conversation_need_others_not_more(bench: Bench, tmp_path: Path) -> None:
    lines = [{**line, "session_id": "one"} for line in chats(60)]
    with pytest.raises(UsageError, match="in many conversations, which no two parts share"):
        story(bench, traffic_spec(tmp_path, write_log(tmp_path, lines)), tmp_path / "run")


def test_what_is_odd_about_a_log_is_said_before_a_run(tmp_path: Path) -> None:
    lines = chats(60)
    for number, line in enumerate(lines):
        line["request"]["response_format"] = {"type": "json_object"}
        line["request"]["messages"][1]["content"] = (
            f"{number} where is the order that I paid for " * 4
        )
        line["response"]["usage"]["prompt_tokens"] = 20
    unsent, counted = sorted(read(tmp_path, lines).doubts)
    assert (
        unsent == "fields of the log that are not sent: response_format of 60 requests [not-sent]"
    )
    assert counted.startswith("the log says 20 tokens per prompt and its text has ")
    for line in lines:
        line["response"]["usage"]["prompt_tokens"] = 5000
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(UsageError, match="says 5,000 tokens per prompt and its text has"):
        read(other, lines)


def test_a_log_newest_first_is_sampled_by_time(tmp_path: Path) -> None:
    lines = [{**line, "timestamp": 1_700_000_000 + at} for at, line in enumerate(chats(60))]
    sample = read(tmp_path, lines[::-1]).sample
    assert [each.request.messages[1]["content"] for each in sample.requests] == [
        f"question {number}" for number in range(60)
    ]


def test_relative_milliseconds_are_not_taken_for_seconds(tmp_path: Path) -> None:
    lines = [{**line, "timestamp": 500 * at} for at, line in enumerate(chats(60))]
    with pytest.raises(UsageError, match="its time is not clear"):
        read(tmp_path, lines)


def test_the_short_form_is_the_log() -> None:
    assert TrafficSpec.model_validate("a.jsonl").log == Path("a.jsonl")


# Bad input


def read(folder: Path, lines: list[Any], **traffic: Any) -> TrafficLog:
    """The log of these lines for a target of 512 tokens."""
    log = folder / "log.jsonl"
    log.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )
    target = write_tiny_llama(folder / "target")
    spec = TrafficSpec(log=log, **traffic)
    return read_traffic(spec, target, read_facts(target).max_position, None)


def chat(number: int, content: Any, role: str = "user") -> dict[str, Any]:
    line = chats(number + 1)[number]
    line["request"]["messages"][1] = {"role": role, "content": content}
    return line


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (
            chat(0, [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {}}]),
            "with image_url, which is not sent",
        ),
        (chat(0, [{"type": "input_audio", "input_audio": {}}]), "with input_audio, which is not"),
        (chat(0, "word " * 5000), "longer than the longest context"),
        ({"prompt": "Once"}, "without an answer or its length"),
        ({"input": "an embeddings call"}, "no request in it"),
        ("7", "not a JSON object"),
        ('{"messages": [{"ro', "not valid JSON"),
    ],
)
def test_what_cannot_be_sent_is_left_out_and_counted(tmp_path: Path, odd: Any, reason: str) -> None:
    log = read(tmp_path, [odd, *chats(300)])
    assert len(log.sample.requests) == 300
    ((left, count),) = log.left_out
    assert left.startswith(reason)
    assert count == 1
    assert f"1 {reason}" in log.describe()


@pytest.mark.parametrize("broken", ["{", "7", '{"messages": 1}'])
def test_over_one_percent_of_broken_lines_refuse_a_log(tmp_path: Path, broken: str) -> None:
    with pytest.raises(UsageError, match=r"4 of 304 lines are broken, more than 1% .*correct or"):
        read(tmp_path, [*chats(300), *[broken] * 4])
    with pytest.raises(UsageError, match="300 of 600 lines are broken"):
        read(tmp_path, [*chats(300), *[broken] * 300])


def test_times_in_two_units_are_one_clock_and_a_jump_is_refused(tmp_path: Path) -> None:
    """Seconds and milliseconds of one clock are told apart by their size; a time since the start
    is not."""
    lines = chats(200)
    for number, line in enumerate(lines):
        at = 1_760_000_000 + 200 - number
        line["timestamp"] = at if number % 2 else 1000 * at
    times = list(read(tmp_path, lines).sample.times_ns)
    assert times == sorted(times)
    assert times[-1] - times[0] == 199 * 10**9
    lines[3]["timestamp"] = 3
    with pytest.raises(UsageError, match="time jumps by 20,370 days; write all times in one unit"):
        read(tmp_path, lines, seed=1)


def test_unknown_roles_are_rendered_or_left_out_by_the_template(tmp_path: Path) -> None:
    log = read(tmp_path, [chat(0, "what", role="robot"), *chats(300)])
    assert len(log.sample.requests) + sum(count for _, count in log.left_out) == 301


def test_a_template_that_refuses_messages_is_named(tmp_path: Path) -> None:
    target = write_tiny_llama(tmp_path / "target")
    config = target / "tokenizer_config.json"
    words = json.loads(config.read_text())
    strict = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system role') }}"
    )
    words["chat_template"] = strict + "{% endif %}{{ m.content }}{% endfor %}"
    config.write_text(json.dumps(words))
    plain = [
        {"messages": [{"role": "user", "content": f"{n}"}], "max_tokens": 3} for n in range(50)
    ]
    log = write_log(tmp_path, [*plain, *chats(7)])
    read_one = read_traffic(TrafficSpec(log=log), target, 512, None)
    ((reason, count),) = read_one.left_out
    assert (count, "No system role" in reason) == (7, True)


@pytest.mark.parametrize("pack", [gzip.compress, None])
def test_a_folder_and_a_packed_file_are_logs(tmp_path: Path, pack: Any) -> None:
    target = write_tiny_llama(tmp_path / "target")
    folder = tmp_path / "logs"
    folder.mkdir()
    for part in range(2):
        text = "".join(json.dumps(line) + "\n" for line in chats(60)[part::2]).encode()
        name = folder / (f"{part}.jsonl.gz" if pack else f"{part}.jsonl")
        name.write_bytes(pack(text) if pack else text)
    assert len(read_traffic(TrafficSpec(log=folder), target, 512, None).sample.requests) == 60
