"""Units of traces that have the same keys: by all rows, or refused with the option that helps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.load.sources.test_source import TARGET, asked
from whet.core.errors import UsageError
from whet.load.sources.source import build_load
from whet.predict.plan.traffic import read_traffic
from whet.requests.trace import Reading, read_trace


def write(folder: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_plan_holds_the_counts_of_a_log_against_its_text(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 900, "completion_tokens": 90}
    rows = [
        {"prompt": f"{n} order parcel late " * 60, "response": "on its way", "usage": usage}
        for n in range(20)
    ]
    said = read_traffic(str(write(tmp_path, rows)), tokenizer=TARGET.tokenizer).doubts
    assert any("the log says 90 tokens per answer" in each for each in said)
    assert any("the log says 900 tokens per prompt" in each for each in said)


def sharing(times: Sequence[float | str], size: int, **more: Any) -> list[dict[str, Any]]:
    """Prompts of 100 blocks less 5 tokens, 40 of them shared."""
    return [
        {
            "timestamp": at,
            "input_length": 100 * size - 5,
            "output_length": 16,
            "hash_ids": [*range(40), *range(1000 * (number + 1), 1000 * (number + 1) + 60)],
            **more,
        }
        for number, at in enumerate(times)
    ]


def steps(step: float, count: int = 20, start: float = 0) -> list[float]:
    return [start + step * number for number in range(count)]


HALVES = steps(0.5)
MILLISECONDS = steps(500)


@pytest.mark.parametrize("size", [16, 32, 64, 128, 256, 512, 1024])
def test_the_size_of_a_block_is_the_one_that_all_rows_agree_with(tmp_path: Path, size: int) -> None:
    assert read_trace(write(tmp_path, sharing(MILLISECONDS, size))).block_size == size


@pytest.mark.parametrize(
    ("times", "more"),
    [
        (HALVES, {"chat_id": 3, "parent_chat_id": -1}),
        (HALVES, {}),
        (MILLISECONDS, {}),
        (steps(1.0), {"chat_id": 3}),
        (steps(0.5, start=1_760_000_000), {}),
        (steps(500, start=1_760_000_000_000), {}),
        (steps(500_000, start=1_760_000_000_000_000), {}),
        ([f"2025-10-09T08:53:{second:02d}Z" for second in range(20)], {}),
    ],
)
def test_a_bench_and_a_plan_read_the_same_rate_and_sharing(
    tmp_path: Path, times: list[float | str], more: dict[str, Any]
) -> None:
    path = write(tmp_path, sharing(times, 16, **more))
    trace, planned = read_trace(path), read_traffic(str(path))
    assert trace.rate_rps == pytest.approx(planned.rate)
    assert trace.rate_rps == pytest.approx(
        1.0 if more == {"chat_id": 3} or "T" in str(times) else 2
    )
    sent = build_load(asked(trace, 20), TARGET, 0).workload.facts
    cached = [each.cached for each in planned.requests]
    assert cached == [0] + [640] * 19
    assert sent.expected_hit_rate == pytest.approx(sum(cached) / (20 * 1595))


@pytest.mark.parametrize(
    "times",
    [steps(1), steps(3), [10_000_000, 10_000_000.5, 10_000_900.5], steps(400_000)],
)
def test_times_of_an_open_unit_are_refused_and_an_option_says_it(
    tmp_path: Path, times: list[float]
) -> None:
    path = write(tmp_path, sharing(times, 512))
    with pytest.raises(
        UsageError, match=r"trace.jsonl:\d+: its time is not clear: .* with --trace-unit"
    ):
        read_trace(path)
    for unit, per_s in (("s", 1), ("ms", 10**3), ("us", 10**6)):
        rate = (len(times) - 1) / (times[-1] - times[0]) * per_s
        assert read_trace(path, Reading(unit=unit)).rate_rps == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda rows: rows[7].update(input_length=1400),
            r"trace.jsonl:8: 1,400 prompt tokens and 100 hash ids do not fit blocks of 16 tokens,"
            " as 19 of 20 rows do; correct the row or say the tokens per hash id with --tr",
        ),
        (
            lambda rows: [row.update(input_length=1595 * 3) for row in rows],
            r"trace.jsonl:1: 4,785 prompt tokens and 100 hash ids fit no block of 16, 32, ",
        ),
        (
            lambda rows: [row.update(input_length=200, hash_ids=[1]) for row in rows],
            r"trace.jsonl:1: 200 prompt tokens and 1 hash ids fit blocks of 128 and 256 and 512",
        ),
    ],
)
def test_lengths_that_disagree_are_refused_with_the_row(
    tmp_path: Path, change: Callable[[list[dict[str, Any]]], object], said: str
) -> None:
    rows = sharing(HALVES, 16, chat_id=0)
    change(rows)
    path = write(tmp_path, rows)
    with pytest.raises(UsageError, match=said):
        read_trace(path)
    assert read_trace(path, Reading(block_size=8)).block_size == 8


def test_a_given_size_that_cannot_be_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, sharing(MILLISECONDS, 16))
    with pytest.raises(
        UsageError, match=r"trace.jsonl:1: 100 hash ids of 512 tokens are more than its 1,5"
    ):
        read_trace(path, Reading(block_size=512))


def test_a_trace_may_have_ids_of_full_blocks_alone(tmp_path: Path) -> None:
    rows = sharing(MILLISECONDS, 64)
    for number, row in enumerate(rows):
        row["input_length"] += 6 + 3 * number
    assert read_trace(write(tmp_path, rows)).block_size == 64


def test_a_delay_in_place_of_a_time_is_named(tmp_path: Path) -> None:
    rows = sharing(MILLISECONDS, 512, session_id="a")
    rows[3] |= {"delay": rows[3].pop("timestamp")}
    with pytest.raises(UsageError, match=r"trace.jsonl:4: delay counts from the answer before"):
        read_trace(write(tmp_path, rows))


@pytest.mark.parametrize("step", [0.5, 40])
def test_seconds_of_a_csv_are_checked_too(tmp_path: Path, step: float) -> None:
    path, head = tmp_path / "burst.csv", "Timestamp,Request tokens,Response tokens\n"
    path.write_text(head + "".join(f"{at},9,8\n" for at in steps(step)))
    assert read_trace(path).rate_rps == pytest.approx(1 / step)
    path.write_text(head + "".join(f"{1000 * at},9,8\n" for at in steps(step)))
    with pytest.raises(UsageError, match="--trace-unit"):
        read_trace(path)
    assert read_trace(path, Reading(unit="ms")).rate_rps == pytest.approx(1 / step)


def test_relative_milliseconds_of_a_log_are_not_taken_for_seconds(tmp_path: Path) -> None:
    path = write(tmp_path, ({"prompt": "hello", "timestamp": at} for at in MILLISECONDS))
    with pytest.raises(UsageError, match="--trace-unit"):
        read_trace(path)
    assert read_trace(path, Reading(unit="ms")).rate_rps == pytest.approx(2)


def test_a_unit_of_times_since_1970_is_not_replaced(tmp_path: Path) -> None:
    path = write(tmp_path, sharing(steps(500, start=1_760_000_000_000), 16))
    assert read_trace(path, Reading(unit="ms")).rate_rps == pytest.approx(2)
    with pytest.raises(UsageError, match="its times count from 1970 in ms; leave out --trace-unit"):
        read_trace(path, Reading(unit="s"))


@pytest.mark.parametrize("order", [-1, 1])
def test_rows_are_played_by_time(tmp_path: Path, order: int) -> None:
    rows = sharing([0, 1000, 2000, 1500, 4000], 16)[::order]
    trace = read_trace(write(tmp_path, rows))
    assert trace.times_ns == tuple(round(at * 1e9) for at in (0, 1, 1.5, 2, 4))


def test_two_traces_in_one_file_are_refused(tmp_path: Path) -> None:
    rows = sharing(MILLISECONDS, 16)
    with pytest.raises(UsageError, match=r"trace.jsonl:21: time goes back by 9.5 s"):
        read_trace(write(tmp_path, rows + rows))


def test_a_trace_that_begins_before_zero_is_in_its_form_s_unit(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, sharing(steps(500, start=-1000), 16)))
    assert trace.rate_rps == pytest.approx(2)


def test_a_plan_takes_no_limit_for_an_answer_and_keeps_the_rate(tmp_path: Path) -> None:
    answer = {"choices": [{"message": {"content": "it is on its way"}}]}
    rows = [
        {"timestamp": 1_760_000_000 + at, "prompt": f"where is order {at}", "max_tokens": 200}
        | {"response": answer | ({"usage": {"prompt_tokens": 5, "completion_tokens": 6}} if at % 2
           else {})}
        for at in range(20)
    ]  # fmt: skip
    traffic = read_traffic(str(write(tmp_path, rows)))
    assert {each.output for each in traffic.requests} == {6}
    assert traffic.rate == pytest.approx(1)
    assert traffic.doubts[0].startswith("10 of 20 requests have no token counts")
    for row in rows:
        del row["response"]["choices"]
        row["response"] |= {} if row["response"] else {"status_code": 429}
    failed = read_traffic(str(write(tmp_path, rows)))
    assert any("a request that failed: 10" in each for each in failed.doubts)
    assert {each.output for each in failed.requests} == {6}


def test_a_plan_says_what_is_odd_about_a_log(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 900, "completion_tokens": 6}
    rows = [{"timestamp": 1_760_000_000 + at, "prompt": "redacted", "usage": usage}
            for at in range(20)]  # fmt: skip
    doubts = read_traffic(str(write(tmp_path, rows)), Reading(lengths_only=True)).doubts
    assert any("all 20 prompts end in the same text" in each for each in doubts)
    assert "share are not counted" in doubts[-1]
    assert read_traffic(str(write(tmp_path, sharing(MILLISECONDS, 16)))).doubts == ()


def test_local_times_of_a_csv_that_come_twice_are_said(tmp_path: Path) -> None:
    path, head = tmp_path / "azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    clock = [f"2023-11-05 01:59:{n:02d}" for n in range(20)]
    clock += [f"2023-11-05 01:00:{n:02d}" for n in range(20)]
    path.write_text(head + "".join(f"{at},9,8\n" for at in clock))
    (said,) = read_trace(path).doubts
    assert said.startswith(
        "time goes back by 59 minutes at azure.csv:22, and what follows is sorted"
    )
