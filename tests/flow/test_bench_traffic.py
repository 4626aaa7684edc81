"""What a run of ``whet bench`` is built of, by source."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from whet.core.errors import UsageError
from whet.core.protocols import Silent
from whet.demo import pair_paths
from whet.flow.bench_request import BenchLoad, BenchRequest, DatasetFile, Source, Target
from whet.flow.bench_traffic import build_load, open_dataset
from whet.load.arrivals import Arrivals
from whet.load.conversations import ConversationShape
from whet.load.dataset import LengthLimits
from whet.load.lengths import LONGEST, Fixed
from whet.load.trace import Trace, TraceRow

FOLDER = Path(pair_paths()[0])
TARGET = Target(model="m", tokenizer=FOLDER)
ANY_ROW = LengthLimits(min_input_tokens=1, min_output_tokens=1)


def asked(source: Source | None, requests: int, **more: object) -> BenchRequest:
    plain = BenchRequest(
        url="http://x", model=None, tokenizer=None, form="ids", requests=requests, source=source
    )
    return replace(plain, **more)


def traced(*rows: TraceRow) -> Trace:
    return Trace(path="trace", form="Mooncake", rows=rows, left_out=0)


def hashed(tokens: int, *ids: int) -> TraceRow:
    return TraceRow(at_ns=0, input_tokens=tokens, output_tokens=1, prefix_ids=ids)


def prompts(load: BenchLoad) -> list[tuple[int, ...]]:
    return [request.prompt_token_ids for request in load.workload.requests]


def test_equal_hash_ids_are_equal_blocks_in_a_run_and_fresh_ones_in_the_next() -> None:
    trace = traced(hashed(1024, 4, 5), hashed(1025, 4, 5, 6), hashed(1024, 9, 5), hashed(100))
    request = asked(trace, 4, warmup=3)
    one, again, other = (prompts(build_load(request, TARGET, number)) for number in (0, 0, 1))
    assert [len(prompt) for prompt in one] == [1024, 1025, 1024, 100]
    assert one == again
    assert one[0] == one[1][:1024]
    assert one[0][:512] != one[2][:512]
    assert one[0][512:] == one[2][512:]
    assert not set(one) & set(other)


def test_the_hit_rate_of_hash_ids_is_that_of_an_empty_cache() -> None:
    trace = traced(hashed(600, 1, 2), hashed(600, 1, 3), hashed(600, 1, 4))
    facts = build_load(asked(trace, 3), TARGET, 0).workload.facts
    assert facts.expected_hit_rate == pytest.approx(2 * 512 / 1800)


def test_a_trace_may_be_sent_at_another_rate() -> None:
    rows = [TraceRow(at_ns=at * 10**9, input_tokens=8, output_tokens=2) for at in range(3)]
    own = asked(traced(*rows), 3, arrivals=Arrivals(kind="trace", speed=2.0))
    assert build_load(own, TARGET, 0).offsets_ns == (0, 500_000_000, 1_000_000_000)
    assert own.rate_rps == pytest.approx(2.0)
    other = replace(own, arrivals=Arrivals(kind="constant", rate_rps=10.0))
    assert build_load(other, TARGET, 0).offsets_ns == (0, 100_000_000, 200_000_000)
    assert other.rate_rps == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("row", "requests", "told"),
    [
        (hashed(5), 2, "has 1 requests and 2 are asked for"),
        (hashed(LONGEST + 1), 1, "request 1: 10,000,001 tokens in"),
    ],
)
def test_a_trace_that_cannot_be_sent(row: TraceRow, requests: int, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        build_load(asked(traced(row), requests), TARGET, 0)


def test_runs_send_rows_of_their_own_while_there_are_such(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"question {number}", "output_tokens": 2} for number in range(9)]
    file.write_text("\n".join(map(json.dumps, rows)))
    request = asked(DatasetFile(path=file, limits=ANY_ROW), 2, warmup=1, runs=3)
    target = replace(TARGET, dataset=open_dataset(request, FOLDER, Silent()))
    loads = [build_load(request, target, number) for number in range(3)]
    sent = [call.prompt for load in loads for call in (load.calls or ())]
    warm = [call.prompt for load in loads for call in (load.warmup_calls or ())]
    assert (len(sent), len(warm)) == (6, 3)
    assert set(sent) | set(warm) == {row["prompt"] for row in rows}
    assert all(load.workload.facts.requests == 2 for load in loads)


def test_the_facts_of_conversations_count_turns() -> None:
    shape = ConversationShape(
        conversations=2,
        turns=Fixed(value=3),
        first_tokens=Fixed(value=40),
        added_tokens=Fixed(value=10),
        output_tokens=Fixed(value=4),
    )
    request = asked(shape, 2, concurrency=2, warmup=2)
    load = build_load(request, TARGET, 0)
    assert request.loop == "conversations"
    assert (load.workload.facts.requests, load.workload.facts.shared_prefixes) == (6, 2)
    assert load.workload.facts.output_tokens_mean == 4
    assert 0 < load.workload.facts.expected_hit_rate < 1
    assert len(load.warmup) == len(load.warmup_calls or ()) == 2
    assert load.workload.facts.sha256 != build_load(request, TARGET, 1).workload.facts.sha256
