"""Forms of recorded traffic, and every way a file can be none of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from whet.core.errors import UsageError
from whet.requests.trace import Trace, cut_trace, read_trace

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:46.6805901,879,55
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
45.5,GPT-4,417,276,693,API log
118,GPT-4,0,0,0,API log
"""
MOONCAKE = """\
{"timestamp": 27000, "input_length": 1155, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 27000, "input_length": 719, "output_length": 490, "hash_ids": [0, 14]}
{"timestamp": 30052, "input_length": 28, "output_length": 445}
"""
MANY = AZURE.splitlines()[0] + "\n" + "2023-11-16 18:15:46,374,44\n" * 150


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def log(folder: Path, *lines: dict[str, Any]) -> Path:
    return write(folder, "".join(json.dumps(line) + "\n" for line in lines))


def sizes(trace: Trace) -> list[tuple[int | None, int | None, int | None]]:
    return [(row.at_ns, row.input_tokens, row.output_bound) for row in trace.rows]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "trace is empty; give a file with at least one request"),
        ("\n \n", "is empty"),
        ("a,b,c\n1,2,3\n", r"no request that can be read \(no request in it: 1, first trace:2"),
        (
            '{"question": "why"}\n',
            r"no request that can be read \(no request in it: 1, first trace:1",
        ),
        ("TIMESTAMP;ContextTokens\n1;2\n", "a row .Azure .* without GeneratedTokens: 1, first"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "run: git lfs pull"),
        (b"\xff\xfe\x00", "UTF-16; convert it"),
        ("x" * 200_000, "an incomplete last line: 1, first trace:1"),
        (AZURE.splitlines()[0] + "\n", r"no request that can be read \(no row\)"),
        (BURSTGPT.splitlines()[0] + "\n5,ChatGPT,472,0,472,x\n", r"\(1 failed rows\)"),
        ("Model,Request tokens\na,1\n", r"\(BurstGPT\) without Timestamp, Response tokens"),
        (AZURE + "2023-11-16 18:16:47,1\n", "1 of 4 lines are broken.* trace:5: a row that has no"),
        (AZURE + "2023-11-16 18:16:47,1,2,3\n", "trace:5: a row that has not the cells"),
        (AZURE + "yesterday,1,2\n", "trace:5: TIMESTAMP that is neither a number nor a time"),
        (AZURE + "2023-13-16 18:16:47,1,2\n", "trace:5: TIMESTAMP that is neither"),
        (AZURE + "2023-11-16 18:16:47,1.5,2\n", "trace:5: ContextTokens that is not a whole"),
        (AZURE + "2023-11-16 18:16:47,-1,2\n", "trace:5: ContextTokens that is not"),
        (AZURE + f"2023-11-16 18:16:47,{'9' * 5000},2\n", "trace:5: ContextTokens"),
        (MANY + "yesterday,1,2\n" * 2, "2 of 152 lines are broken, more than 1%"),
        (BURSTGPT + "nan,a,1,2,3,x\n", "trace:6: Timestamp that is neither a number nor a time"),
        (BURSTGPT + "1e999999,a,1,2,3,x\n", "trace:6: Timestamp that is neither"),
        (BURSTGPT + "118,a,,2,3,x\n", r"trace:6: a row \(BurstGPT\) without Request tokens"),
        (MOONCAKE + '{"timestamp": 1\n', "trace:4: not valid JSON"),
        (MOONCAKE + "[" * 100_000 + "\n", "trace:4: not valid JSON"),
        (MOONCAKE + "[1]\n", "trace:4: not a JSON object"),
        (
            MOONCAKE + '{"timestamp": 30053, "input_length": 1}\n',
            "trace:4: .* without output_length",
        ),
        (MOONCAKE + MOONCAKE, "trace:4: time goes back by 3.052 s; sort the trace"),
        ('{"timestamp": "x", "input_length": 1, "output_length": 1}', "timestamp that is neither"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp that is neither"),
        ('{"timestamp": 1, "input_length": true, "output_length": 1}', "input_length that is not"),
        ('{"timestamp": 1, "input_length": 1, "output_length": -1}', "output_length that is not a"),
        (
            '\n\n{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1.5]}',
            "hash_ids that are not a list of whole numbers: 1, first trace:3",
        ),
        (
            MOONCAKE + '{"prompt": "a", "timestamp": 30053}\n',
            "trace:1: it has no prompt, and 1 of 4",
        ),
        ("\n{not json}\n", "not valid JSON: 1, first trace:2"),
        ('{"messages": []}', "malformed messages: 1, first trace:1"),
        ('{"prompt": ""}', "neither text nor token ids: 1"),
        ('{"prompt": "a"}\n{"prompt": [1, -2]}', "1 of 2 lines are broken, more than 1%"),
        ('{"prompt": "a", "timestamp": 1}\n{"prompt": "b"}', "trace:2: it has no time, and 1 of 2"),
        ('{"prompt": "a"}\n{"prompt": "b", "created": 1}', "trace:1: it has no time, and 1 of 2"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_place(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read_trace(write(tmp_path, text))
    assert str(tmp_path / "trace") in str(caught.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no log"):
        read_trace(tmp_path / "none")
    with pytest.raises(UsageError, match=r"no request that can be read \(no row\)"):
        read_trace(tmp_path)


def test_azure_times_keep_their_last_hundred_nanoseconds(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, AZURE))
    assert (trace.form, trace.left_out) == ("Azure LLM inference trace", 0)
    assert sizes(trace) == [
        (0, 374, 44),
        (4_314_579_000, 396, 109),
        (60_000_000_100, 879, 55),
    ]


def test_the_second_azure_trace_has_a_time_zone_and_bare_seconds(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\r\n"
        "2024-05-10 00:00:01+00:00,2399,6\r\n"
        "2024-05-10 02:00:01+02:00,1,7"
    )
    trace = read_trace(write(tmp_path, b"\xef\xbb\xbf" + text.encode()))
    assert sizes(trace) == [(0, 2162, 5), (990_070_000, 2399, 6), (990_070_000, 1, 7)]


def test_failed_rows_of_burstgpt_are_counted_and_left_out(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, BURSTGPT))
    assert (trace.form, trace.left_out) == ("BurstGPT", 2)
    assert sizes(trace) == [(0, 472, 18), (40_500_000_000, 417, 276)]


def test_burstgpt_s_third_part_has_two_columns_in_between(tmp_path: Path) -> None:
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        'Log Type\n7,"a,b",3.5,GPT-4,10,20,30,Conversation log\n8,,1.5,GPT-4,11,21,32,API log\n'
    )
    assert sizes(read_trace(write(tmp_path, text))) == [(0, 10, 20), (10**9, 11, 21)]


def test_mooncake_keeps_the_hash_ids(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, MOONCAKE))
    assert trace.form == "Mooncake"
    assert sizes(trace) == [(0, 1155, 500), (0, 719, 490), (3_052_000_000, 28, 445)]
    assert [row.hash_ids for row in trace.rows] == [(0, 1, 2), (0, 14), ()]


def test_a_log_keeps_the_prompt_as_it_was_sent(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    trace = read_trace(
        log(
            tmp_path,
            {"messages": chat, "max_tokens": 8},
            {"body": {"prompt": "hello", "max_completion_tokens": 4, "max_tokens": None}},
            {"request": json.dumps({"body": {"prompt": [5, 6, 7]}})},
            {"prompt": [[1, 2]], "max_tokens": 3},
            {"prompt": ["one"]},
        )
    )
    assert (trace.form, trace.left_out) == ("request log", 0)
    assert sizes(trace) == [
        (None, None, 8), (None, None, 4), (None, 3, None), (None, 2, 3), (None, None, None)
    ]  # fmt: skip
    requests = trace.rows
    assert requests[0].messages == tuple(chat)
    assert [each.prompt for each in requests] == [None, "hello", None, None, "one"]
    assert [each.prompt_token_ids for each in requests[2:4]] == [(5, 6, 7), (1, 2)]
    assert trace.rate_rps is None


def test_equal_token_ids_of_a_log_are_one_number_in_memory(tmp_path: Path) -> None:
    trace = read_trace(log(tmp_path, {"prompt": [70_000, 70_001]}, {"prompt": [70_001, 70_000]}))
    first, second = (row.prompt_token_ids or () for row in trace.rows)
    assert (first, second) == ((70_000, 70_001), (70_001, 70_000))
    assert first[0] is second[1]
    assert first[1] is second[0]


@pytest.mark.parametrize(
    "answer",
    [
        {"usage": {"prompt_tokens": 9, "completion_tokens": 5}},
        {"response": {"usage": {"prompt_tokens": 9, "completion_tokens": 5}}},
        {"response": {"body": {"usage": {"prompt_tokens": 9, "completion_tokens": 5}}}},
        {"response": json.dumps({"usage": {"prompt_tokens": 9, "completion_tokens": 5}})},
    ],
)
def test_what_the_server_counted_goes_before_what_was_asked_for(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    row = {"prompt": "a", "max_tokens": 100} | answer
    assert sizes(read_trace(log(tmp_path, row))) == [(None, 9, 5)]


@pytest.mark.parametrize(
    ("first", "second", "apart_ns"),
    [
        (0, 1.5, 1_500_000_000),
        (1700000000.25, 1700000000.5, 250_000_000),
        (1700000000000, 1700000000001, 1_000_000),
        (1700000000000000, 1700000000000001, 1_000),
        (1700000000000000000, 1700000000000000001, 1),
        ("2024-05-10T00:00:00Z", "2024-05-10T00:00:00.5Z", 500_000_000),
        ("2024-05-10 00:00:00", "2024-05-10T02:00:01+02:00", 1_000_000_000),
        ("12", "12.000000001", 1),
    ],
)
def test_the_size_of_a_number_tells_the_unit_of_a_log_s_times(
    tmp_path: Path, first: object, second: object, apart_ns: int
) -> None:
    lines = [{"prompt": "a", "timestamp": first}, {"body": {"prompt": "b"}, "timestamp": second}]
    assert read_trace(log(tmp_path, *lines)).times_ns == (0, apart_ns)


def test_the_first_rows_by_time_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, BURSTGPT + "4,ChatGPT,7,8,15,API log\n")
    assert sizes(cut_trace(read_trace(path), rows=2)) == [(0, 7, 8), (10**9, 472, 18)]


def test_a_cut_keeps_what_is_due_before_it(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, MOONCAKE))
    assert cut_trace(trace, duration_s=3.052).rows == trace.rows[:2]
    assert cut_trace(trace, duration_s=3.053).rows == trace.rows
    assert cut_trace(trace, rows=1).rows == trace.rows[:1]
    assert cut_trace(trace, duration_s=1.0, rows=1).rows == trace.rows[:1]
    assert cut_trace(trace, rows=99) == cut_trace(trace) == trace


def test_a_trace_has_the_rate_of_its_gaps(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, MOONCAKE))
    assert trace.rate_rps == pytest.approx(2 / 3.052)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_that_leaves_nothing_is_refused(tmp_path: Path, value: float) -> None:
    trace = read_trace(write(tmp_path, MOONCAKE))
    with pytest.raises(UsageError, match=r"the duration in seconds is .*; give a finite number"):
        cut_trace(trace, duration_s=value)


def test_a_cut_to_no_rows_and_a_log_without_times_are_refused(tmp_path: Path) -> None:
    trace = read_trace(log(tmp_path, {"prompt": "a"}))
    with pytest.raises(UsageError, match="rows to keep must be 1 or more"):
        cut_trace(trace, rows=0)
    with pytest.raises(UsageError, match="has no times"):
        cut_trace(trace, duration_s=1.0)


@example(text='"', header="")
@given(text=st.text(max_size=300), header=st.sampled_from(["", AZURE, BURSTGPT, MOONCAKE, "{"]))
def test_no_text_ends_in_anything_but_a_trace_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, text: str, header: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_text(header + text, encoding="utf-8", errors="ignore")
    try:
        times_ns = read_trace(path).times_ns
    except UsageError:
        return
    assert list(times_ns) == sorted(times_ns)
